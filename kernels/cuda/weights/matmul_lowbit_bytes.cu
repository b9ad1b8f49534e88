#include "kernels/cuda/weights/matmul_lowbit-inl.h"

namespace akv::kernels::cuda {

template void run_lowbit<TensorType::kQ8_0>(const LowbitArgs& args, int products,
                                            DeviceStream stream);
template void run_lowbit<TensorType::kQ6_K>(const LowbitArgs& args, int products,
                                            DeviceStream stream);

}  // namespace akv::kernels::cuda
