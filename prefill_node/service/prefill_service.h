// What front doors ask of a prefill node, whatever carries the messages.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "common/base/result.h"
#include "common/log/log.h"
#include "common/model/model.h"
#include "common/model/tokenizer.h"
#include "prefill_node/outbox/outbox.h"
#include "prefill_node/outbox/shipper.h"
#include "prefill_node/probe.h"
#include "prefill_node/scheduler/scheduler.h"
#include "proto/control.h"
#include "transport/transport.h"

namespace akv::prefill {

using Command = std::variant<proto::Prefill, proto::Cancel, proto::Release, proto::Resend>;

struct ServiceOptions {
  uint64_t outbox_bytes = uint64_t{1} << 30;
  SchedulerOptions scheduler;
};

// A prefill node without sockets: queue, engine and outbox. handle() and owner_lost() come from one
// thread (control); events leave through `emit` from any thread. Errors are Failed events.
class PrefillService {
 public:
  // `sender`, `probe` and the tokenizer outlive the service; the sender may be destroyed only after
  // stop().
  PrefillService(std::shared_ptr<const model::Model> model, const model::Tokenizer& tokenizer,
                 std::unique_ptr<PromptEngine> engine, const ServiceOptions& options,
                 transport::Sender& sender, const Probe& probe, Logger log, EmitFn emit);
  ~PrefillService();

  // owner: who is answered (a peer id, or 0 for a front door in this process).
  void handle(uint64_t owner, Command&& command);
  // The lease of this owner ran out: its jobs and states are freed.
  void owner_lost(uint64_t owner);
  // No new prompts; those in work go on.
  void drain() { draining_ = true; }
  bool draining() const { return draining_; }
  // [thread-safe] Not ok once the engine's device is lost: no prompt can be taken.
  Status health() const { return scheduler_.health(); }
  // Nothing queued, in work or still being sent.
  bool idle() const;
  // Ends the engine thread; events may still come from transfers until the sender is gone.
  void stop();

  // [thread-safe]
  proto::Load load() const;
  Levels levels() const;

 private:
  void on_prefill(uint64_t owner, proto::Prefill&& spec);
  void on_resend(uint64_t owner, const proto::Resend& resend);
  void end_request(uint64_t owner, const proto::RequestRef& ref);
  Result<std::shared_ptr<Job>> make_job(uint64_t owner, proto::Prefill&& spec) const;
  void fail(uint64_t owner, const proto::RequestRef& ref, const Error& error, const char* phase);

  const std::shared_ptr<const model::Model> model_;
  const Logger log_;
  const EmitFn emit_;
  const int64_t transfer_timeout_ms_;
  Outbox outbox_;
  Shipper shipper_;
  Scheduler scheduler_;
  std::atomic<bool> draining_{false};
};

}  // namespace akv::prefill
