#include "common/base/units.h"

#include <charconv>

#include <fmt/format.h>

namespace akv {

Result<uint64_t> parse_bytes(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string_view suffix(end, static_cast<size_t>(text.data() + text.size() - end));
  unsigned shift = 0;
  if (suffix == "K") shift = 10;
  if (suffix == "M") shift = 20;
  if (suffix == "G") shift = 30;
  const bool bad_suffix = !suffix.empty() && shift == 0;
  if (error != std::errc() || bad_suffix || (shift != 0 && (value >> (64 - shift)) != 0)) {
    return make_error(Code::kInvalidArgument,
                      fmt::format("'{}' is not a byte count (digits, then K, M or G)", text));
  }
  return value << shift;
}

std::string format_bytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string HostPort::str() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

Result<HostPort> parse_host_port(std::string_view text) {
  const auto bad = [&] {
    return make_error(Code::kInvalidArgument, fmt::format("'{}' is not HOST:PORT", text));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return bad();
  std::string_view host = text.substr(0, colon);
  if (host.front() == '[') {
    if (host.size() < 3 || host.back() != ']') return bad();
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return bad();
  }
  const std::string_view digits = text.substr(colon + 1);
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size()) return bad();
  return HostPort{std::string(host), port};
}

bool is_loopback(const HostPort& address) {
  return address.host == "localhost" || address.host == "::1" || address.host.starts_with("127.");
}

bool is_wildcard(const HostPort& address) {
  return address.host == "0.0.0.0" || address.host == "::" || address.host == "*";
}

}  // namespace akv
