#include "kernels/cuda/decode_attention/kernel.h"

namespace akv::kernels::cuda::decode {

KernelTable head256(int /*part_heads*/) { return table_of<256, 8>(); }

}  // namespace akv::kernels::cuda::decode
