// The engine that a configuration asks for.
#pragma once

#include <memory>

#include "common/base/result.h"
#include "common/model/model.h"
#include "prefill_node/config.h"
#include "prefill_node/engine/prompt_engine.h"

namespace akv::prefill {

// Errors are of start-up: they name the flag, what it got and what it takes.
Result<std::unique_ptr<PromptEngine>> make_engine(const Config& config,
                                                  std::shared_ptr<const model::Model> model);

}  // namespace akv::prefill
