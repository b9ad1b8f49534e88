// Emulation of the instructions of kernels/cuda/ptx.h, under the same names; see there.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include <cuda_shim_block.h>
#include <cuda_shim_math.h>

namespace cuda_shim {

// The copy happens at the wait, and the target is poison until then: a kernel that does not wait,
// or that overwrites what others still read, computes garbage.
void issue_copy(void* shared, const void* global, int bytes, bool valid);
void cp_async_commit();
void wait_copies(int pending);

template <int Bytes>
void cp_async(void* shared, const void* global, bool valid = true) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16);
  issue_copy(shared, global, Bytes, valid);
}
template <int Pending>
void cp_async_wait() {
  wait_copies(Pending);
}

void ldmatrix(uint32_t* r, int matrices, bool transposed, const void* row);
inline void ldmatrix_x1(uint32_t (&r)[1], const void* row) { ldmatrix(r, 1, false, row); }
inline void ldmatrix_x2(uint32_t (&r)[2], const void* row) { ldmatrix(r, 2, false, row); }
inline void ldmatrix_x4(uint32_t (&r)[4], const void* row) { ldmatrix(r, 4, false, row); }
inline void ldmatrix_x1_trans(uint32_t (&r)[1], const void* row) { ldmatrix(r, 1, true, row); }
inline void ldmatrix_x2_trans(uint32_t (&r)[2], const void* row) { ldmatrix(r, 2, true, row); }
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) { ldmatrix(r, 4, true, row); }

void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
void mma_s8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
void mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

// Round to nearest, ties away from zero, to 10 bits of mantissa.
inline uint32_t to_tf32(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return bits;
  return (bits + 0x1000u) & ~uint32_t{0x1fff};
}

inline uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t r = __byte_perm(a, b, selector);
  for (int i = 0; i < 4; ++i) {
    if ((selector >> (4 * i) & 8) == 0) continue;
    const uint32_t sign = (r >> (8 * i + 7) & 1) != 0 ? 0xffu : 0u;
    r = (r & ~(0xffu << (8 * i))) | sign << (8 * i);
  }
  return r;
}

template <int Lut>
uint32_t lop3(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r = 0;
  for (int i = 0; i < 8; ++i) {
    if ((Lut >> i & 1) == 0) continue;
    r |= ((i & 4) != 0 ? a : ~a) & ((i & 2) != 0 ? b : ~b) & ((i & 1) != 0 ? c : ~c);
  }
  return r;
}

inline float flush_subnormal(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}
inline float exp2_approx(float x) { return flush_subnormal(std::exp2(flush_subnormal(x))); }
inline float rcp_approx(float x) { return flush_subnormal(1.0f / flush_subnormal(x)); }

template <class T>
T load_aligned(const void* p) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof(T) != 0)
    fail_kernel("a load is not aligned to its size");
  T r;
  std::memcpy(&r, p, sizeof r);
  return r;
}
inline uint4 load_stream_16(const void* global) { return load_aligned<uint4>(global); }
inline uint2 load_stream_8(const void* global) { return load_aligned<uint2>(global); }
inline uint32_t load_stream_4(const void* global) { return load_aligned<uint32_t>(global); }

}  // namespace cuda_shim
