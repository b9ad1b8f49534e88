// For builds without NCCL's header.
#include "transport/nccl/nccl.h"

namespace akv::transport {

Result<std::shared_ptr<Nccl>> load_nccl(int /*ordinal*/) {
  return make_error(Code::kUnsupported, "this build has no NCCL");
}

}  // namespace akv::transport
