// A small model on both backends, and the two halves of a request on either: what tests of the
// device engines compare.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/app/engine_device.h"
#include "common/base/worker_pool.h"
#include "common/kv/state.h"
#include "decode_node/engine/step.h"
#include "prefill_node/engine/prompt_engine.h"
#include "tests/model/small_model.h"

namespace akv::gpu {

// A prompt's state as the engines of a prefill node left it, and its first token.
struct Prefilled {
  kv::StatePlan plan;
  kv::StateBuffer buffer;
  std::vector<float> logits;                             // of the last position
  int32_t first_token = -1;                              // greedy
  std::vector<std::shared_ptr<const std::byte>> device;  // records that stayed there, of layer 0 on
};

std::vector<int32_t> made_up_ids(const model::ModelConfig& config, int64_t count, int seed);
int32_t greedy(const std::vector<float>& logits);

model::SamplingParams greedy_params();

class EngineRig {
 public:
  explicit EngineRig(const model::SmallModel& small = {});

  const model::Model& model() const { return *model_; }
  std::unique_ptr<prefill::PromptEngine> prompt_engine(bool on_gpu, int64_t chunk_rows = 32);
  std::unique_ptr<decode::StepEngine> step_engine(bool on_gpu, bool graphs = true);
  // codec "anchorkv" (theta 0.5, window 8) or "none".
  kv::StatePlan plan(int64_t tokens, const std::string& codec) const;
  Result<Prefilled> prefill(prefill::PromptEngine& engine, const std::vector<int32_t>& ids,
                            const std::string& codec, bool keep_on_device = false);
  // Status of opening the GPU; the rest needs it ok for on_gpu.
  const Result<EngineDevice>& device() const { return device_; }

 private:
  std::shared_ptr<const model::Model> model_;
  Result<EngineDevice> device_;
  std::shared_ptr<WorkerPool> workers_;
};

// One stream behind a landed prompt, drawn token by token.
class Answer {
 public:
  Answer(decode::StepEngine& engine, const model::Model& model, const Prefilled& prompt,
         model::SamplingParams params = greedy_params());
  // Of a state that an engine has adopted already.
  Answer(decode::StepEngine& engine, const model::Model& model,
         std::unique_ptr<decode::PromptState> state, int64_t prompt_tokens, int32_t first_token,
         model::SamplingParams params = greedy_params());

  decode::StepEntry next();
  // Takes what the step drew, on either side.
  void take(const decode::StepEntry& entry);
  const std::vector<int32_t>& tokens() const { return tokens_; }
  // One more token, by a step of its own.
  void step(decode::StepEngine& engine);
  decode::PromptState& state() { return *state_; }

 private:
  std::unique_ptr<decode::PromptState> state_;
  decode::Suffix suffix_;
  model::SamplingParams params_;
  model::SamplerState sampler_;
  model::SamplerScratch scratch_;
  int64_t prompt_tokens_;
  int64_t vocab_;
  std::vector<int32_t> tokens_;  // the first one from prefill
};

// `steps` more tokens of all prompts in one batch.
std::vector<std::vector<int32_t>> answers(decode::StepEngine& engine, const model::Model& model,
                                          const std::vector<const Prefilled*>& prompts, int steps);

}  // namespace akv::gpu
