#include "kernels/cuda/weights/matmul_lowbit-inl.h"

namespace akv::kernels::cuda {

template void run_lowbit<TensorType::kF32>(const LowbitArgs& args, int products,
                                           DeviceStream stream);
template void run_lowbit<TensorType::kF16>(const LowbitArgs& args, int products,
                                           DeviceStream stream);
template void run_lowbit<TensorType::kBF16>(const LowbitArgs& args, int products,
                                            DeviceStream stream);

}  // namespace akv::kernels::cuda
