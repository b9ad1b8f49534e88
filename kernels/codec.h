// Constants and small definitions of the AnchorKV codec that encoder, attention and tests share:
// codebooks, the log8 coefficient, the rotation U and the seeded generator. No state, no
// allocation.
#pragma once

#include <cstdint>

#include "kernels/types.h"

namespace akv::kernels {

// Lloyd-Max levels of a unit Gaussian, in code order, and the thresholds between them. A coordinate
// on a threshold takes the upper code.
inline constexpr float kLevels2[4] = {-1.5104f, -0.4528f, 0.4528f, 1.5104f};
inline constexpr float kThresholds2[3] = {-0.9816f, 0.0f, 0.9816f};
inline constexpr float kLevels4[16] = {-2.7326f, -2.0690f, -1.6181f, -1.2562f, -0.9424f, -0.6568f,
                                       -0.3881f, -0.1284f, 0.1284f,  0.3881f,  0.6568f,  0.9424f,
                                       1.2562f,  1.6181f,  2.0690f,  2.7326f};
// The midpoints of the 4-bit levels.
inline constexpr float kThresholds4[15] = {-2.4008f,  -1.84355f, -1.43715f, -1.0993f, -0.7996f,
                                           -0.52245f, -0.25825f, 0.0f,      0.25825f, 0.52245f,
                                           0.7996f,   1.0993f,   1.43715f,  1.84355f, 2.4008f};
// Distortion that a residual of 2 and of 4 bits leaves (relative energy), as the ranking uses it.
inline constexpr double kEta2 = 0.117482;
inline constexpr double kEta4 = 0.009497;

// Head dimensions the codec takes: multiples of 16 up to this.
inline constexpr int kMaxHeadDim = 256;
inline constexpr bool head_dim_supported(int head_dim) {
  return head_dim >= 16 && head_dim <= kMaxHeadDim && head_dim % 16 == 0;
}

// Block size B of the rotation: the largest power of two that divides D (D itself for a power of
// two; 16, 32, 16 for 80, 96, 112).
inline constexpr int hadamard_block(int head_dim) { return head_dim & -head_dim; }

// SplitMix64: the increment is added before mixing, so the first draw of seed s mixes s + gamma.
class SplitMix64 {
 public:
  explicit constexpr SplitMix64(uint64_t seed) : state_(seed) {}
  constexpr uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

// The diagonal of U: signs[j] = -1 where bit 63 of draw j is set, else 1. signs: [head_dim].
void rotation_signs(uint64_t seed, int head_dim, float* signs);

// In place, x: [head_dim]: x := U x and x := U^T x (its inverse). Natural (Sylvester) order, each
// block of hadamard_block(head_dim) coordinates scaled by B^-1/2.
void rotate(const float* signs, int head_dim, float* x);
void rotate_back(const float* signs, int head_dim, float* x);

// The 256 values of the log8 coefficient: bit 7 the sign, n = bits 0..6; 0 for n = 0, else
// 2^((n-1)/16 - 5).
const float* log8_table();
// The code of x: n = floor(16 (log2|x| + 5) + 1/2) + 1, clamped to 127 above and to 0 (zero, sign
// bit 0) below 1.
uint8_t log8_encode(double x);

}  // namespace akv::kernels
