// Every PTX instruction that our kernels use, one function each. Under nvcc the instruction; on the
// CPU shim of the tests its emulation (cuda_shim_ptx.h). sm_80 is enough for all of them.
//
// Shared addresses are generic pointers into shared memory. Collective functions (ldmatrix, mma)
// are called by all 32 lanes of a warp.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#ifndef __CUDACC__
#include <cuda_shim_ptx.h>
#endif

namespace akv::kernels::cuda {

#ifdef __CUDACC__

__device__ __forceinline__ uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Copies Bytes (4, 8 or 16) from global to shared memory behind the thread's back; both addresses
// are aligned to Bytes. Where !valid, zeros are written and `global` is not read. 16 bytes go past
// L1. Done only after the thread's cp_async_wait; other threads see it after a barrier on top.
template <int Bytes>
__device__ __forceinline__ void cp_async(void* shared, const void* global, bool valid = true) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16);
  const int take = valid ? Bytes : 0;
  if constexpr (Bytes == 16) {
    asm volatile(
        "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
        "l"(global), "r"(take)
        : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(shared)),
                 "l"(global), "n"(Bytes), "r"(take)
                 : "memory");
  }
}

// Closes the group of this thread's copies since the last commit.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most Pending of this thread's youngest groups are under way.
template <int Pending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// Loads 8 x 8 matrices of 16-bit elements. `row` of lanes 8m .. 8m + 7 points to the rows (16
// bytes, aligned to 16) of matrix m. Lane l receives in r[m] the elements (l / 4, 2 (l % 4)) and
// its right neighbour; the _trans forms those of the transposed matrix.
__device__ __forceinline__ void ldmatrix_x1(uint32_t (&r)[1], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
               : "=r"(r[0])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x2(uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x1_trans(uint32_t (&r)[1], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
               : "=r"(r[0])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// d += a b, d f32 [16, 8], with g = lane / 4 and t = lane % 4:
//   d[0], d[1] (g, 2t), (g, 2t + 1); d[2], d[3] the same of row g + 8.
// a [16, 16] 16-bit, b [16, 8] 16-bit; a register holds two elements, the first in the low half:
//   a[0] (g, 2t..), a[1] (g + 8, 2t..), a[2] (g, 2t + 8..), a[3] (g + 8, 2t + 8..);
//   b[0] (2t.., g), b[1] (2t + 8.., g): pairs along k.
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4],
                                         const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4],
                                        const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// d += a b in integers, exact; a [16, 32] and b [32, 8] of signed bytes, four neighbours along k in
// a register, d as above:
//   a[0] (g, 4t..), a[1] (g + 8, 4t..), a[2] (g, 4t + 16..), a[3] (g + 8, 4t + 16..);
//   b[0] (4t.., g), b[1] (4t + 16.., g).
__device__ __forceinline__ void mma_s8(int32_t (&d)[4], const uint32_t (&a)[4],
                                       const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// d += a b with f32 bits read as tf32 (10 mantissa bits); a [16, 8], b [8, 8], d as above:
//   a[0] (g, t), a[1] (g + 8, t), a[2] (g, t + 4), a[3] (g + 8, t + 4); b[0] (t, g), b[1] (t + 4,
//   g).
__device__ __forceinline__ void mma_tf32(float (&d)[4], const uint32_t (&a)[4],
                                         const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// f32 to the nearest tf32, as the bits that mma_tf32 takes.
__device__ __forceinline__ uint32_t to_tf32(float x) {
  uint32_t r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return r;
}

// Four bytes of the eight of {b, a}, chosen by the nibbles of selector (bit 3: the byte's sign).
__device__ __forceinline__ uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
  return r;
}

// Any function of three bits, Lut = f(0xf0, 0xcc, 0xaa), on 32 bits at once.
template <int Lut>
__device__ __forceinline__ uint32_t lop3(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(r) : "r"(a), "r"(b), "r"(c), "n"(Lut));
  return r;
}

// 2^x within 2 ulp, 1/x within 1 ulp; subnormals are zero. 2^-inf = 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ __forceinline__ float rcp_approx(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// Loads of data that the kernel reads once and nobody writes meanwhile: past L1, with a 128-byte
// prefetch into L2. Aligned to their size.
__device__ __forceinline__ uint4 load_stream_16(const void* global) {
  uint4 r;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "l"(global));
  return r;
}
__device__ __forceinline__ uint2 load_stream_8(const void* global) {
  uint2 r;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];"
               : "=r"(r.x), "=r"(r.y)
               : "l"(global));
  return r;
}
__device__ __forceinline__ uint32_t load_stream_4(const void* global) {
  uint32_t r;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.u32 %0, [%1];" : "=r"(r) : "l"(global));
  return r;
}

// x, as a number of which the compiler knows nothing: what is computed from it cannot be kept in
// registers from before.
__device__ __forceinline__ int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// threadIdx.x, asked for anew: a kernel that is short of registers keeps none for it.
__device__ __forceinline__ int thread_index() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

// Asks for the 128 bytes around an address of global memory to come to L2.
__device__ __forceinline__ void prefetch_l2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

// Barrier Id (1 to 15; 0 is __syncthreads) over `threads` threads of the block, whole warps.
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

#else

inline int opaque(int x) { return x; }
inline int thread_index() { return static_cast<int>(threadIdx.x); }
inline void prefetch_l2(const void*) {}

using cuda_shim::cp_async;
using cuda_shim::cp_async_commit;
using cuda_shim::cp_async_wait;
using cuda_shim::exp2_approx;
using cuda_shim::ldmatrix_x1;
using cuda_shim::ldmatrix_x1_trans;
using cuda_shim::ldmatrix_x2;
using cuda_shim::ldmatrix_x2_trans;
using cuda_shim::ldmatrix_x4;
using cuda_shim::ldmatrix_x4_trans;
using cuda_shim::load_stream_16;
using cuda_shim::load_stream_4;
using cuda_shim::load_stream_8;
using cuda_shim::lop3;
using cuda_shim::mma_bf16;
using cuda_shim::mma_f16;
using cuda_shim::mma_s8;
using cuda_shim::mma_tf32;
using cuda_shim::named_barrier;
using cuda_shim::prmt;
using cuda_shim::rcp_approx;
using cuda_shim::to_tf32;

#endif

}  // namespace akv::kernels::cuda
