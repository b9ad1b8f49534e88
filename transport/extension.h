// The items of a landing's extension (Receiver::extension): "nccl/22809/...;ucx-device/cuda".
#pragma once

#include <optional>
#include <string_view>

namespace akv::transport {

// What follows `prefix` in the first item that begins with it; nothing where none does.
inline std::optional<std::string_view> extension_item(std::string_view extension,
                                                      std::string_view prefix) {
  while (!extension.empty()) {
    const size_t end = extension.find(';');
    const std::string_view item = extension.substr(0, end);
    if (item.starts_with(prefix)) return item.substr(prefix.size());
    extension = end == std::string_view::npos ? std::string_view{} : extension.substr(end + 1);
  }
  return std::nullopt;
}

}  // namespace akv::transport
