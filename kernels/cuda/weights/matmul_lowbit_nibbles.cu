#include "kernels/cuda/weights/matmul_lowbit-inl.h"

namespace akv::kernels::cuda {

template void run_lowbit<TensorType::kQ4_0>(const LowbitArgs& args, int products,
                                            DeviceStream stream);
template void run_lowbit<TensorType::kQ4_1>(const LowbitArgs& args, int products,
                                            DeviceStream stream);
template void run_lowbit<TensorType::kQ5_0>(const LowbitArgs& args, int products,
                                            DeviceStream stream);
template void run_lowbit<TensorType::kQ5_1>(const LowbitArgs& args, int products,
                                            DeviceStream stream);

}  // namespace akv::kernels::cuda
