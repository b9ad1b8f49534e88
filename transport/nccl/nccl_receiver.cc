#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "transport/counters.h"
#include "transport/nccl/loop.h"
#include "transport/nccl/nccl_transport.h"
#include "transport/nccl/pairs.h"

namespace akv::transport {
namespace {

using std::chrono::milliseconds;

// A landing of ours and the two landings of the wrapped transport that serve it: the plain one
// writes the records themselves, the announcing one what is said about records that come over NCCL.
// Constant or loop thread; the announcing buffers are written by the wrapped transport before it
// says so.
struct Incoming {
  explicit Incoming(LandingSpec s)
      : spec(std::move(s)),
        landed(spec.destinations.size()),
        flying(spec.destinations.size()),
        held(spec.destinations.size()),
        tickets(spec.destinations.size()) {}

  const LandingSpec spec;
  std::vector<bool> landed;
  std::vector<bool> flying;  // an operation with the pair may write the record's memory
  std::vector<bool> held;    // landed plain meanwhile: said when that operation is over
  size_t landed_count = 0;
  std::array<std::byte, nccl::kHelloBytes> hello{};
  std::array<std::byte, nccl::kVerdictBytes> verdict{};
  std::vector<std::array<std::byte, nccl::kTicketBytes>> tickets;
  std::vector<uint32_t> early;  // tickets that came before the hello

  std::shared_ptr<Pair> pair;  // once the hello was there
  uint32_t receiving = 0;      // operations with the pair
  bool plain_open = false;
  bool announcing_open = false;
  bool plain_chosen = false;    // the sender said so
  bool all_sent = false;        // the sender said so
  std::optional<Error> broken;  // the first receive that failed
  std::optional<Error> ending;
  bool cancelled_here = false;
  TimePoint drain_until;

  bool complete() const { return landed_count == spec.destinations.size(); }
};
using IncomingPtr = std::shared_ptr<Incoming>;

class NcclReceiver final : public Receiver {
 public:
  NcclReceiver(std::unique_ptr<Receiver> inner, std::shared_ptr<Nccl> nccl,
               const TransportConfig& config)
      : config_(config),
        extension_(nccl::encode(nccl::Capability{nccl->version(), Id128::random()}) +
                   (inner->extension().empty() ? "" : ";" + inner->extension())),
        inner_(std::move(inner)),
        pairs_(std::move(nccl), config),
        loop_([this](TimePoint now) { return look(now); }) {}

  ~NcclReceiver() override {
    loop_.submit([this] { cancel_all(); });
    wait_until_empty();
    inner_.reset();  // its last events come to the loop, which is still there
    loop_.submit([this] { end_all(); });
    loop_.stop();
  }

  HostPort address() const override { return inner_->address(); }

  Status expect(LandingSpec spec) override {
    if (!spec.on_event) {
      return make_error(Code::kInvalidArgument, "expect without an event handler");
    }
    if (!spec.device_destinations.empty() &&
        spec.device_destinations.size() != spec.destinations.size()) {
      return make_error(Code::kInvalidArgument, "not one device destination a record");
    }
    const auto in = std::make_shared<Incoming>(std::move(spec));
    // Listed before the wrapped transport knows of it: its first event may be here at once.
    loop_.submit([this, in] { incoming_.emplace(in->spec.transfer, in); });
    ++open_;
    ++counters_.started;
    ++counters_.transfers_open;
    in->plain_open = in->announcing_open = true;
    Status status = expect_plain(in);
    if (status.ok()) {
      status = expect_announcing(in);
      if (!status.ok()) inner_->cancel(in->spec.transfer);
    }
    if (status.ok()) return {};
    --counters_.started;
    --counters_.transfers_open;
    --open_;
    loop_.submit([this, in] { incoming_.erase(in->spec.transfer); });
    return status;
  }

  void cancel(const Id128& transfer) override {
    loop_.submit([this, transfer] {
      const auto it = incoming_.find(transfer);
      if (it == incoming_.end() || it->second->ending || it->second->complete()) return;
      it->second->cancelled_here = true;
      fail(IncomingPtr(it->second), make_error(Code::kCancelled, "cancelled by the receiver"));
    });
  }

  std::string_view name() const override { return inner_->name(); }
  std::string_view version() const override { return inner_->version(); }
  std::string extension() const override { return extension_; }

  TransportStats stats() const override {
    TransportStats all = counters_.snapshot();
    const TransportStats inner = inner_->stats();
    all.device_records += inner.device_records;
    all.messages_refused += inner.messages_refused;
    all.connections_opened = inner.connections_opened;
    all.connections_lost = inner.connections_lost;
    all.connections_open = inner.connections_open;
    return all;
  }

 private:
  Status expect_plain(const IncomingPtr& in) {
    LandingSpec plain;
    plain.transfer = in->spec.transfer;
    plain.token = in->spec.token;
    plain.attempt = in->spec.attempt;
    plain.destinations = in->spec.destinations;
    plain.device_destinations = in->spec.device_destinations;
    plain.deadline = in->spec.deadline;
    plain.on_event = [this, in](const LandEvent& event) {
      loop_.submit([this, in, event] { on_plain(in, event); });
    };
    return inner_->expect(std::move(plain));
  }

