// What is linked where CMake found no headers of cuDNN.
#include <stdexcept>

#include "tests/bench/cudnn_sdpa.h"

namespace akv::bench {

std::unique_ptr<CudnnSdpa> make_cudnn_sdpa(const SdpaProblem&) {
  throw std::runtime_error("built without the headers of cuDNN or of its frontend");
}

std::string cudnn_version() { return {}; }

}  // namespace akv::bench
