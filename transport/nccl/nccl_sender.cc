#include <algorithm>
#include <condition_variable>
#include <vector>

#include "transport/channel_table.h"
#include "transport/counters.h"
#include "transport/nccl/loop.h"
#include "transport/nccl/nccl_transport.h"
#include "transport/nccl/pairs.h"

namespace akv::transport {
namespace {

using std::chrono::milliseconds;

// A channel of ours and the channel of the wrapped transport that serves it now: over NCCL the
// announcing one, else the plain one. Loop thread.
struct Outgoing {
  ChannelPtr channel;
  std::shared_ptr<Pair> pair;  // set: the records go over NCCL
  uint64_t epoch = 0;          // of `inner`; events of an earlier one are not ours any more
  std::optional<ChannelId> inner;
  bool inner_open = false;
  std::vector<std::pair<uint32_t, Payload>> posted;  // kept until sent, for another try
  uint32_t sending = 0;                              // operations with the pair
  uint32_t sent = 0;
  bool finished = false;   // finish() of `inner` was called
  bool fell_back = false;  // from NCCL, with the records posted so far
};
using OutgoingPtr = std::shared_ptr<Outgoing>;

template <size_t N>
Payload owned(const std::array<std::byte, N>& bytes) {
  auto kept = std::make_shared<const std::array<std::byte, N>>(bytes);
  return Payload{.bytes = *kept, .keepalive = kept};
}

class NcclSender final : public Sender {
 public:
  NcclSender(std::unique_ptr<Sender> inner, std::shared_ptr<Nccl> nccl,
             const TransportConfig& config)
      : config_(config),
        nccl_version_(nccl->version()),
        inner_(std::move(inner)),
        table_(config, inner_->name(), inner_->version()),
        pairs_(std::move(nccl), config),
        loop_([this](TimePoint now) { return look(now); }) {}

  ~NcclSender() override {
    table_.close();
    loop_.submit([this] { cancel_all(); });
    wait_until_empty();
    inner_.reset();  // its last events come to the loop, which is still there
    loop_.submit([this] { end_all(); });
    loop_.stop();
  }

  Result<ChannelId> open(const LandingAddress& to, TimePoint deadline,
                         SendEventFn on_event) override {
    AKV_ASSIGN_OR_RETURN(ChannelPtr channel, table_.open(to, deadline, std::move(on_event)));
    ++counters_.started;
    ++counters_.transfers_open;
    loop_.submit([this, channel] { begin(channel); });
    return channel->id;
  }

  Status post(ChannelId id, uint32_t record, Payload payload) override {
    AKV_ASSIGN_OR_RETURN(ChannelPtr channel, table_.admit_post(id, record, payload.bytes.size()));
    loop_.submit([this, id, record, payload = std::move(payload)]() mutable {
      if (const OutgoingPtr out = find(id)) take(out, record, std::move(payload));
    });
    return {};
  }

  Status finish(ChannelId id) override {
    AKV_ASSIGN_OR_RETURN(ChannelPtr channel, table_.admit_finish(id));
    loop_.submit([this, id] {
      const OutgoingPtr out = find(id);
      if (!out) return;
      out->channel->finishing = true;
      finish_inner(*out);
    });
    return {};
  }

  void cancel(ChannelId id) override {
    loop_.submit([this, id] {
      const OutgoingPtr out = find(id);
      if (!out || out->channel->ending) return;
      out->channel->cancelled_here = true;
      fail(out, make_error(Code::kCancelled, "cancelled by the sender"));
    });
  }

  bool reads_device(const LandingAddress& to) const override {
    const auto peer = nccl::decode_capability(to.extension);
    return (peer && peer->nccl_version == nccl_version_) || inner_->reads_device(to);
  }
  std::string_view name() const override { return inner_->name(); }
  std::string_view version() const override { return inner_->version(); }

  TransportStats stats() const override {
    TransportStats all = counters_.snapshot();
    const TransportStats inner = inner_->stats();
    all.device_records += inner.device_records;
    all.connections_opened = inner.connections_opened;
    all.connections_lost = inner.connections_lost;
    all.connections_open = inner.connections_open;
    return all;
  }

 private:
  OutgoingPtr find(ChannelId id) const {
    const auto it = outgoing_.find(id.value);
    return it == outgoing_.end() ? nullptr : it->second;
  }

  void begin(const ChannelPtr& channel) {
    auto out = std::make_shared<Outgoing>();
    out->channel = channel;
    outgoing_.emplace(channel->id.value, out);
    const auto peer = nccl::decode_capability(channel->to.extension);
    if (peer && peer->nccl_version == nccl_version_) {
      const auto known = pairs_.to_receiver(peer->receiver, self_);
      if (known.ok()) return begin_announcing(out, *known);
    }
    begin_plain(out);
  }

