#include "kernels/cuda/decode_attention/kernel.h"

namespace akv::kernels::cuda::decode {

KernelTable head64(int part_heads) {
  return part_heads == 4 ? table_of<64, 4>() : table_of<64, 8>();
}

}  // namespace akv::kernels::cuda::decode
