#include "kernels/cpu/table.h"

#include "kernels/isa.h"

namespace akv::kernels {

const OpTable& ops() {
#if defined(__x86_64__)
  switch (active_isa()) {
    case Isa::kPortable:
      return kPortableOps;
    case Isa::kAvx2:
      return kAvx2Ops;
    case Isa::kAvx512:
    case Isa::kAvx512Bf16:
      return kAvx512Ops;
  }
#endif
  return kPortableOps;
}

const LowbitTable& lowbit() {
#if defined(__x86_64__)
  switch (active_isa()) {
    case Isa::kPortable:
      return kPortableLowbit;
    case Isa::kAvx2:
      return kAvx2Lowbit;
    case Isa::kAvx512:
    case Isa::kAvx512Bf16:
      return kAvx512Lowbit;
  }
#endif
  return kPortableLowbit;
}

const FlashKernel& flash_kernel(bool bf16) {
#if defined(__x86_64__)
  if (bf16 && active_isa() == Isa::kAvx512Bf16) {
    return amx_available() ? kFlashAmx : kFlashAvx512Bf16;
  }
#endif
  return ops().flash;
}

}  // namespace akv::kernels
