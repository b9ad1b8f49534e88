// The counter-based generator of common/model/philox.h in device code.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace akv::kernels::cuda {

// The uniform draw in [0, 1) (53 bits) of this seed and position: Philox4x32-10.
__device__ inline double philox_uniform(uint64_t seed, uint64_t position) {
  constexpr uint64_t kM0 = 0xD2511F53, kM1 = 0xCD9E8D57;  // multipliers
  constexpr uint32_t kW0 = 0x9E3779B9, kW1 = 0xBB67AE85;  // Weyl increments of the key
  uint32_t c[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0};
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = kM0 * c[0], p1 = kM1 * c[2];
    const uint32_t c1 = c[1], c3 = c[3];
    c[0] = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ key[0];
    c[1] = static_cast<uint32_t>(p1);
    c[2] = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ key[1];
    c[3] = static_cast<uint32_t>(p0);
    key[0] += kW0;
    key[1] += kW1;
  }
  const uint64_t bits = (static_cast<uint64_t>(c[1]) << 32 | c[0]) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

}  // namespace akv::kernels::cuda
