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

// On the value side levels are halves in units of the inner 2-bit level times 1.50488. The 2-bit
// ones share their low byte, 5: 1.50488 and 5.01953 (3.3355 to 1, where the codec has 3.3357), so
// that prmt looks up the high bytes of four codes at once.
inline constexpr float kValueUnit = kLevels2[2] / 1.5048828125f;
inline constexpr uint32_t kValueHighBytes = 0x453ebec5u;
inline constexpr uint32_t kValueLowBytes = 0x00050005u;
// Codes a, b, c, d in the nibbles of `codes`: the pairs of levels (a, c) and (b, d).
AKV_DEVICE void value_levels(uint32_t codes, uint32_t* ac, uint32_t* bd) {
  const uint32_t high = prmt(kValueHighBytes, 0, codes);
  *ac = prmt(high, kValueLowBytes, 0x2404);
  *bd = (high & 0xff00ff00u) | kValueLowBytes;
}

// The 4-bit levels as words {half of the key side, half of the value side}: 16 words in 16 banks,
// so that lanes with any codes read them without conflict. Thread i < 16 makes word i.
AKV_DEVICE uint32_t level_word(int i) {
  constexpr float kLevels[8] = {kLevels4[8],  kLevels4[9],  kLevels4[10], kLevels4[11],
                                kLevels4[12], kLevels4[13], kLevels4[14], kLevels4[15]};
  const int magnitude = i < 8 ? 7 - i : i - 8;
  float level = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) level = k == magnitude ? kLevels[k] : level;
  if (i < 8) level = -level;
  return pack_half2(level, level * (1.0f / kValueUnit));
}

}  // namespace akv::kernels::cuda::decode
