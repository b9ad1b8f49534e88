// Random identifiers: request ids, transfer ids, one-time tokens.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace akv {

// 128 random bits from the kernel. Equality of secrets: use equal_constant_time.
struct Id128 {
  uint64_t hi = 0;
  uint64_t lo = 0;
  auto operator<=>(const Id128&) const = default;
  bool is_zero() const { return hi == 0 && lo == 0; }
  // 32 lower-case hex digits.
  std::string hex() const;
  static std::optional<Id128> from_hex(std::string_view text);
  static Id128 random();
};

bool equal_constant_time(const Id128& a, const Id128& b);
bool equal_constant_time(std::string_view a, std::string_view b);

}  // namespace akv

template <>
struct std::hash<akv::Id128> {
  size_t operator()(const akv::Id128& id) const noexcept {
    return id.hi ^ (id.lo * 0x9e3779b97f4a7c15ull);
  }
};