  void begin_plain(const OutgoingPtr& out) { open_inner(out, out->channel->to); }

  void begin_announcing(const OutgoingPtr& out, const KnownPair& known) {
    LandingAddress to = out->channel->to;
    to.extension.clear();
    to.transfer = nccl::announcing(to.transfer);
    to.token = nccl::announcing(to.token);
    to.sizes.clear();
    out->pair = known.pair;
    if (open_inner(out, to)) {
      (void)inner_->post(*out->inner, nccl::kHelloRecord, owned(encode(known.hello))).ok();
    }
  }

  // False when it failed, which has been dealt with.
  bool open_inner(const OutgoingPtr& out, const LandingAddress& to) {
    const uint64_t epoch = ++out->epoch;
    auto opened =
        inner_->open(to, out->channel->deadline, [this, out, epoch](const SendEvent& event) {
          loop_.submit([this, out, epoch, event] { on_inner(out, epoch, event); });
        });
    if (!opened.ok()) {
      fail(out, opened.error());
      return false;
    }
    out->inner = *opened;
    out->inner_open = true;
    return true;
  }

  void take(const OutgoingPtr& out, uint32_t record, Payload payload) {
    if (out->channel->ending) return;
    if (out->fell_back) payload.device = nullptr;
    out->posted.emplace_back(record, std::move(payload));
    pass_on(out, out->posted.size() - 1);
  }

  // A refusal by the wrapped transport means that its channel has ended: its event says why.
  void pass_on(const OutgoingPtr& out, size_t index) {
    const auto& [record, payload] = out->posted[index];
    if (!out->pair) {
      (void)inner_->post(*out->inner, record, payload).ok();
      return;
    }
    ++out->sending;
    ++counters_.records_inflight;
    const uint64_t number = out->pair->send(
        payload.bytes, payload.device,
        // By name: a transfer owns its pair, whose thread must not be the one to let go of it.
        [this, id = out->channel->id, index, epoch = out->epoch](const Status& status) {
          loop_.submit([this, id, index, epoch, status] {
            --counters_.records_inflight;
            if (const OutgoingPtr still = find(id)) on_sent(still, index, epoch, status);
          });
        });
    const nccl::Ticket ticket{.number = number, .bytes = payload.bytes.size()};
    (void)inner_->post(*out->inner, nccl::kFirstTicket + record, owned(encode(ticket))).ok();
  }

  void on_sent(const OutgoingPtr& out, size_t index, uint64_t epoch, const Status& status) {
    --out->sending;
    const bool current = epoch == out->epoch;
    if (status.ok()) {
      ++out->sent;
      if (out->posted[index].second.device != nullptr) ++counters_.device_records;
      report_sent(*out, out->posted[index].first, out->posted[index].second.bytes.size());
      out->posted[index].second = {};
      if (current) finish_inner(*out);
    } else if (current && !out->channel->ending) {
      if (out->sent == 0) {
        fall_back(out);
      } else {
        give_verdict(*out, nccl::Verdict::kFailed);
        fail(out, status.error());
      }
    }
    settle(out);
  }

  void report_sent(const Outgoing& out, uint32_t record, size_t bytes) {
    ++counters_.records;
    counters_.bytes += bytes;
    if (!out.channel->ending) out.channel->on_event(RecordSent{record});
  }

  // Nothing has passed over NCCL, so every payload is still here: the wrapped transport takes them,
  // from host memory, since the receiver's device memory may still be an NCCL operation's.
  void fall_back(const OutgoingPtr& out) {
    give_verdict(*out, nccl::Verdict::kPlain);
    out->pair.reset();
    out->finished = false;
    out->fell_back = true;
    begin_plain(out);
    if (out->channel->ending) return;
    for (size_t i = 0; i < out->posted.size(); ++i) {
      out->posted[i].second.device = nullptr;
      pass_on(out, i);
    }
    finish_inner(*out);
  }

  void give_verdict(const Outgoing& out, nccl::Verdict verdict) {
    const std::array<std::byte, nccl::kVerdictBytes> bytes{static_cast<std::byte>(verdict)};
    (void)inner_->post(*out.inner, nccl::kVerdictRecord, owned(bytes)).ok();
  }

  void finish_inner(Outgoing& out) {
    if (!out.channel->finishing || out.finished || out.channel->ending || !out.inner_open) return;
    if (out.pair) {
      if (out.sent < out.posted.size()) return;
      give_verdict(out, nccl::Verdict::kSent);
    }
    out.finished = true;
    (void)inner_->finish(*out.inner).ok();
  }

