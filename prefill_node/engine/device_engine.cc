#include "prefill_node/engine/device_engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/model/wire.h"
#include "kernels/flash_prefill.h"
#include "kernels/packed_rows.h"
#include "prefill_node/engine/make_device_engine.h"
#include "proto/state.h"

namespace akv::prefill {
namespace {

constexpr uint64_t kPinnedBytes = uint64_t{2} << 30;
// Records on their way out, at most: this, and this part of the device's memory.
constexpr uint64_t kExportBytes = uint64_t{2} << 30;
constexpr uint64_t kExportShare = 16;

// The state that a prompt of so many tokens most likely asks for, to size the codec's scratch.
uint64_t usual_encoder_bytes(const model::ModelConfig& config, int64_t tokens) {
  kv::PlanRequest request;
  request.theta = kv::auto_theta(tokens);
  const auto plan = kv::plan_state(model::kv_shape(config), tokens, request);
  return plan.ok() ? kv::DeviceEncoder::memory_bytes(*plan) : 0;
}

}  // namespace

// Bytes of so many hidden states at rest (kernels/packed_rows.h): values [S, d], then scales [S].
uint64_t hidden_values_bytes(const model::ModelConfig& config, int64_t tokens) {
  const auto values = static_cast<uint64_t>(tokens * config.d_model) * sizeof(uint16_t);
  return (values + 255) / 256 * 256;
}
uint64_t hidden_bytes(const model::ModelConfig& config, int64_t tokens) {
  return hidden_values_bytes(config, tokens) + static_cast<uint64_t>(tokens) * sizeof(float);
}

// Hidden states at rest, on the device.
class DevicePromptEngine::WorkingPrompt : public Prompt {
 public:
  WorkingPrompt(DevicePromptEngine& engine, int64_t tokens, int window, DeviceBuffer hidden,
                std::shared_ptr<DeviceLayerMemory> layer)
      : engine_(engine), window_(window), hidden_(std::move(hidden)), layer_(std::move(layer)) {
    tokens_ = tokens;
    // Rows of each part stay aligned for vector loads.
    elements_ = (tokens * engine.weights_->config().kv_dim() + 127) / 128 * 128;
  }
  // The last record must not wait for a next prompt.
  ~WorkingPrompt() override {
    (void)engine_.settle().ok();
    engine_.dense_kv_bytes_.store(0, std::memory_order_relaxed);
  }

  uint64_t bytes() const override { return hidden_.size(); }
  uint16_t* hidden() { return reinterpret_cast<uint16_t*>(hidden_.data()); }
  float* scales() {
    const auto values = hidden_values_bytes(engine_.weights_->config(), tokens_);
    return reinterpret_cast<float*>(hidden_.data() + values);
  }
  DeviceLayerMemory& layer() { return *layer_; }
  void layer_finished() { ++next_layer_; }

  bf16* k_pre() { return reinterpret_cast<bf16*>(layer_->kv.data()); }
  bf16* k_rot() { return k_pre() + elements_; }
  bf16* v() { return k_rot() + elements_; }
  bf16* q_window() { return v() + elements_; }
  int64_t window() const { return window_; }
  uint64_t kv_bytes() const {
    const int64_t queries = window_ * engine_.weights_->config().q_dim();
    return static_cast<uint64_t>(3 * elements_ + queries) * sizeof(bf16);
  }

