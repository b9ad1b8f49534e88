// A prompt through the layers, each finished layer compressed into a record: what the scheduler
// asks of a device, whichever it is.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "common/base/result.h"
#include "common/kv/plan.h"
#include "common/model/config.h"

namespace akv::prefill {

// A prompt between layers: its hidden states, wherever its engine keeps them. Owned by the
// scheduler; it must not outlive the engine that began it.
class Prompt {
 public:
  virtual ~Prompt() = default;
  int64_t tokens() const { return tokens_; }
  int next_layer() const { return next_layer_; }
  virtual uint64_t bytes() const = 0;  // held between layers

 protected:
  int64_t tokens_ = 0;
  int next_layer_ = 0;
};

// A record that is complete in host memory.
struct FinishedRecord {
  double compress_ms = 0;  // that the codec took
  // Of an engine with memory of its own that was asked to keep it: the same bytes there, complete.
  std::shared_ptr<const std::byte> device;
};

// Where a finished layer goes. `plan` null: no state is wanted of this prompt.
struct RecordOrder {
  const kv::StatePlan* plan = nullptr;
  uint64_t state_checksum = 0;  // of the state's header
  std::span<std::byte> bytes;   // plan->record_bytes[layer], host memory
  // Hand the record over in the engine's own memory too, where there is room: it will be sent from
  // there.
  bool keep_on_device = false;
  // Called on the engine's thread: once the record is complete in `bytes`, or with why it never
  // will be where run_layer() had returned before that was known. Keeps the bytes and the plan
  // alive: it may come after the prompt has ended.
  std::function<void(Result<FinishedRecord> record)> done;
};

struct LayerOrder {
  RecordOrder record;
  // Of the last layer: called with the logits [vocab] of the last position before the layer is
  // compressed, so that the first token does not wait for the codec. It may overwrite them; an
  // error of it ends the call.
  std::function<Status(std::span<float> logits)> on_logits;
};

// kInvalidArgument: empty, or an id outside the vocabulary (the message names its index);
// kContextLength: longer than the model's context.
Status check_prompt(std::span<const int32_t> ids, const model::ModelConfig& config);

// Used by one thread (the engine's). Prompts may interleave at layer borders.
class PromptEngine {
 public:
  virtual ~PromptEngine() = default;

  // Embeds the prompt. `window`: of the last positions, whose queries the codec will observe; that
  // of the plan, 0 where no anchorkv state is wanted. Errors of check_prompt(); kResourceExhausted:
  // the device's memory is short.
  virtual Result<std::unique_ptr<Prompt>> begin(std::span<const int32_t> ids, int window) = 0;

  // Runs layer prompt.next_layer() over all rows and compresses it. Records are done in order, each
  // at the latest during the next call for any prompt, and all of a prompt before the call of its
  // last layer returns. kCancelled as soon as `cancelled` is seen (between chunks): the record is
  // never done then. Other errors are of this prompt alone (kDataLoss: its keys or values are not
  // finite; kResourceExhausted: the device's memory is short) while health() is ok.
  // REQUIRES: next_layer() < layers.
  virtual Status run_layer(Prompt& prompt, const std::atomic<bool>& cancelled,
                           const LayerOrder& order) = 0;

  // What a prompt in work takes at its widest, bytes of the memory that it is computed in: hidden
  // states, and one layer's dense K/V.
  virtual uint64_t work_bytes(int64_t tokens) const = 0;
  // [thread-safe] Dense K/V bytes alive now: 4 S H D while a layer runs, else 0.
  virtual uint64_t dense_kv_bytes() const = 0;
  // [thread-safe] Not ok once the device is lost: nothing can be computed any more.
  virtual Status health() const { return {}; }
};

}  // namespace akv::prefill