  void on_inner(const OutgoingPtr& out, uint64_t epoch, const SendEvent& event) {
    if (epoch != out->epoch) return;
    if (const auto* sent = std::get_if<RecordSent>(&event)) {
      if (!out->pair) on_plain_sent(*out, sent->record);
      return;
    }
    out->inner_open = false;
    if (const auto* failed = std::get_if<Failed>(&event)) {
      if (!out->channel->ending) fail(out, failed->error);
    } else {
      out->channel->acknowledged = true;
    }
    settle(out);
  }

  void on_plain_sent(Outgoing& out, uint32_t record) {
    const auto at = std::find_if(out.posted.begin(), out.posted.end(),
                                 [&](const auto& p) { return p.first == record; });
    if (at == out.posted.end() || at->second.bytes.empty()) return;
    report_sent(out, record, at->second.bytes.size());
    at->second = {};
  }

  // Operations with the pair get drain_ms to end, then the pair is broken off.
  void fail(const OutgoingPtr& out, const Error& error) {
    if (out->channel->ending) return;
    out->channel->ending = error;
    out->channel->drain_until = SteadyClock::now() + milliseconds(config_.drain_ms);
    table_.stop_accepting(*out->channel);
    settle(out);
  }

  void settle(const OutgoingPtr& out) {
    if (out->sending > 0) return;
    if (out->channel->ending && out->inner_open) {
      inner_->cancel(*out->inner);  // its Failed brings us back here
      return;
    }
    if (!out->inner_open && (out->channel->ending || out->channel->acknowledged)) end(out);
  }

  void end(const OutgoingPtr& out) {
    if (outgoing_.erase(out->channel->id.value) == 0) return;
    table_.stop_accepting(*out->channel);
    table_.remove(out->channel->id);
    const auto& error = out->channel->ending;
    counters_.count_end(error ? &*error : nullptr, out->channel->cancelled_here);
    out->posted.clear();
    out->channel->on_event(error ? SendEvent(Failed{*error}) : SendEvent(Complete{}));
    std::lock_guard lock(empty_mutex_);
    empty_.notify_all();
  }

  TimePoint look(TimePoint now) {
    pairs_.drop_idle(now);
    TimePoint next = now + milliseconds(config_.idle_close_ms);
    for (const auto& [id, out] : outgoing_) {
      if (!out->channel->ending || out->sending == 0) continue;
      if (now >= out->channel->drain_until && out->pair) {
        out->pair->break_off(make_error(Code::kUnavailable, "cut to end a transfer"));
      } else {
        next = std::min(next, out->channel->drain_until);
      }
    }
    return next;
  }

  void cancel_all() {
    std::vector<OutgoingPtr> all;
    for (const auto& [id, out] : outgoing_) all.push_back(out);
    for (const OutgoingPtr& out : all) {
      out->channel->cancelled_here = true;
      fail(out, make_error(Code::kCancelled, "the sender is closing"));
    }
    std::lock_guard lock(empty_mutex_);
    closing_ = true;
    empty_.notify_all();
  }

  // The wrapped transport has gone: nothing reads a payload any more but a pair, which is cut.
  void end_all() {
    for (const auto& [id, out] : outgoing_) out->pair.reset();
    pairs_.close();
    while (!outgoing_.empty()) {
      const OutgoingPtr out = outgoing_.begin()->second;
      out->inner_open = false;
      end(out);
    }
  }

  void wait_until_empty() {
    std::unique_lock lock(empty_mutex_);
    empty_.wait_for(lock, milliseconds(4 * config_.drain_ms + 1000),
                    [this] { return closing_ && table_.size() == 0; });
  }

  const TransportConfig config_;
  const uint32_t nccl_version_;
  const Id128 self_ = Id128::random();
  std::unique_ptr<Sender> inner_;
  ChannelTable table_;
  Counters counters_;
  std::mutex empty_mutex_;
  std::condition_variable empty_;
  bool closing_ = false;  // guarded by empty_mutex_
  // Loop thread.
  std::unordered_map<uint64_t, OutgoingPtr> outgoing_;
  Pairs pairs_;
  Loop loop_;
};

}  // namespace

std::unique_ptr<Sender> make_nccl_sender(std::unique_ptr<Sender> inner, std::shared_ptr<Nccl> nccl,
                                         const TransportConfig& config) {
  return std::make_unique<NcclSender>(std::move(inner), std::move(nccl), config);
}

}  // namespace akv::transport
