#include "decode_node/engine/device_step.h"

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "common/base/check.h"

namespace akv::decode {
namespace {

namespace cuda = kernels::cuda;

constexpr uint64_t kAlignment = 256;
constexpr uint64_t kPinnedBytes = uint64_t{2} << 30;
constexpr int64_t kLeastTokens = 1024;  // limits grow from here by doubling
constexpr int64_t kMaxSampledVocab = 1 << 18;

const DeviceState& state_of(const StepEntry& entry) {
  return *static_cast<const DeviceState*>(entry.prompt);
}

int64_t doubled_to(int64_t at_least, int64_t from) {
  int64_t value = std::max<int64_t>(from, 1);
  while (value < at_least) value *= 2;
  return value;
}

int64_t wanted_rows(const StepEntry& entry) {
  if (entry.tokens.empty() || entry.want == StepEntry::Want::kNone) return 0;
  return entry.want == StepEntry::Want::kAll ? static_cast<int64_t>(entry.tokens.size()) : 1;
}

// Whether the device's sampler knows everything that this draw asks for.
bool drawn_on_device(const StepEntry& entry, int64_t vocab) {
  if (entry.want != StepEntry::Want::kLast || !entry.draw || vocab > kMaxSampledVocab) return false;
  const model::SamplingParams& p = *entry.draw->params;
  return p.logprobs < 0 && p.repetition_penalty == 1.0f && p.presence_penalty == 0.0f &&
         p.frequency_penalty == 0.0f && p.logit_bias.empty() &&
         entry.draw->state->forbidden().empty();
}

cuda::SampleRule rule_of(const Draw& draw) {
  const model::SamplingParams& p = *draw.params;
  return {.seed = p.seed,
          .position = draw.position,
          .temperature = p.temperature,
          .top_p = p.top_p,
          .min_p = p.min_p,
          .top_k = p.top_k};
}

}  // namespace

uint64_t DeviceStepEngine::Inputs::carve(int64_t max_rows, std::byte* base) {
  uint64_t size = 0;
  const auto take = [&](auto*& pointer, int64_t count) {
    using T = std::remove_reference_t<decltype(*pointer)>;
    if (base != nullptr) pointer = reinterpret_cast<T*>(base + size);
    const auto bytes =
        static_cast<uint64_t>(count) * sizeof(T);  // NOLINT(bugprone-sizeof-expression)
    size += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  take(ids, max_rows);
  take(positions, max_rows);
  take(pages, max_rows);
  take(slots, max_rows);
  take(wanted, max_rows);
  take(rules, max_rows);
  return size;
}

Result<std::unique_ptr<StepEngine>> DeviceStepEngine::create(
    std::shared_ptr<const model::DeviceWeights> weights, const DeviceStepOptions& options) {
  const Device device = weights->device();
  AKV_ASSIGN_OR_RETURN(auto stream, Stream::create(device));
  AKV_ASSIGN_OR_RETURN(auto pool, DevicePool::create(device, device.memory_bytes));
  AKV_ASSIGN_OR_RETURN(auto pinned, PinnedPool::create(device, kPinnedBytes));
  AKV_ASSIGN_OR_RETURN(auto landings, LandingThread::create(device));
  std::unique_ptr<DeviceStepEngine> engine(
      new DeviceStepEngine(std::move(weights), options, std::move(stream), std::move(pool),
                           std::move(pinned), std::move(landings)));
  AKV_RETURN_IF_ERROR(engine->allocate());
  return std::unique_ptr<StepEngine>(std::move(engine));
}

DeviceStepEngine::~DeviceStepEngine() {
  landings_->stop();
  (void)stream_.synchronize().ok();
}

Status DeviceStepEngine::allocate() {
  const model::ModelConfig& config = weights_->config();
  const int64_t rows = options_.max_rows;
  AKV_ASSIGN_OR_RETURN(graph_, model::DeviceStepGraph::create(weights_, rows, stream_.view()));
  const uint64_t x_bytes = static_cast<uint64_t>(rows * config.d_model) * sizeof(float);
  const uint64_t q_bytes = static_cast<uint64_t>(rows * config.q_dim()) * sizeof(float);
  AKV_ASSIGN_OR_RETURN(activations_, pool_->allocate(x_bytes + 2 * q_bytes, stream_));
  x_ = reinterpret_cast<float*>(activations_.data());
  q_ = x_ + rows * config.d_model;
  attn_ = q_ + rows * config.q_dim();
  const uint64_t input_bytes = Inputs{}.carve(rows, nullptr);
  AKV_ASSIGN_OR_RETURN(device_inputs_, pool_->allocate(input_bytes, stream_));
  AKV_ASSIGN_OR_RETURN(host_inputs_, pinned_->allocate(input_bytes));
  on_device_.carve(rows, device_inputs_.data());
  on_host_.carve(rows, host_inputs_.data());
  const auto token_bytes = static_cast<uint64_t>(rows) * sizeof(int32_t);
  AKV_ASSIGN_OR_RETURN(host_tokens_, pinned_->allocate(token_bytes));
  return ensure_logits(1);
}

// Room for the logits of so many rows, and for what the sampler needs beside them. Captured steps
// hold the old addresses.
Status DeviceStepEngine::ensure_logits(int64_t rows) {
  const auto vocab = static_cast<uint64_t>(weights_->config().vocab);
  const uint64_t bytes = static_cast<uint64_t>(rows) * vocab * sizeof(float);
  if (logits_.size() >= bytes) return {};
  const uint64_t tokens = (static_cast<uint64_t>(rows) * sizeof(int32_t) + 255) / 256 * 256;
  const uint64_t scratch = cuda::sample_scratch_bytes(rows, static_cast<int64_t>(vocab));
  AKV_RETURN_IF_ERROR(stream_.synchronize());
  AKV_ASSIGN_OR_RETURN(auto logits, pool_->allocate(bytes, stream_));
  AKV_ASSIGN_OR_RETURN(auto sampled, pool_->allocate(tokens + scratch, stream_));
  AKV_ASSIGN_OR_RETURN(auto host, pinned_->allocate(bytes));
  logits_ = std::move(logits);
  sampled_ = std::move(sampled);
  host_logits_ = std::move(host);
  for (auto& [padded, bucket] : buckets_) bucket.graph.reset();
  return {};
}

Result<std::shared_ptr<LandingMemory>> DeviceStepEngine::begin_landing(const kv::StatePlan& plan,
                                                                       std::span<std::byte> host) {
  AKV_RETURN_IF_ERROR(health());
  AKV_ASSIGN_OR_RETURN(auto landing, DeviceLanding::create(landings_, *pool_, plan, host));
  return std::shared_ptr<LandingMemory>(std::move(landing));
}

Result<std::unique_ptr<PromptState>> DeviceStepEngine::adopt(const LandedState& landed) {
  AKV_RETURN_IF_ERROR(health());
  if (landed.landing != nullptr) {
    auto there = static_cast<DeviceLanding*>(landed.landing)->take();
    there->used_by(stream_);
    return std::unique_ptr<PromptState>(std::move(there));
  }
  AKV_ASSIGN_OR_RETURN(auto state, DeviceState::create(*pool_, landed, stream_));
  return std::unique_ptr<PromptState>(std::move(state));
}

Status DeviceStepEngine::park(PromptState& state) {
  return static_cast<DeviceState&>(state).park(stream_);
}

Status DeviceStepEngine::restore(PromptState& state) {
  return static_cast<DeviceState&>(state).restore(*pool_, stream_);
}

Status DeviceStepEngine::check(std::span<const StepEntry> entries) const {
  int64_t rows = 0;
  for (const StepEntry& entry : entries) {
    for (const int32_t id : entry.tokens) {
      if (id >= 0 && id < weights_->config().vocab) continue;
      return make_error(
          Code::kInvalidArgument,
          fmt::format("token {} is outside the vocabulary of {}", id, weights_->config().vocab));
    }
    rows += static_cast<int64_t>(entry.tokens.size());
  }
  AKV_CHECK(rows <= options_.max_rows);
  return {};
}

Status DeviceStepEngine::forward(std::span<StepEntry> entries) {
  AKV_RETURN_IF_ERROR(health());
  AKV_RETURN_IF_ERROR(use_device(weights_->device()));
  AKV_RETURN_IF_ERROR(check(entries));
  int64_t rows = 0;
  wanted_ = 0;
  for (StepEntry& entry : entries) {
    entry.logits = nullptr;
    entry.sampled.reset();
    rows += static_cast<int64_t>(entry.tokens.size());
    wanted_ += wanted_rows(entry);
  }
  if (rows == 0) return {};
  const int64_t padded = doubled_to(rows, 1);
  // A step that wants the logits of every row is the steady state; padding is wanted with it.
  const bool steady = wanted_ == rows && padded <= options_.max_rows;
  AKV_RETURN_IF_ERROR(ensure_logits(steady ? padded : wanted_));
  Bucket* bucket = nullptr;
  AKV_RETURN_IF_ERROR(ensure_bucket(std::min(padded, options_.max_rows), entries, bucket));
  gather(entries, padded);
  AKV_RETURN_IF_ERROR(upload(*bucket));
  if (steady) {
    AKV_RETURN_IF_ERROR(run(*bucket, padded));
  } else {
    AKV_RETURN_IF_ERROR(enqueue(*bucket, rows, wanted_));
  }
  AKV_RETURN_IF_ERROR(collect(entries));
  for (StepEntry& entry : entries) {
    entry.suffix->set_tokens(entry.suffix->tokens() + static_cast<int64_t>(entry.tokens.size()));
  }
  return {};
}

// The attention's launch for so many rows. Its limits only grow, by doubling; a larger plan or
// scratch moves, and captured steps are captured anew.
Status DeviceStepEngine::ensure_bucket(int64_t rows, std::span<const StepEntry> entries,
                                       Bucket*& bucket) {
  cuda::DecodeAttentionLimits need = limits_;
  for (const StepEntry& entry : entries) {
    const DeviceState& state = state_of(entry);
    AKV_CHECK(!state.parked());
    const int64_t suffix = entry.suffix->tokens() + static_cast<int64_t>(entry.tokens.size());
    need.prompt_tokens = std::max(need.prompt_tokens, state.tokens());
    need.suffix_tokens = std::max(need.suffix_tokens, suffix);
    need.anchors = std::max(need.anchors, state.anchors());
  }
  const bool grown = need.prompt_tokens > limits_.prompt_tokens ||
                     need.suffix_tokens > limits_.suffix_tokens || need.anchors > limits_.anchors;
  if (grown) {
    limits_.prompt_tokens = doubled_to(need.prompt_tokens, kLeastTokens);
    limits_.suffix_tokens = doubled_to(need.suffix_tokens, kLeastTokens);
    limits_.anchors = static_cast<int>(doubled_to(need.anchors, 64));
    AKV_RETURN_IF_ERROR(stream_.synchronize());
    buckets_.clear();
  }
  const auto found = buckets_.find(rows);
  if (found != buckets_.end()) {
    bucket = &found->second;
    return {};
  }
  const model::ModelConfig& config = weights_->config();
  Bucket fresh;
  cuda::DecodeAttentionLimits limits = limits_;
  limits.rows = static_cast<int>(rows);
  fresh.attention = cuda::decode_attention_config(
      {.heads = config.heads, .kv_heads = config.kv_heads, .head_dim = config.head_dim}, limits);
  const auto plan_bytes = static_cast<uint64_t>(fresh.attention.plan_bytes);
  const auto scratch_bytes = static_cast<uint64_t>(fresh.attention.scratch_bytes);
  if (plan_.size() < plan_bytes || attention_scratch_.size() < scratch_bytes) {
    AKV_RETURN_IF_ERROR(stream_.synchronize());
    for (auto& [padded, other] : buckets_) other.graph.reset();
    if (plan_.size() < plan_bytes) {
      AKV_ASSIGN_OR_RETURN(auto plan, pool_->allocate(plan_bytes, stream_));
      AKV_ASSIGN_OR_RETURN(auto host_plan, pinned_->allocate(plan_bytes));
      plan_ = std::move(plan);
      host_plan_ = std::move(host_plan);
    }
    if (attention_scratch_.size() < scratch_bytes) {
      AKV_ASSIGN_OR_RETURN(auto scratch, pool_->allocate(scratch_bytes, stream_));
      attention_scratch_ = std::move(scratch);
    }
  }
  bucket = &buckets_.emplace(rows, std::move(fresh)).first->second;
  return {};
}

// Writes the step's inputs into pinned memory. Rows of padding have no slot: their keys go nowhere,
// and nothing reads what they compute.
void DeviceStepEngine::gather(std::span<const StepEntry> entries, int64_t padded) {
  rows_.clear();
  int64_t row = 0;
  int64_t wanted = 0;
  for (const StepEntry& entry : entries) {
    const DeviceState& state = state_of(entry);
    const auto count = static_cast<int64_t>(entry.tokens.size());
    const auto pages = entry.suffix->page_list();
    for (int64_t i = 0; i < count; ++i, ++row) {
      const int64_t token = entry.suffix->tokens() + i;
      on_host_.ids[row] = entry.tokens[static_cast<size_t>(i)];
      on_host_.positions[row] = entry.position + i;
      on_host_.pages[row] =
          const_cast<bf16*>(pages[static_cast<size_t>(token / kernels::kSuffixPageTokens)]);
      on_host_.slots[row] = static_cast<int32_t>(token % kernels::kSuffixPageTokens);
      rows_.push_back({.prompt = state.compressed(),
                       .dense_prompt = state.dense(),
                       .prompt_tokens = static_cast<int32_t>(state.tokens()),
                       .window = state.window(),
                       .window_drop = entry.window_drop,
                       .anchors = state.anchors(),
                       .pages = pages.data(),
                       .suffix_tokens = static_cast<int32_t>(token + 1)});
      const bool last = i + 1 == count;
      const bool want =
          entry.want == StepEntry::Want::kAll || (entry.want == StepEntry::Want::kLast && last);
      if (!want) continue;
      on_host_.rules[wanted] = entry.draw ? rule_of(*entry.draw) : cuda::SampleRule{};
      on_host_.wanted[wanted++] = static_cast<int32_t>(row);
    }
  }
  for (int64_t r = row; r < std::min(padded, options_.max_rows); ++r) {
    on_host_.ids[r] = 0;
    on_host_.positions[r] = 0;
    on_host_.pages[r] = on_host_.pages[0];
    on_host_.slots[r] = -1;
  }
  for (int64_t r = wanted; r < std::min(padded, options_.max_rows); ++r) {
    on_host_.wanted[r] = 0;
    on_host_.rules[r] = {};
  }
}

Status DeviceStepEngine::upload(const Bucket& bucket) {
  const int64_t plan_bytes =
      cuda::build_decode_attention_plan(bucket.attention, rows_, host_plan_.data());
  AKV_RETURN_IF_ERROR(stream_.copy_to_device(device_inputs_.data(),
                                             host_inputs_.bytes().first(device_inputs_.size())));
  return stream_.copy_to_device(plan_.data(),
                                host_plan_.bytes().first(static_cast<size_t>(plan_bytes)));
}

// The whole step, capturable: what changes between steps is in the inputs and the plan.
Status DeviceStepEngine::enqueue(const Bucket& bucket, int64_t rows, int64_t wanted) {
  const model::ModelConfig& config = weights_->config();
  const model::DeviceStepRows at{
      .positions = on_device_.positions,
      .pages = on_device_.pages,
      .slots = on_device_.slots,
      .layer_stride = int64_t{2} * kernels::kSuffixPageTokens * config.kv_dim()};
  graph_->embed(on_device_.ids, rows, x_);
  for (int layer = 0; layer < config.layers; ++layer) {
    graph_->qkv(layer, x_, rows, at, q_);
    const cuda::DecodeAttentionArgs args{.plan = plan_.data(),
                                         .layer = layer,
                                         .suffix_offset = layer * at.layer_stride,
                                         .q = q_,
                                         .out = attn_,
                                         .rope = weights_->rope(),
                                         .scratch = attention_scratch_.data()};
    cuda::decode_attention(bucket.attention, args, stream_.view());
    graph_->attn_out(layer, attn_, rows, x_);
    graph_->mlp(layer, rows, x_);
  }
  if (wanted == 0) return {};
  auto* logits = logits_.as<float>();
  graph_->logits(x_, on_device_.wanted, wanted, logits);
  if (config.vocab > kMaxSampledVocab) return {};
  const int64_t capacity = static_cast<int64_t>(logits_.size() / sizeof(float)) / config.vocab;
  const int64_t token_bytes = (capacity * int64_t{sizeof(int32_t)} + 255) / 256 * 256;
  cuda::sample(logits, wanted, config.vocab, on_device_.rules, sampled_.as<int32_t>(),
               sampled_.data() + token_bytes, stream_.view());
  return {};
}

// Replays the captured step of this size, or captures it at its second run: kernels are loaded and
// set up by the first, which a capture must not do.
Status DeviceStepEngine::run(Bucket& bucket, int64_t padded) {
  if (!options_.graphs || bucket.uncapturable) return enqueue(bucket, padded, padded);
  if (!bucket.warm) {
    bucket.warm = true;
    return enqueue(bucket, padded, padded);
  }
  if (!bucket.graph) {
    auto captured = Graph::capture(stream_, [&] { return enqueue(bucket, padded, padded); });
    if (!captured.ok()) {
      AKV_RETURN_IF_ERROR(health());
      bucket.uncapturable = true;
      return enqueue(bucket, padded, padded);
    }
    bucket.graph.emplace(std::move(*captured));
  }
  ++graph_steps_;
  return bucket.graph->launch(stream_);
}

// Brings the tokens back, and the logits of those that the host has to draw.
Status DeviceStepEngine::collect(std::span<StepEntry> entries) {
  AKV_RETURN_IF_ERROR(stream_.check());
  if (wanted_ == 0) return stream_.synchronize();
  const int64_t vocab = weights_->config().vocab;
  auto* tokens = host_tokens_.as<int32_t>().data();
  if (vocab <= kMaxSampledVocab) {
    AKV_RETURN_IF_ERROR(
        stream_.download(std::span(tokens, static_cast<size_t>(wanted_)), sampled_.as<int32_t>()));
  }
  const auto fetch = [&](StepEntry& entry, int64_t row, int64_t count) {
    entry.logits = host_logits_.as<float>().data() + row * vocab;
    return stream_.download(std::span(entry.logits, static_cast<size_t>(count * vocab)),
                            logits_.as<float>() + row * vocab);
  };
  int64_t row = 0;
  for (StepEntry& entry : entries) {
    const int64_t count = wanted_rows(entry);
    if (count > 0 && !drawn_on_device(entry, vocab)) {
      AKV_RETURN_IF_ERROR(fetch(entry, row, count));
    }
    row += count;
  }
  AKV_RETURN_IF_ERROR(stream_.synchronize());
  row = 0;
  for (StepEntry& entry : entries) {
    const int64_t count = wanted_rows(entry);
    if (count > 0 && entry.logits == nullptr) {
      if (tokens[row] >= 0) {
        entry.sampled.emplace();
        entry.sampled->token = tokens[row];
      } else {
        // Not finite: the host's sampler says so.
        AKV_RETURN_IF_ERROR(fetch(entry, row, count));
        AKV_RETURN_IF_ERROR(stream_.synchronize());
      }
    }
    row += count;
  }
  return {};
}

Result<std::unique_ptr<StepEngine>> make_device_engine(
    std::shared_ptr<const model::DeviceWeights> weights, const DeviceStepOptions& options) {
  return DeviceStepEngine::create(std::move(weights), options);
}

}  // namespace akv::decode
