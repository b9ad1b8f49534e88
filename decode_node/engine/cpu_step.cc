#include "decode_node/engine/cpu_step.h"

#include <algorithm>
#include <cstring>

namespace akv::decode {
namespace {

constexpr int64_t kBlockRows = 16;  // of one low-bit product: weights are read once per block

struct HostState : PromptState {
  std::shared_ptr<const void> owner;  // of the bytes
  kv::StateView view;
};

const kv::StateView& view_of(const StepEntry& entry) {
  return static_cast<const HostState*>(entry.prompt)->view;
}

}  // namespace

CpuStepEngine::CpuStepEngine(std::shared_ptr<const model::Model> model, const Parallel& parallel)
    : model_(std::move(model)),
      parallel_(parallel),
      graph_(model_,
             model::GraphOptions{.path = model::WeightPath::kLowBit, .max_rows = kBlockRows},
             parallel) {}

Result<std::unique_ptr<PromptState>> CpuStepEngine::adopt(const LandedState& landed) {
  auto state = std::make_unique<HostState>();
  state->owner = landed.owner;
  state->view = kv::StateView::create(landed.bytes, *landed.plan);
  return std::unique_ptr<PromptState>(std::move(state));
}

Status CpuStepEngine::forward(std::span<StepEntry> entries) {
  gather(entries);
  if (ids_.empty()) return {};
  AKV_RETURN_IF_ERROR(graph_.embed(ids_, x_.data()));
  for (int layer = 0; layer < model_->config().layers; ++layer) run_layer(layer, entries);
  for (StepEntry& entry : entries) {
    entry.suffix->set_tokens(entry.suffix->tokens() + static_cast<int64_t>(entry.tokens.size()));
  }
  head(entries);
  return {};
}

void CpuStepEngine::gather(std::span<StepEntry> entries) {
  ids_.clear();
  positions_.clear();
  for (const StepEntry& entry : entries) {
    for (size_t i = 0; i < entry.tokens.size(); ++i) {
      ids_.push_back(entry.tokens[i]);
      positions_.push_back(entry.position + static_cast<int64_t>(i));
    }
  }
  const auto& config = model_->config();
  const size_t rows = ids_.size();
  x_.resize(rows * static_cast<size_t>(config.d_model));
  q_.resize(rows * static_cast<size_t>(config.q_dim()));
  attn_.resize(q_.size());
  k_.resize(rows * static_cast<size_t>(config.kv_dim()));
  v_.resize(k_.size());
  attention_rows_.resize(rows);
}

void CpuStepEngine::run_layer(int layer, std::span<StepEntry> entries) {
  const auto& config = model_->config();
  const auto rows = static_cast<int64_t>(ids_.size());
  for (int64_t begin = 0; begin < rows; begin += kBlockRows) {
    const int64_t count = std::min(kBlockRows, rows - begin);
    graph_.qkv(
        layer, x_.data() + begin * config.d_model,
        std::span(positions_).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
        model::QkvRows{.q = q_.data() + begin * config.q_dim(),
                       .k_rot = k_.data() + begin * config.kv_dim(),
                       .v = v_.data() + begin * config.kv_dim()});
  }
  store_kv(layer, entries);
  kernels::decode_attention(attention_rows_, config.heads, model_->rope(), attention_scratch_,
                            parallel_);
  for (int64_t begin = 0; begin < rows; begin += kBlockRows) {
    const int64_t count = std::min(kBlockRows, rows - begin);
    float* x = x_.data() + begin * config.d_model;
    graph_.attn_out(layer, attn_.data() + begin * config.q_dim(), count, x);
    graph_.mlp(layer, count, x);
  }
}

// Puts the new rows' K/V into their suffixes and describes each row's attention: a row sees the
// prompt, the suffix before it and itself.
void CpuStepEngine::store_kv(int layer, std::span<StepEntry> entries) {
  const auto& config = model_->config();
  const size_t kv_bytes = static_cast<size_t>(config.kv_dim()) * sizeof(bf16);
  int64_t row = 0;
  for (const StepEntry& entry : entries) {
    for (size_t i = 0; i < entry.tokens.size(); ++i, ++row) {
      const int64_t token = entry.suffix->tokens() + static_cast<int64_t>(i);
      std::memcpy(entry.suffix->k_row(layer, token), k_.data() + row * config.kv_dim(), kv_bytes);
      std::memcpy(entry.suffix->v_row(layer, token), v_.data() + row * config.kv_dim(), kv_bytes);
      auto& attention = attention_rows_[static_cast<size_t>(row)];
      attention = {};
      attention.prompt = view_of(entry).compressed(layer);
      attention.dense_prompt = view_of(entry).dense(layer);
      attention.window_drop = entry.window_drop;
      attention.suffix = entry.suffix->view(layer, token + 1);
      attention.q = q_.data() + row * config.q_dim();
      attention.out = attn_.data() + row * config.q_dim();
    }
  }
}

// All wanted rows share each pass over the head matrix.
void CpuStepEngine::head(std::span<StepEntry> entries) {
  const auto vocab = static_cast<size_t>(model_->config().vocab);
  logit_rows_.clear();
  int64_t row = 0;
  for (const StepEntry& entry : entries) {
    const auto count = static_cast<int64_t>(entry.tokens.size());
    if (entry.want == StepEntry::Want::kAll) {
      for (int64_t i = 0; i < count; ++i) logit_rows_.push_back(row + i);
    } else if (entry.want == StepEntry::Want::kLast && count > 0) {
      logit_rows_.push_back(row + count - 1);
    }
    row += count;
  }
  logits_.resize(logit_rows_.size() * vocab);
  for (size_t begin = 0; begin < logit_rows_.size(); begin += kBlockRows) {
    const size_t count = std::min<size_t>(kBlockRows, logit_rows_.size() - begin);
    graph_.logits(x_.data(), std::span(logit_rows_).subspan(begin, count),
                  logits_.data() + begin * vocab);
  }
  float* next = logits_.data();
  for (StepEntry& entry : entries) {
    const bool any = entry.want != StepEntry::Want::kNone && !entry.tokens.empty();
    entry.logits = any ? next : nullptr;
    if (any) next += (entry.want == StepEntry::Want::kAll ? entry.tokens.size() : 1) * vocab;
  }
}

uint64_t CpuStepEngine::scratch_bytes() const {
  return graph_.scratch_bytes() + static_cast<uint64_t>(attention_scratch_.working_bytes());
}

}  // namespace akv::decode
