#define AKV_LANES 8
#include "kernels/cpu/codec_simd_impl.h"

namespace akv::kernels {

const CodecSimd& codec_simd_avx2() { return kTable; }

}  // namespace akv::kernels
