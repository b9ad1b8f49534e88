// Sizes, counts and addresses as text, for flags and logs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace akv {

// "64K" -> 65536; suffixes K, M, G of 1024, no suffix for bytes. Negative, empty, overflowing or
// other text is kInvalidArgument.
Result<uint64_t> parse_bytes(std::string_view text);
// 65536 -> "64.0 KiB".
std::string format_bytes(uint64_t bytes);

struct HostPort {
  std::string host;  // without the brackets of an IPv6 literal
  uint16_t port = 0;
  // "HOST:PORT", brackets around an IPv6 literal.
  std::string str() const;
  bool operator==(const HostPort&) const = default;
};
// HOST:PORT or [V6]:PORT; kInvalidArgument otherwise. HOST is not resolved here.
Result<HostPort> parse_host_port(std::string_view text);
// True for 127.0.0.0/8, ::1 and "localhost".
bool is_loopback(const HostPort& address);
// True for 0.0.0.0, :: and "*".
bool is_wildcard(const HostPort& address);

}  // namespace akv