  Status expect_announcing(const IncomingPtr& in) {
    LandingSpec spec;
    spec.transfer = nccl::announcing(in->spec.transfer);
    spec.token = nccl::announcing(in->spec.token);
    spec.attempt = in->spec.attempt;
    spec.destinations.push_back(in->hello);
    spec.destinations.push_back(in->verdict);
    for (auto& ticket : in->tickets) spec.destinations.push_back(ticket);
    spec.deadline = in->spec.deadline;
    spec.on_event = [this, in](const LandEvent& event) {
      loop_.submit([this, in, event] { on_announcing(in, event); });
    };
    return inner_->expect(std::move(spec));
  }

  // --- loop thread ---
  bool listed(const IncomingPtr& in) const {
    const auto it = incoming_.find(in->spec.transfer);
    return it != incoming_.end() && it->second == in;
  }

  void on_plain(const IncomingPtr& in, const LandEvent& event) {
    if (const auto* landed = std::get_if<RecordLanded>(&event)) {
      if (in->flying[landed->record]) {
        in->held[landed->record] = true;
      } else {
        landed_plain(*in, *landed);
      }
      return;
    }
    in->plain_open = false;
    if (const auto* failed = std::get_if<Failed>(&event)) {
      // Ours, when the records came over NCCL; else the end of the landing.
      if (!in->complete()) fail(in, failed->error);
    } else if (in->announcing_open) {
      inner_->cancel(nccl::announcing(in->spec.transfer));
    }
    settle(in);
  }

  void on_announcing(const IncomingPtr& in, const LandEvent& event) {
    if (const auto* landed = std::get_if<RecordLanded>(&event)) {
      if (listed(in)) on_record(in, landed->record);
      return;
    }
    in->announcing_open = false;
    const auto* failed = std::get_if<Failed>(&event);
    if (failed != nullptr && !in->plain_chosen && !in->complete()) fail(in, failed->error);
    settle(in);
  }

  void on_record(const IncomingPtr& in, uint32_t record) {
    if (record == nccl::kHelloRecord) return on_hello(in);
    if (record == nccl::kVerdictRecord) return on_verdict(in);
    if (!in->pair) {
      in->early.push_back(record - nccl::kFirstTicket);
      return;
    }
    on_ticket(in, record - nccl::kFirstTicket);
  }

  void on_hello(const IncomingPtr& in) {
    const auto hello = nccl::decode_hello(in->hello);
    if (!hello.ok()) return fail(in, hello.error());
    auto pair = pairs_.from_sender(*hello);
    if (!pair.ok()) return fail(in, pair.error());
    in->pair = std::move(*pair);
    for (const uint32_t record : std::exchange(in->early, {})) on_ticket(in, record);
  }

  // A landing that ends still receives what was announced for it: the sequence must not have gaps.
  void on_ticket(const IncomingPtr& in, uint32_t record) {
    if (in->plain_chosen || in->landed[record]) {
      // The sender fell back, so nothing comes for this ticket, and its memory is written already.
      return in->pair->break_off(make_error(Code::kUnavailable, "the sender fell back"));
    }
    const nccl::Ticket ticket = nccl::decode_ticket(in->tickets[record]);
    const std::span<std::byte> to = in->spec.destinations[record];
    if (ticket.bytes != to.size()) {
      ++counters_.refused;
      in->pair->break_off(make_error(Code::kDataLoss, "an NCCL message of another length"));
      return fail(in, make_error(Code::kDataLoss, "record " + std::to_string(record) + " has " +
                                                      std::to_string(ticket.bytes) + " bytes, " +
                                                      std::to_string(to.size()) + " are expected"));
    }
    ++in->receiving;
    in->flying[record] = true;
    ++counters_.records_inflight;
    // By name: a landing owns its pair, whose thread must not be the one to let go of it.
    in->pair->receive(ticket.number, to, device_place(*in, record),
                      [this, id = in->spec.transfer, record](const Status& status) {
                        loop_.submit([this, id, record, status] {
                          --counters_.records_inflight;
                          const auto it = incoming_.find(id);
                          if (it == incoming_.end()) return;
                          on_received(IncomingPtr(it->second), record, status);
                        });
                      });
  }

  // Null: the record lands in host memory.
  static std::byte* device_place(const Incoming& in, uint32_t record) {
    return in.spec.device_destinations.empty() ? nullptr : in.spec.device_destinations[record];
  }

  void on_received(const IncomingPtr& in, uint32_t record, const Status& status) {
    --in->receiving;
    in->flying[record] = false;
    if (status.ok()) {
      const bool on_device = device_place(*in, record) != nullptr;
      if (on_device) ++counters_.device_records;
      mark_landed(*in, {.record = record, .on_device = on_device});
    } else if (!in->broken) {
      in->broken = status.error();
    }
    if (in->held[record]) landed_plain(*in, {.record = record});
    if (status.ok() && in->complete() && in->plain_open) inner_->cancel(in->spec.transfer);
    judge(in);
    settle(in);
  }

