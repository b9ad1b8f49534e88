#define AKV_LANES 4
#include "kernels/cpu/codec_simd_impl.h"

namespace akv::kernels {

const CodecSimd& codec_simd_portable() { return kTable; }

}  // namespace akv::kernels
