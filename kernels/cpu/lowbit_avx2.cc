#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/table.h"

namespace akv::kernels {
namespace {
#include "kernels/cpu/decode-inl.h"
#include "kernels/cpu/lowbit-inl.h"
}  // namespace

const LowbitTable kAvx2Lowbit = {dequantize_row, lowbit_tile};

}  // namespace akv::kernels
