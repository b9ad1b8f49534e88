#include "common/base/ids.h"

#include <sys/random.h>

#include <fmt/format.h>

#include "common/base/check.h"

namespace akv {

std::string Id128::hex() const { return fmt::format("{:016x}{:016x}", hi, lo); }

std::optional<Id128> Id128::from_hex(std::string_view text) {
  if (text.size() != 32) return std::nullopt;
  uint64_t words[2] = {0, 0};
  for (size_t i = 0; i < 32; ++i) {
    const char c = text[i];
    uint64_t digit;
    if (c >= '0' && c <= '9') {
      digit = static_cast<uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<uint64_t>(c - 'a' + 10);
    } else {
      return std::nullopt;
    }
    words[i / 16] = (words[i / 16] << 4) | digit;
  }
  return Id128{words[0], words[1]};
}

Id128 Id128::random() {
  Id128 id;
  AKV_CHECK(getrandom(&id, sizeof id, 0) == static_cast<ssize_t>(sizeof id));
  return id;
}

bool equal_constant_time(const Id128& a, const Id128& b) {
  return ((a.hi ^ b.hi) | (a.lo ^ b.lo)) == 0;
}

bool equal_constant_time(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0u : 1u;
  for (size_t i = 0; i < a.size(); ++i) {
    const char other = b.empty() ? '\0' : b[i % b.size()];
    difference |= static_cast<unsigned char>(a[i] ^ other);
  }
  return difference == 0;
}

}  // namespace akv
