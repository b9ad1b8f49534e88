#define AKV_LANES 16
#include "kernels/cpu/codec_simd_impl.h"

namespace akv::kernels {

const CodecSimd& codec_simd_avx512() { return kTable; }

}  // namespace akv::kernels
