#include <cstdint>

#define HWY_COMPILE_ONLY_STATIC
#define HWY_DISABLE_PCLMUL_AES
#include <hwy/highway.h>

#include "kernels/cpu/table.h"

namespace akv::kernels {
namespace {
#include "kernels/cpu/elementwise-inl.h"
#include "kernels/cpu/flash-inl.h"
static_assert(HWY_MAX_BYTES == 64, "Highway took another instruction set");
}  // namespace

const OpTable kAvx512Ops = {
    .name = "avx512",
    .rmsnorm_row = rmsnorm_row,
    .silu_mul = silu_mul,
    .add = add,
    .rotate_half = rotate_half,
    .rotate_interleaved = rotate_interleaved,
    .to_bf16 = to_bf16,
    .to_float = to_float,
    .flash = {384, flash_bytes<F32Policy>, flash_run<F32Policy>},
};

}  // namespace akv::kernels
