// decode_attention's inner loops for one instruction set; see attention_kernels.h.
#define AKV_SIMD avx512vnni
#include "kernels/cpu/attention_simd_avx512.h"
// Order matters: each builds on the one before.
#include "kernels/cpu/attention_residual-inl.h"

#include "kernels/cpu/attention_compressed-inl.h"

#include "kernels/cpu/attention_dense-inl.h"

namespace akv::kernels::attention {

const AttentionKernels& avx512vnni_attention_kernels() {
  static constexpr AttentionKernels kKernels{avx512vnni::compressed, avx512vnni::dense};
  return kKernels;
}

}  // namespace akv::kernels::attention
