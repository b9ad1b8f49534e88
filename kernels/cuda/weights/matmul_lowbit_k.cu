#include "kernels/cuda/weights/matmul_lowbit-inl.h"

namespace akv::kernels::cuda {

template void run_lowbit<TensorType::kQ4_K>(const LowbitArgs& args, int products,
                                            DeviceStream stream);
template void run_lowbit<TensorType::kQ5_K>(const LowbitArgs& args, int products,
                                            DeviceStream stream);

}  // namespace akv::kernels::cuda
