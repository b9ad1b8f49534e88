#include "common/model/philox.h"

namespace akv::model {

std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> c, std::array<uint32_t, 2> key) {
  constexpr uint64_t kM0 = 0xD2511F53, kM1 = 0xCD9E8D57;  // multipliers
  constexpr uint32_t kW0 = 0x9E3779B9, kW1 = 0xBB67AE85;  // Weyl increments of the key
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = kM0 * c[0], p1 = kM1 * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += kW0;
    key[1] += kW1;
  }
  return c;
}

double philox_uniform(uint64_t seed, uint64_t position) {
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  const auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
  const auto r = philox4x32_10({low(position), high(position), 0, 0}, {low(seed), high(seed)});
  const uint64_t bits = (static_cast<uint64_t>(r[1]) << 32 | r[0]) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

}  // namespace akv::model
