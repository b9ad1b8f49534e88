#include "kernels/cuda/decode_attention/kernel.h"

namespace akv::kernels::cuda::decode {

KernelTable head96(int /*part_heads*/) { return table_of<96, 8>(); }

}  // namespace akv::kernels::cuda::decode
