#include "kernels/cuda/attention/flash_prefill-inl.h"

namespace akv::kernels::cuda {

template void run_flash_prefill<64>(FlashPrefillArgs args, DeviceStream stream);

}  // namespace akv::kernels::cuda
