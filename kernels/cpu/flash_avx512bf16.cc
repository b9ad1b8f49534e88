#include <immintrin.h>

#include <cstdint>

#define HWY_COMPILE_ONLY_STATIC
#define HWY_DISABLE_PCLMUL_AES
#include <hwy/highway.h>

#include "kernels/cpu/table.h"

namespace akv::kernels {
namespace {
#include "kernels/cpu/elementwise-inl.h"
#include "kernels/cpu/flash-inl.h"
#include "kernels/cpu/flash_bf16-inl.h"
static_assert(HWY_MAX_BYTES == 64, "Highway took another instruction set");

// Pairs of bf16 by vdpbf16ps; the loops are f32's.
struct DotPolicy : Bf16Operands {
  static constexpr int kBlock = 64, kRows = 6, kRowStep = 1, kDimStep = 2;
  static VF load(const Cell* p) { return VF{_mm512_load_ps(reinterpret_cast<const float*>(p))}; }
  static VF broadcast(Cell a) { return hn::BitCast(DF(), hn::Set(DU(), a)); }
  static VF multiply_add(VF a, VF b, VF sum) {
    return VF{_mm512_dpbf16_ps(sum.raw, (__m512bh)a.raw, (__m512bh)b.raw)};
  }
  static void attend(const FlashState<DotPolicy>& st, int64_t row, int64_t rows, int64_t first) {
    attend_group(st, row, rows, first);
  }
};
}  // namespace

const FlashKernel kFlashAvx512Bf16 = {768, flash_bytes<DotPolicy>, flash_run<DotPolicy>};

}  // namespace akv::kernels
