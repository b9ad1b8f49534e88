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

const FlashKernel& flash_kernel(bool) { return ops().flash; }

}  // namespace akv::kernels
