#include "tests/gpu/engine_rig.h"

#include <algorithm>
#include <atomic>
#include <span>

#include "common/base/check.h"
#include "common/model/wire.h"
#include "decode_node/engine/cpu_step.h"
#include "decode_node/engine/make_device_engine.h"
#include "prefill_node/engine/cpu_engine.h"
#include "prefill_node/engine/make_device_engine.h"

namespace akv::gpu {

std::vector<int32_t> made_up_ids(const model::ModelConfig& config, int64_t count, int seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int32_t>((i * 7919 + seed * 104729) % std::min(config.vocab, 256)));
  }
  return ids;
}

int32_t greedy(const std::vector<float>& logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

model::SamplingParams greedy_params() {
  model::SamplingParams params;
  params.temperature = 0;
  return params;
}

EngineRig::EngineRig(const model::SmallModel& small)
    : model_(small.load()),
      device_(choose_engine_device(DevicePreference::kCuda, model_)),
      workers_(std::make_shared<WorkerPool>(2)) {}

std::unique_ptr<prefill::PromptEngine> EngineRig::prompt_engine(bool on_gpu, int64_t chunk_rows) {
  const prefill::StreamOptions options{.chunk_rows = chunk_rows};
  if (!on_gpu) return std::make_unique<prefill::CpuPromptEngine>(model_, options, 2);
  auto engine = prefill::make_device_engine(device_->weights, options);
  AKV_CHECK(engine.ok());
  return std::move(*engine);
}

std::unique_ptr<decode::StepEngine> EngineRig::step_engine(bool on_gpu, bool graphs) {
  if (!on_gpu) return std::make_unique<decode::CpuStepEngine>(model_, parallel_view(*workers_));
  auto engine = decode::make_device_engine(device_->weights, {.max_rows = 64, .graphs = graphs});
  AKV_CHECK(engine.ok());
  return std::move(*engine);
}

kv::StatePlan EngineRig::plan(int64_t tokens, const std::string& codec) const {
  proto::CodecChoice choice;
  choice.codec = codec;
  choice.theta = 0.5;
  choice.min_compress_tokens = 0;
  choice.options = {{"window", "8"}};
  auto plan = model::plan_state(*model_, tokens, choice);
  AKV_CHECK(plan.ok());
  return std::move(*plan);
}

Result<Prefilled> EngineRig::prefill(prefill::PromptEngine& engine, const std::vector<int32_t>& ids,
                                     const std::string& codec, bool keep_on_device) {
  Prefilled done;
  done.plan = plan(static_cast<int64_t>(ids.size()), codec);
  AKV_ASSIGN_OR_RETURN(done.buffer, kv::StateBuffer::create(done.plan));
  const uint64_t checksum = kv::write_header(done.plan, model::state_identity(*model_, ids),
                                             done.buffer.header(done.plan));
  const std::atomic<bool> cancelled{false};
  Status records;
  int finished = 0;
  AKV_ASSIGN_OR_RETURN(auto prompt, engine.begin(ids, done.plan.options.window));
  while (prompt->next_layer() < model_->config().layers) {
    prefill::LayerOrder order;
    const int layer = prompt->next_layer();
    order.record = {.plan = &done.plan,
                    .state_checksum = checksum,
                    .bytes = done.buffer.record(done.plan, layer),
                    .keep_on_device = keep_on_device,
                    .done = {}};
    order.record.done = [&](const Result<prefill::FinishedRecord>& record) {
      if (!record.ok()) records = record.error();
      if (record.ok() && record->device) done.device.push_back(record->device);
      ++finished;
    };
    order.on_logits = [&](std::span<float> logits) -> Status {
      done.logits.assign(logits.begin(), logits.end());
      done.first_token = greedy(done.logits);
      return {};
    };
    AKV_RETURN_IF_ERROR(engine.run_layer(*prompt, cancelled, order));
  }
  AKV_RETURN_IF_ERROR(records);
  AKV_CHECK(finished == model_->config().layers);
  for (int layer = 0; layer < model_->config().layers; ++layer) {
    AKV_RETURN_IF_ERROR(
        kv::verify_record(done.buffer.record(done.plan, layer), layer, done.plan, checksum));
  }
  return done;
}

namespace {

std::unique_ptr<decode::PromptState> adopted(decode::StepEngine& engine, const Prefilled& prompt) {
  auto state = engine.adopt({prompt.buffer.bytes(), &prompt.plan, nullptr});
  AKV_CHECK(state.ok());
  return std::move(*state);
}

}  // namespace

Answer::Answer(decode::StepEngine& engine, const model::Model& model, const Prefilled& prompt,
               model::SamplingParams params)
    : Answer(engine, model, adopted(engine, prompt), prompt.plan.tokens, prompt.first_token,
             std::move(params)) {}

Answer::Answer(decode::StepEngine& engine, const model::Model& model,
               std::unique_ptr<decode::PromptState> state, int64_t prompt_tokens,
               int32_t first_token, model::SamplingParams params)
    : state_(std::move(state)),
      suffix_(decode::PageShape(model.config()), nullptr, engine.pages()),
      params_(std::move(params)),
      sampler_(params_, {}, {}),
      prompt_tokens_(prompt_tokens),
      vocab_(model.config().vocab),
      tokens_{first_token} {
  sampler_.add(first_token);
}

decode::StepEntry Answer::next() {
  AKV_CHECK(suffix_.grow(static_cast<int64_t>(tokens_.size())));
  decode::StepEntry entry;
  entry.prompt = state_.get();
  entry.suffix = &suffix_;
  entry.tokens = std::span(tokens_).subspan(static_cast<size_t>(suffix_.tokens()));
  entry.position = prompt_tokens_ + suffix_.tokens();
  entry.draw =
      decode::Draw{&params_, &sampler_, static_cast<uint64_t>(prompt_tokens_) + tokens_.size()};
  return entry;
}

void Answer::take(const decode::StepEntry& entry) {
  int32_t token = -1;
  if (entry.sampled) {
    token = entry.sampled->token;
  } else {
    const auto drawn = model::sample({entry.logits, static_cast<size_t>(vocab_)}, params_, sampler_,
                                     entry.draw->position, scratch_);
    AKV_CHECK(drawn.ok());
    token = drawn->token;
  }
  tokens_.push_back(token);
  sampler_.add(token);
}

void Answer::step(decode::StepEngine& engine) {
  auto entry = next();
  AKV_CHECK(engine.forward({&entry, 1}).ok());
  take(entry);
}

std::vector<std::vector<int32_t>> answers(decode::StepEngine& engine, const model::Model& model,
                                          const std::vector<const Prefilled*>& prompts, int steps) {
  std::vector<std::unique_ptr<Answer>> streams;
  for (const Prefilled* prompt : prompts) {
    streams.push_back(std::make_unique<Answer>(engine, model, *prompt));
  }
  for (int step = 0; step < steps; ++step) {
    std::vector<decode::StepEntry> entries;
    for (const auto& stream : streams) entries.push_back(stream->next());
    AKV_CHECK(engine.forward(entries).ok());
    for (size_t i = 0; i < streams.size(); ++i) streams[i]->take(entries[i]);
  }
  std::vector<std::vector<int32_t>> tokens;
  for (const auto& stream : streams) tokens.push_back(stream->tokens());
  return tokens;
}

}  // namespace akv::gpu
