#include "kernels/cuda/decode_attention/kernel.h"

namespace akv::kernels::cuda::decode {

KernelTable head128(int part_heads) {
  return part_heads == 4 ? table_of<128, 4>() : table_of<128, 8>();
}

}  // namespace akv::kernels::cuda::decode
