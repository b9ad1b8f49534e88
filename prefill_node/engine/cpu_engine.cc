#include "prefill_node/engine/cpu_engine.h"

#include "common/base/check.h"
#include "common/base/clock.h"

namespace akv::prefill {

CpuPromptEngine::CpuPromptEngine(std::shared_ptr<const model::Model> model,
                                 const StreamOptions& options, int threads)
    : model_(model),
      pool_(threads),
      stream_(std::move(model), options, parallel_view(pool_)),
      logits_(static_cast<size_t>(model_->config().vocab)) {}

Result<std::unique_ptr<Prompt>> CpuPromptEngine::begin(std::span<const int32_t> ids, int window) {
  AKV_ASSIGN_OR_RETURN(auto prompt, stream_.begin(ids, window));
  return std::unique_ptr<Prompt>(std::move(prompt));
}

Status CpuPromptEngine::run_layer(Prompt& prompt, const std::atomic<bool>& cancelled,
                                  const LayerOrder& order) {
  auto& work = static_cast<HostPrompt&>(prompt);
  const auto on_layer = [&](const LayerKv& layer) { return compress(layer, order.record); };
  if (work.next_layer() + 1 < model_->config().layers) {
    return stream_.run_layer(work, cancelled, on_layer);
  }
  return stream_.run_layer(work, cancelled, on_layer, [&]() -> Status {
    if (!order.on_logits) return {};
    stream_.last_logits(work, logits_.data());
    return order.on_logits(logits_);
  });
}

Status CpuPromptEngine::compress(const LayerKv& layer, const RecordOrder& order) {
  if (order.plan == nullptr) return {};
  const TimePoint start = SteadyClock::now();
  kv::LayerInput input{.layer = layer.layer, .k_pre = layer.k_pre, .v = layer.v};
  input.rope = &model_->rope();
  if (order.plan->codec == kv::Codec::kAnchorKv) {
    AKV_CHECK(layer.window == order.plan->options.window);
    const auto values = static_cast<size_t>(layer.window * model_->config().q_dim());
    q_window_.resize(values);
    for (size_t i = 0; i < values; ++i) q_window_[i] = to_bf16(layer.q_window[i]);
    input.q_obs = q_window_.data();
  }
  AKV_RETURN_IF_ERROR(kv::compress_layer(input, *order.plan, order.state_checksum, order.bytes,
                                         workspace_, parallel_view(pool_)));
  order.done(FinishedRecord{.compress_ms = ms_since(start), .device = {}});
  return {};
}

// Hidden states, and one layer's dense K/V.
uint64_t CpuPromptEngine::work_bytes(int64_t tokens) const {
  const auto kv = static_cast<uint64_t>(model_->config().kv_dim());
  return stream_.prompt_bytes(tokens) + 4 * static_cast<uint64_t>(tokens) * kv;
}

}  // namespace akv::prefill
