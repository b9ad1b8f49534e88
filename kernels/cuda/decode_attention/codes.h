// Codes to levels, as pairs of 16-bit floats.
#pragma once

#include "kernels/codec.h"
#include "kernels/cuda/decode_attention/registers.h"

namespace akv::kernels::cuda::decode {

// The 2-bit levels of keys as signed bytes for prmt, 120 to 36 where the codec has 3.336 to 1, in
// the unit that fits both best; and the steps that a query's largest coordinate has at least.
inline constexpr float kKeyCodeUnit = 0.844f * kLevels2[3] / 120 + 0.156f * kLevels2[2] / 36;
inline constexpr float kCodeQuerySteps = 32000.0f;
inline constexpr uint32_t kKeyCodeLevels = 0x7824dc88u;
// Levels of the four codes in the nibbles of `codes`, as bytes.
AKV_DEVICE uint32_t key_levels(uint32_t codes) { return prmt(kKeyCodeLevels, 0, codes); }

// The four 2-bit levels, 16 bits each, for prmt.
struct LevelPool {
  uint32_t low;
  uint32_t high;
};
AKV_DEVICE LevelPool key_pool() {
  constexpr float kInner = kLevels2[2], kOuter = kLevels2[3];
  return {pack_half2(-kOuter, -kInner), pack_half2(kInner, kOuter)};
}
// On the value side levels are bf16 in units of the outer 2-bit level, which leaves the two-bit
// ones all but exact: 1 and 0.29979. The weights take the unit.
inline constexpr float kValueUnit = kLevels2[3];
AKV_DEVICE LevelPool value_pool() {
  constexpr float kInner = kLevels2[2] / kLevels2[3];
  return {pack_bf16x2(-1.0f, -kInner), pack_bf16x2(kInner, 1.0f)};
}

// The 4-bit levels as words {half of the key side, bf16 of the value side}: 16 words in 16 banks,
// so that lanes with any codes read them without conflict. Thread i < 16 makes word i.
AKV_DEVICE uint32_t level_word(int i) {
  constexpr float kLevels[8] = {kLevels4[8],  kLevels4[9],  kLevels4[10], kLevels4[11],
                                kLevels4[12], kLevels4[13], kLevels4[14], kLevels4[15]};
  const int magnitude = i < 8 ? 7 - i : i - 8;
  float level = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) level = k == magnitude ? kLevels[k] : level;
  if (i < 8) level = -level;
  return low_pair(pack_half2(level, 0.0f), pack_bf16x2(level / kValueUnit, 0.0f));
}

// Bytes 0 and 1 of the selector pick two levels of the pool, bytes 2 and 3 (shifted down) two more.
// `codes` holds one 2-bit code in each byte.
AKV_DEVICE uint32_t selectors(uint32_t codes) { return codes * 0x22u + 0x10101010u; }
AKV_DEVICE uint32_t pick(LevelPool pool, uint32_t selector) {
  return prmt(pool.low, pool.high, selector);
}

}  // namespace akv::kernels::cuda::decode
