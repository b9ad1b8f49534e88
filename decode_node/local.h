// --local: a prefill node in this process, over the in-process transport. The one place where a
// node includes the other.
#pragma once

#include <functional>
#include <memory>

#include "common/base/result.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/model/model.h"
#include "common/model/tokenizer.h"
#include "decode_node/config.h"
#include "decode_node/dispatch/dispatcher.h"
#include "transport/transport.h"

namespace akv::decode {

// Owns both ends of the in-process transport: the receiver is lent to the engine.
class LocalPrefill {
 public:
  // emit runs on any thread. The model and tokenizer outlive it.
  static Result<std::unique_ptr<LocalPrefill>> create(const Config& config,
                                                      const EngineDevice& device,
                                                      std::shared_ptr<const model::Model> model,
                                                      const model::Tokenizer& tokenizer,
                                                      MetricsRegistry& metrics, Logger log,
                                                      std::function<void(PeerEvent&&)> emit);
  virtual ~LocalPrefill() = default;

  // The landing end, for the engine; valid until take_receiver's result is destroyed.
  virtual std::unique_ptr<transport::Receiver> take_receiver() = 0;
  // Control thread.
  virtual void handle(PrefillCommand&& command) = 0;
  virtual void drain() = 0;
  // [thread-safe]
  virtual bool idle() const = 0;
  virtual proto::Load load() const = 0;
  virtual uint64_t budget_bytes() const = 0;  // of prompts in work and of the outbox
  // Ends its threads and transfers; the control thread must have stopped.
  virtual void stop() = 0;
};

}  // namespace akv::decode
