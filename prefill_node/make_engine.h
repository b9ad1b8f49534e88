// The engine that a configuration asks for.
#pragma once

#include <memory>

#include "common/app/engine_device.h"
#include "common/base/result.h"
#include "common/model/model.h"
#include "prefill_node/config.h"
#include "prefill_node/engine/prompt_engine.h"

namespace akv::prefill {

// An engine on `device`; kResourceExhausted where its scratch does not fit there.
Result<std::unique_ptr<PromptEngine>> make_engine(const Config& config, const EngineDevice& device,
                                                  std::shared_ptr<const model::Model> model);

}  // namespace akv::prefill
