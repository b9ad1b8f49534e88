// decode_attention's inner loops for one instruction set; see attention_kernels.h.
#define AKV_SIMD portable
#include "kernels/cpu/attention_simd_portable.h"
// Order matters: each builds on the one before.
#include "kernels/cpu/attention_residual-inl.h"

#include "kernels/cpu/attention_compressed-inl.h"

#include "kernels/cpu/attention_dense-inl.h"

namespace akv::kernels::attention {

const AttentionKernels& portable_attention_kernels() {
  static constexpr AttentionKernels kKernels{portable::compressed, portable::dense};
  return kKernels;
}

}  // namespace akv::kernels::attention
