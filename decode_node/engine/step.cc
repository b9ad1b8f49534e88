#include "decode_node/engine/step.h"

#include "common/base/check.h"

namespace akv::decode {

Status StepEngine::park(PromptState&) {
  AKV_CHECK(has_own_memory());
  return make_error(Code::kUnsupported, "this engine does not park states");
}

Status StepEngine::restore(PromptState&) {
  AKV_CHECK(has_own_memory());
  return make_error(Code::kUnsupported, "this engine does not park states");
}

}  // namespace akv::decode