 private:
  DevicePromptEngine& engine_;
  int64_t window_ = 0;
  DeviceBuffer hidden_;
  std::shared_ptr<DeviceLayerMemory> layer_;
  int64_t elements_ = 0;  // of k_pre, k_rot and v each
};

Result<std::unique_ptr<PromptEngine>> DevicePromptEngine::create(
    std::shared_ptr<const model::DeviceWeights> weights, const StreamOptions& options) {
  const Device device = weights->device();
  AKV_ASSIGN_OR_RETURN(auto compute, Stream::create(device));
  AKV_ASSIGN_OR_RETURN(auto copy, Stream::create(device));
  AKV_ASSIGN_OR_RETURN(auto layer_done, Event::create(device));
  AKV_ASSIGN_OR_RETURN(auto encode_begin, Event::create(device, /*timing=*/true));
  AKV_ASSIGN_OR_RETURN(auto encoded, Event::create(device, /*timing=*/true));
  AKV_ASSIGN_OR_RETURN(auto copied, Event::create(device));
  std::unique_ptr<DevicePromptEngine> engine(new DevicePromptEngine(
      std::move(weights), options, std::move(compute), std::move(copy),
      {std::move(layer_done), std::move(encode_begin), std::move(encoded), std::move(copied)}));
  AKV_RETURN_IF_ERROR(engine->allocate());
  return std::unique_ptr<PromptEngine>(std::move(engine));
}

DevicePromptEngine::DevicePromptEngine(std::shared_ptr<const model::DeviceWeights> weights,
                                       const StreamOptions& options, Stream compute, Stream copy,
                                       Events events)
    : weights_(std::move(weights)),
      options_(options),
      compute_(std::move(compute)),
      copy_(std::move(copy)),
      events_(std::move(events)) {}

DevicePromptEngine::~DevicePromptEngine() {
  (void)copy_.synchronize().ok();
  (void)compute_.synchronize().ok();
}

Status DevicePromptEngine::allocate() {
  const Device& device = weights_->device();
  const model::ModelConfig& config = weights_->config();
  AKV_ASSIGN_OR_RETURN(pool_, DevicePool::create(device, device.memory_bytes));
  AKV_ASSIGN_OR_RETURN(pinned_, PinnedPool::create(device, kPinnedBytes));
  AKV_ASSIGN_OR_RETURN(
      graph_, model::DevicePrefillGraph::create(weights_, options_.chunk_rows, compute_.view()));
  const auto rows = static_cast<uint64_t>(options_.chunk_rows * config.q_dim());
  const auto vocab = static_cast<uint64_t>(config.vocab);
  const auto aligned = [](uint64_t bytes) { return (bytes + 255) / 256 * 256; };
  const uint64_t q_at =
      aligned(static_cast<uint64_t>(options_.chunk_rows * config.d_model) * sizeof(float));
  const uint64_t logits_at = q_at + aligned(2 * rows * sizeof(bf16));
  AKV_ASSIGN_OR_RETURN(chunk_, DeviceBuffer::allocate(device, logits_at + vocab * sizeof(float)));
  x_ = reinterpret_cast<float*>(chunk_.data());
  q_ = reinterpret_cast<bf16*>(chunk_.data() + q_at);
  attn_ = q_ + rows;
  logits_ = reinterpret_cast<float*>(chunk_.data() + logits_at);
  AKV_ASSIGN_OR_RETURN(host_logits_, pinned_->allocate(vocab * sizeof(float)));
  AKV_ASSIGN_OR_RETURN(seal_, pinned_->allocate(proto::kRecordHeaderBytes));
  exports_ = ExportPool::create(device, std::min(kExportBytes, device.memory_bytes / kExportShare));
  return {};
}

uint64_t DevicePromptEngine::work_bytes(int64_t tokens) const {
  const model::ModelConfig& config = weights_->config();
  const auto s = static_cast<uint64_t>(tokens);
  const uint64_t kv = 3 * s * static_cast<uint64_t>(config.kv_dim()) * sizeof(bf16);
  return hidden_bytes(config, tokens) + kv + usual_encoder_bytes(config, tokens);
}

Result<std::unique_ptr<Prompt>> DevicePromptEngine::begin(std::span<const int32_t> ids,
                                                          int window) {
  const model::ModelConfig& config = weights_->config();
  AKV_RETURN_IF_ERROR(health());
  AKV_RETURN_IF_ERROR(use_device(weights_->device()));
  AKV_RETURN_IF_ERROR(check_prompt(ids, config));
  const size_t id_bytes = ids.size() * sizeof(int32_t);
  const auto tokens = static_cast<int64_t>(ids.size());
  AKV_ASSIGN_OR_RETURN(auto hidden, pool_->allocate(hidden_bytes(config, tokens), compute_));
  AKV_ASSIGN_OR_RETURN(auto device_ids, pool_->allocate(id_bytes, compute_));
  auto layer = layer_memory_.lock();
  if (!layer) {
    layer = std::make_shared<DeviceLayerMemory>();
    layer_memory_ = layer;
  }
  AKV_RETURN_IF_ERROR(compute_.upload(device_ids.as<int32_t>(), ids));
  auto prompt = std::make_unique<WorkingPrompt>(*this, tokens,
                                                static_cast<int>(std::min<int64_t>(window, tokens)),
                                                std::move(hidden), std::move(layer));
  for (int64_t first = 0; first < tokens; first += options_.chunk_rows) {
    const int64_t rows = std::min(options_.chunk_rows, tokens - first);
    graph_->embed(device_ids.as<int32_t>() + first, rows, x_);
    rest(*prompt, first, rows);
  }
  AKV_RETURN_IF_ERROR(compute_.check());
  AKV_RETURN_IF_ERROR(compute_.synchronize());  // the ids are the caller's
  return std::unique_ptr<Prompt>(std::move(prompt));
}

// Memory of the layer in work: it grows to the largest prompt in work and never while it is read.
Status DevicePromptEngine::reserve_layer(WorkingPrompt& prompt, const RecordOrder& record) {
  const uint64_t encoder_bytes =
      record.plan == nullptr ? 0 : kv::DeviceEncoder::memory_bytes(*record.plan);
  const auto grow = [&](DeviceBuffer& buffer, uint64_t bytes) -> Status {
    if (buffer.size() >= bytes) return {};
    AKV_RETURN_IF_ERROR(settle());
    buffer = DeviceBuffer();  // in the stream's order, behind the layer that reads it
    AKV_ASSIGN_OR_RETURN(buffer, pool_->allocate(bytes, compute_));
    return {};
  };
  AKV_RETURN_IF_ERROR(grow(prompt.layer().kv, prompt.kv_bytes()));
  return grow(prompt.layer().encoder, encoder_bytes);
}

Status DevicePromptEngine::run_layer(Prompt& base, const std::atomic<bool>& cancelled,
                                     const LayerOrder& order) {
  auto& prompt = static_cast<WorkingPrompt&>(base);
  const model::ModelConfig& config = weights_->config();
  const int layer = prompt.next_layer();
  AKV_CHECK(layer < config.layers);
  AKV_RETURN_IF_ERROR(health());
  AKV_RETURN_IF_ERROR(use_device(weights_->device()));
  AKV_RETURN_IF_ERROR(reserve_layer(prompt, order.record));
  const auto kv_values = static_cast<uint64_t>(prompt.tokens() * config.kv_dim());
  dense_kv_bytes_.store(2 * kv_values * sizeof(bf16), std::memory_order_relaxed);
  graph_->prepare_layer(layer);
  for (int64_t begin = 0; begin < prompt.tokens(); begin += options_.chunk_rows) {
    if (cancelled.load(std::memory_order_relaxed)) {
      return make_error(Code::kCancelled, "the prefill was cancelled");
    }
    const int64_t rows = std::min(options_.chunk_rows, prompt.tokens() - begin);
    AKV_RETURN_IF_ERROR(run_chunk(prompt, begin, rows));
  }
  AKV_RETURN_IF_ERROR(compute_.check());
  // The layer before is done by now, or nearly: its record leaves, and the host stays one layer
  // ahead of the device at most.
  AKV_RETURN_IF_ERROR(settle());
  AKV_RETURN_IF_ERROR(events_.layer_done.synchronize());
  const bool last = layer + 1 == config.layers;
  if (last && order.on_logits) AKV_RETURN_IF_ERROR(last_logits(prompt, order));
  prompt.layer_finished();
  if (order.record.plan != nullptr) AKV_RETURN_IF_ERROR(encode(prompt, layer, order.record));
  AKV_RETURN_IF_ERROR(events_.layer_done.record(compute_));
  if (!last) return {};
  AKV_RETURN_IF_ERROR(settle());
  AKV_RETURN_IF_ERROR(compute_.synchronize());
  dense_kv_bytes_.store(0, std::memory_order_relaxed);
  return {};
}

// In the last layer only the last position's hidden state is read afterwards, so earlier rows stop
// at their K/V and, inside the window, their queries.
Status DevicePromptEngine::run_chunk(WorkingPrompt& prompt, int64_t begin, int64_t rows) {
  const model::ModelConfig& config = weights_->config();
  const int layer = prompt.next_layer();
  const int64_t offset = begin * config.kv_dim();
  float* const x = x_;
  kernels::cuda::unpack_rows(prompt.hidden() + begin * config.d_model, prompt.scales() + begin,
                             rows, config.d_model, x, compute_.view());
  graph_->qkv(layer, x, rows, begin,
              model::DeviceQkv{.q = q_,
                               .k_pre = prompt.k_pre() + offset,
                               .k_rot = prompt.k_rot() + offset,
                               .v = prompt.v() + offset});
  AKV_RETURN_IF_ERROR(keep_window(prompt, begin, rows));
  const bool last_layer = layer + 1 == config.layers;
  const bool last_chunk = begin + rows == prompt.tokens();
  if (last_layer && !last_chunk) return {};
  const int64_t skip = last_layer ? rows - 1 : 0;
  kernels::cuda::FlashPrefillParams params;
  params.q = q_ + skip * config.q_dim();
  params.k = prompt.k_rot();
  params.v = prompt.v();
  params.out_bf16 = attn_;
  params.rows = rows - skip;
  params.pos0 = begin + skip;
  params.q_heads = config.heads;
  params.kv_heads = config.kv_heads;
  params.head_dim = config.head_dim;
  kernels::cuda::flash_prefill(params, compute_.view());
  graph_->attn_out(layer, attn_, rows - skip, x + skip * config.d_model);
  graph_->mlp(layer, rows - skip, x + skip * config.d_model);
  if (!last_layer) rest(prompt, begin, rows);
  return {};
}

// Puts the chunk's hidden states back.
void DevicePromptEngine::rest(WorkingPrompt& prompt, int64_t begin, int64_t rows) {
  const int64_t d_model = weights_->config().d_model;
  kernels::cuda::pack_rows(x_, rows, d_model, prompt.hidden() + begin * d_model,
                           prompt.scales() + begin, compute_.view());
}

// The window may straddle a chunk border, so its queries are gathered from whichever chunks they
// fall in.
Status DevicePromptEngine::keep_window(WorkingPrompt& prompt, int64_t begin, int64_t rows) {
  const int64_t q_dim = weights_->config().q_dim();
  const int64_t first = prompt.tokens() - prompt.window();
  const int64_t from = std::max(begin, first);
  const int64_t to = begin + rows;
  if (from >= to) return {};
  return compute_.copy_on_device(
      reinterpret_cast<std::byte*>(prompt.q_window() + (from - first) * q_dim),
      reinterpret_cast<const std::byte*>(q_ + (from - begin) * q_dim),
      static_cast<size_t>((to - from) * q_dim) * sizeof(bf16));
}

Status DevicePromptEngine::last_logits(WorkingPrompt& prompt, const LayerOrder& order) {
  const model::ModelConfig& config = weights_->config();
  const auto vocab = static_cast<size_t>(config.vocab);
  const int64_t last_row = (prompt.tokens() - 1) % options_.chunk_rows;  // of the last chunk
  graph_->logits(x_ + last_row * config.d_model, logits_);
  const std::span<float> host = host_logits_.as<float>().first(vocab);
  AKV_RETURN_IF_ERROR(compute_.download(host, logits_));
  AKV_RETURN_IF_ERROR(compute_.check());
  AKV_RETURN_IF_ERROR(compute_.synchronize());
  return order.on_logits(host);
}

// Puts the codec behind the layer, and the record's copy into the other stream. The record before
// has left the encoder's memory: it was settled.
Status DevicePromptEngine::encode(WorkingPrompt& prompt, int layer, const RecordOrder& record) {
  if (staging_.size() < record.bytes.size()) {
    staging_ = PinnedBuffer();
    auto larger = pinned_->allocate(record.bytes.size());
    if (larger.ok()) staging_ = std::move(*larger);
  }
  std::byte* host = staging_.size() > 0 ? staging_.data() : record.bytes.data();
  std::shared_ptr<std::byte> device;
  if (record.keep_on_device) {
    auto block = exports_->allocate(record.bytes.size());
    if (block.ok()) device = std::move(*block);  // else it is sent from the host
  }
  const kv::DeviceEncoder encoder(*record.plan, record.state_checksum,
                                  prompt.layer().encoder.data());
  const kv::DeviceLayerInput input{.layer = layer,
                                   .k_pre = prompt.k_pre(),
                                   .v = prompt.v(),
                                   .q_obs = prompt.q_window(),
                                   .rope = weights_->rope()};
  AKV_RETURN_IF_ERROR(events_.encode_begin.record(compute_));
  AKV_RETURN_IF_ERROR(encoder.encode(input, {}, compute_.view(), device.get()));
  AKV_RETURN_IF_ERROR(events_.encoded.record(compute_));
  AKV_RETURN_IF_ERROR(copy_.wait(events_.encoded));
  const std::byte* built = device ? device.get() : encoder.device_record();
  AKV_RETURN_IF_ERROR(copy_.copy_to_host({host, record.bytes.size()}, built));
  AKV_RETURN_IF_ERROR(events_.copied.record(copy_));
  pending_.emplace(Pending{record, layer, encoder, host, std::move(device)});
  return {};
}

// Waits for the record that is on its way, seals it and hands it over. What is wrong with the
// record is its own prompt's error, which may be another than the one in work.
Status DevicePromptEngine::settle() {
  if (!pending_) return {};
  const Pending pending = *std::exchange(pending_, std::nullopt);
  AKV_RETURN_IF_ERROR(events_.copied.synchronize());
  const std::span<std::byte> record = pending.order.bytes;
  if (pending.host != record.data()) std::memcpy(record.data(), pending.host, record.size());
  const Status sealed = pending.encoder.finish(pending.layer, record);
  if (!sealed.ok()) {
    pending.order.done(sealed.error());
    return {};
  }
  if (pending.device) AKV_RETURN_IF_ERROR(seal_on_device(pending));
  const auto seconds = Event::seconds_between(events_.encode_begin, events_.encoded);
  pending.order.done(FinishedRecord{.compress_ms = seconds.ok() ? 1000 * *seconds : 0.0,
                                    .device = pending.device});
  return {};
}

// The checksum is the host's: only the header's few bytes go back, and the record is complete
// there.
Status DevicePromptEngine::seal_on_device(const Pending& pending) {
  const std::span<std::byte> header = seal_.bytes().first(proto::kRecordHeaderBytes);
  std::memcpy(header.data(), pending.order.bytes.data(), header.size());
  pending.encoder.seal_on_device(header, pending.device.get(), copy_.view());
  AKV_RETURN_IF_ERROR(copy_.check());
  return copy_.synchronize();
}

Result<std::unique_ptr<PromptEngine>> make_device_engine(
    std::shared_ptr<const model::DeviceWeights> weights, const StreamOptions& options) {
  return DevicePromptEngine::create(std::move(weights), options);
}

}  // namespace akv::prefill