  // A receive that failed is not the end yet: the sender may fall back, and says what it does. Only
  // when it believes all is sent is the rest lost.
  void judge(const IncomingPtr& in) {
    if (in->all_sent && in->broken) fail(in, *in->broken);
  }

  void on_verdict(const IncomingPtr& in) {
    switch (static_cast<nccl::Verdict>(in->verdict[0])) {
      case nccl::Verdict::kSent:
        in->all_sent = true;
        return judge(in);
      case nccl::Verdict::kPlain:
        in->plain_chosen = true;
        // The sender's end is gone: what flies ends now, before anything reads what comes plain.
        if (in->pair) in->pair->break_off(make_error(Code::kUnavailable, "the sender fell back"));
        return inner_->cancel(nccl::announcing(in->spec.transfer));
      case nccl::Verdict::kFailed:
        break;
    }
    fail(in, make_error(Code::kUnavailable, "the sender's NCCL failed"));
  }

  void mark_landed(Incoming& in, const RecordLanded& event) {
    if (in.landed[event.record]) return;
    in.landed[event.record] = true;
    ++in.landed_count;
    ++counters_.records;
    counters_.bytes += in.spec.destinations[event.record].size();
    if (!in.ending) in.spec.on_event(event);
  }

  // A record that NCCL had brought as well is announced again: its bytes were written anew.
  void landed_plain(Incoming& in, const RecordLanded& event) {
    if (!in.landed[event.record]) return mark_landed(in, event);
    if (!in.ending) in.spec.on_event(event);
  }

  void fail(const IncomingPtr& in, const Error& error) {
    if (in->ending || !listed(in)) return;
    in->ending = error;
    in->drain_until = SteadyClock::now() + milliseconds(config_.drain_ms);
    if (in->plain_open) inner_->cancel(in->spec.transfer);
    if (in->announcing_open) inner_->cancel(nccl::announcing(in->spec.transfer));
    settle(in);
  }

  // The announcing landing writes to nothing of the caller's: nobody waits for its end.
  void settle(const IncomingPtr& in) {
    if ((in->ending || in->complete()) && !in->plain_open && in->receiving == 0) end(in);
  }

  void end(const IncomingPtr& in) {
    if (!listed(in)) return;
    incoming_.erase(in->spec.transfer);
    in->pair.reset();
    counters_.count_end(in->ending ? &*in->ending : nullptr, in->cancelled_here);
    in->spec.on_event(in->ending ? LandEvent(Failed{*in->ending}) : LandEvent(Complete{}));
    --open_;
    std::lock_guard lock(empty_mutex_);
    empty_.notify_all();
  }

  TimePoint look(TimePoint now) {
    pairs_.drop_idle(now);
    TimePoint next = now + milliseconds(config_.idle_close_ms);
    for (const auto& [id, in] : incoming_) {
      if (!in->ending || in->receiving == 0) continue;
      if (now >= in->drain_until) {
        in->pair->break_off(make_error(Code::kUnavailable, "cut to end a transfer"));
      } else {
        next = std::min(next, in->drain_until);
      }
    }
    return next;
  }

  void cancel_all() {
    std::vector<IncomingPtr> all;
    for (const auto& [id, in] : incoming_) all.push_back(in);
    for (const IncomingPtr& in : all) {
      in->cancelled_here = true;
      fail(in, make_error(Code::kCancelled, "the receiver is closing"));
    }
    std::lock_guard lock(empty_mutex_);
    closing_ = true;
    empty_.notify_all();
  }

  // The wrapped transport has gone; what is left writes by pairs alone, which are cut.
  void end_all() {
    for (const auto& [id, in] : incoming_) in->pair.reset();
    pairs_.close();
    while (!incoming_.empty()) {
      const IncomingPtr in = incoming_.begin()->second;
      if (!in->ending) in->ending = make_error(Code::kCancelled, "the receiver is closing");
      end(in);
    }
  }

  void wait_until_empty() {
    std::unique_lock lock(empty_mutex_);
    empty_.wait_for(lock, milliseconds(4 * config_.drain_ms + 1000),
                    [this] { return closing_ && open_ == 0; });
  }

  const TransportConfig config_;
  const std::string extension_;
  std::unique_ptr<Receiver> inner_;
  Counters counters_;
  std::atomic<size_t> open_{0};
  std::mutex empty_mutex_;
  std::condition_variable empty_;
  bool closing_ = false;  // guarded by empty_mutex_
  // Loop thread.
  std::unordered_map<Id128, IncomingPtr> incoming_;
  Pairs pairs_;
  Loop loop_;
};

}  // namespace

std::unique_ptr<Receiver> make_nccl_receiver(std::unique_ptr<Receiver> inner,
                                             std::shared_ptr<Nccl> nccl,
                                             const TransportConfig& config) {
  return std::make_unique<NcclReceiver>(std::move(inner), std::move(nccl), config);
}

}  // namespace akv::transport
