#include "common/model/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace akv::model {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

struct TypeRow {
  const char* name;
  SafetensorsType type;
  uint64_t bytes;
};
constexpr TypeRow kTypes[] = {
    {"F32", SafetensorsType::kF32, 4},   {"F16", SafetensorsType::kF16, 2},
    {"BF16", SafetensorsType::kBF16, 2}, {"F64", SafetensorsType::kF64, 8},
    {"I8", SafetensorsType::kI8, 1},     {"U8", SafetensorsType::kU8, 1},
    {"I16", SafetensorsType::kI16, 2},   {"U16", SafetensorsType::kU16, 2},
    {"I32", SafetensorsType::kI32, 4},   {"U32", SafetensorsType::kU32, 4},
    {"I64", SafetensorsType::kI64, 8},   {"U64", SafetensorsType::kU64, 8},
    {"BOOL", SafetensorsType::kBool, 1},
};

Error bad(const std::string& file, const std::string& what) {
  return make_error(Code::kInvalidArgument, fmt::format("safetensors {}: {}", file, what));
}

// JSON that refuses a key given twice: the second would silently win.
Result<json> parse_header(const std::string& file, std::string_view text) {
  std::vector<std::set<std::string>> seen;
  std::string twice;
  const auto watch = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) seen.emplace_back();
    if (event == json::parse_event_t::object_end) seen.pop_back();
    if (event == json::parse_event_t::key) {
      const std::string& key = value.get_ref<const std::string&>();
      if (!seen.back().insert(key).second) twice = key;
    }
    return true;
  };
  json header = json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (header.is_discarded() || !header.is_object()) return bad(file, "header is no JSON object");
  if (!twice.empty()) return bad(file, fmt::format("key '{}' appears twice", twice));
  return header;
}

Result<uint64_t> natural(const json& value) {
  if (!value.is_number_unsigned()) return make_error(Code::kInvalidArgument, "no integer >= 0");
  return value.get<uint64_t>();
}

// One entry {"dtype", "shape", "data_offsets"} against `data`.
Result<SafetensorsEntry> parse_entry(const json& item, std::span<const std::byte> data) {
  const auto fail = [](const char* what) { return make_error(Code::kInvalidArgument, what); };
  if (!item.is_object() || item.size() != 3 || !item.contains("dtype") || !item.contains("shape") ||
      !item.contains("data_offsets")) {
    return fail("needs dtype, shape and data_offsets, and nothing else");
  }
  const json& dtype = item["dtype"];
  const TypeRow* row = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeRow& r) {
    return dtype.is_string() && dtype.get_ref<const std::string&>() == r.name;
  });
  if (row == std::end(kTypes)) return fail("unknown dtype");
  const json& range = item["data_offsets"];
  if (!item["shape"].is_array() || !range.is_array() || range.size() != 2) {
    return fail("shape or data_offsets of a wrong form");
  }
  SafetensorsEntry entry;
  entry.type = row->type;
  uint64_t bytes = row->bytes;
  for (const json& extent : item["shape"]) {
    AKV_ASSIGN_OR_RETURN(const uint64_t value, natural(extent));
    if (value != 0 && bytes > data.size() / value) return fail("shape exceeds the file");
    bytes *= value;
    entry.shape.push_back(static_cast<int64_t>(value));
  }
  AKV_ASSIGN_OR_RETURN(const uint64_t begin, natural(range[0]));
  AKV_ASSIGN_OR_RETURN(const uint64_t end, natural(range[1]));
  if (begin > end || end > data.size()) return fail("data_offsets outside the file");
  if (end - begin != bytes) return fail("data_offsets do not fit shape and dtype");
  entry.data = data.subspan(begin, bytes);
  return entry;
}

// The data must be covered exactly once.
Status check_cover(const std::string& file, const std::map<std::string, SafetensorsEntry>& tensors,
                   std::span<const std::byte> data) {
  std::vector<std::pair<size_t, size_t>> ranges;
  for (const auto& [name, entry] : tensors) {
    ranges.emplace_back(static_cast<size_t>(entry.data.data() - data.data()), entry.data.size());
  }
  std::sort(ranges.begin(), ranges.end());
  size_t at = 0;
  for (const auto& [begin, size] : ranges) {
    if (begin != at) return bad(file, fmt::format("gap or overlap at data byte {}", begin));
    at = begin + size;
  }
  if (at != data.size()) return bad(file, "bytes behind the last tensor");
  return {};
}

template <class T>
std::vector<T> copy_of(const SafetensorsEntry& entry) {
  std::vector<T> out(entry.data.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), entry.data.data(), entry.data.size());
  return out;
}

}  // namespace

int64_t SafetensorsEntry::elements() const {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

Result<Safetensors> Safetensors::parse(std::vector<std::byte> bytes, const std::string& name) {
  Safetensors out;
  auto owned = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  out.bytes_ = owned;
  uint64_t header_size = 0;
  if (owned->size() < sizeof(header_size)) return bad(name, "truncated");
  std::memcpy(&header_size, owned->data(), sizeof(header_size));
  if (header_size > kMaxHeaderBytes || header_size > owned->size() - sizeof(header_size)) {
    return bad(name, fmt::format("header of {} bytes exceeds the file", header_size));
  }
  const char* text = reinterpret_cast<const char*>(owned->data()) + sizeof(header_size);
  AKV_ASSIGN_OR_RETURN(const json header, parse_header(name, {text, header_size}));
  const auto data = std::span<const std::byte>(*owned).subspan(sizeof(header_size) + header_size);
  for (const auto& [key, item] : header.items()) {
    if (key == "__metadata__") {
      if (!item.is_object()) return bad(name, "__metadata__ is no object");
      for (const auto& [k, v] : item.items()) {
        if (!v.is_string()) return bad(name, fmt::format("__metadata__ '{}' is no string", k));
        out.metadata_[k] = v.get<std::string>();
      }
      continue;
    }
    auto entry = parse_entry(item, data);
    if (!entry.ok()) return bad(name, fmt::format("tensor '{}': {}", key, entry.error().message));
    out.tensors_.emplace(key, std::move(entry).value());
  }
  AKV_RETURN_IF_ERROR(check_cover(name, out.tensors_, data));
  return out;
}

Result<Safetensors> Safetensors::read(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return make_error(Code::kNotFound, fmt::format("cannot open {}", path), path);
  const std::streamoff size = in.tellg();
  if (size < 0) return make_error(Code::kIo, fmt::format("cannot read {}", path), path);
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  in.seekg(0);
  if (!in.read(reinterpret_cast<char*>(bytes.data()), size)) {
    return make_error(Code::kIo, fmt::format("cannot read {}", path), path);
  }
  return parse(std::move(bytes), path);
}

Result<std::vector<float>> Safetensors::f32(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) return make_error(Code::kNotFound, "no tensor " + name, name);
  if (it->second.type != SafetensorsType::kF32) {
    return make_error(Code::kInvalidArgument, name + " is not F32", name);
  }
  return copy_of<float>(it->second);
}

Result<std::vector<int32_t>> Safetensors::i32(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) return make_error(Code::kNotFound, "no tensor " + name, name);
  if (it->second.type != SafetensorsType::kI32) {
    return make_error(Code::kInvalidArgument, name + " is not I32", name);
  }
  return copy_of<int32_t>(it->second);
}

}  // namespace akv::model
