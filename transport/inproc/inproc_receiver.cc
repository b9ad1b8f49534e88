#include <algorithm>
#include <cstring>

#include "transport/inproc/network.h"
#include "transport/landing_table.h"

namespace akv::transport {
namespace {

class InprocReceiver final : public Receiver, public InprocReceiverEnd {
 public:
  InprocReceiver(std::shared_ptr<InprocNetwork> network, const TransportConfig& config)
      : network_(std::move(network)), table_(config) {
    network_->call([this] { port_ = network_->add_receiver(this); });
  }

  ~InprocReceiver() override {
    table_.close();
    network_->call([this] {
      for (const LandingPtr& landing : table_.all()) {
        landing->cancelled_here = true;
        fail(*landing, make_error(Code::kCancelled, "the receiver is closing"));
      }
      network_->remove_receiver(port_);
    });
  }

  HostPort address() const override { return HostPort{"inproc", port_}; }
  std::string_view name() const override { return "inproc"; }
  std::string_view version() const override { return "1"; }
  TransportStats stats() const override { return counters_.snapshot(); }

  Status expect(LandingSpec spec) override {
    if (!spec.on_event) {
      return make_error(Code::kInvalidArgument, "expect without an event handler");
    }
    // Counted before the landing is visible: it may end before add() returns.
    ++counters_.started;
    ++counters_.transfers_open;
    Status status = table_.add(std::move(spec));
    if (!status.ok()) {
      --counters_.started;
      --counters_.transfers_open;
      return status;
    }
    network_->push([] {});  // the thread takes the new deadline into account
    return {};
  }

  void cancel(const Id128& transfer) override {
    network_->push([this, transfer] {
      LandingPtr landing = table_.find(transfer);
      if (!landing) return;
      landing->cancelled_here = true;
      fail(*landing, make_error(Code::kCancelled, "cancelled by the receiver"));
    });
  }

  Status on_open(const Id128& transfer, const Id128& token, uint32_t attempt,
                 const void* channel) override {
    auto landing = table_.match({transfer, token, attempt}, channel);
    if (landing.ok()) return {};
    ++counters_.refused;
    return landing.error();
  }

  Status on_record(const Id128& transfer, const Id128& token, uint32_t attempt, const void* channel,
                   uint32_t record, std::span<const std::byte> bytes) override {
    auto matched = table_.match({transfer, token, attempt}, channel);
    if (!matched.ok()) {
      ++counters_.refused;
      return matched.error();
    }
    Landing& landing = **matched;
    auto span = LandingTable::claim(landing, record, bytes.size());
    if (!span.ok()) {
      ++counters_.refused;
      fail(landing, span.error());
      return span.error();
    }
    std::memcpy(span->data(), bytes.data(), bytes.size());
    counters_.bytes += bytes.size();
    return {};
  }

  void on_landed(const Id128& transfer, uint32_t record) override {
    LandingPtr landing = table_.find(transfer);
    if (!landing) return;
    ++landing->landed;
    ++counters_.records;
    landing->spec.on_event(RecordLanded{record});
    if (!landing->complete()) return;
    table_.remove(transfer);
    counters_.count_end(nullptr, false);
    landing->spec.on_event(Complete{});
    network_->tell_senders(transfer, landing->spec.attempt, Status{});
  }

  void on_finish(const Id128& transfer, const void* channel, uint32_t records) override {
    LandingPtr landing = table_.find(transfer);
    if (!landing || landing->peer != channel) return;
    fail(*landing, make_error(Code::kDataLoss,
                              "the sender finished after " + std::to_string(records) + " of " +
                                  std::to_string(landing->spec.destinations.size()) + " records"));
  }

  void on_abort(const Id128& transfer, const void* channel, const Error& error) override {
    LandingPtr landing = table_.find(transfer);
    if (landing && landing->peer == channel) fail(*landing, error);
  }

  TimePoint expire(TimePoint now) override {
    TimePoint next = TimePoint::max();
    for (const LandingPtr& landing : table_.all()) {
      if (now >= landing->spec.deadline) {
        fail(*landing, make_error(Code::kDeadlineExceeded, "the state did not land in time"));
      } else {
        next = std::min(next, landing->spec.deadline);
      }
    }
    return next;
  }

 private:
  // Copies run on this very thread, so nothing is being written when a landing ends.
  void fail(Landing& landing, const Error& error) {
    if (landing.ending || landing.complete()) return;
    landing.ending = error;
    LandingPtr keep = table_.find(landing.spec.transfer);
    table_.remove(landing.spec.transfer);
    counters_.count_end(&error, landing.cancelled_here);
    landing.spec.on_event(Failed{error});
    if (landing.peer != nullptr) {
      network_->tell_senders(landing.spec.transfer, landing.spec.attempt, error);
    }
  }

  const std::shared_ptr<InprocNetwork> network_;
  LandingTable table_;
  Counters counters_;
  uint16_t port_ = 0;
};

}  // namespace

Result<std::unique_ptr<Receiver>> make_inproc_receiver(std::shared_ptr<InprocNetwork> network,
                                                       const TransportConfig& config) {
  AKV_RETURN_IF_ERROR(validate(config));
  auto receiver = std::make_unique<InprocReceiver>(std::move(network), config);
  if (receiver->address().port == 0) {
    return make_error(Code::kResourceExhausted, "no free inproc port");
  }
  return std::unique_ptr<Receiver>(std::move(receiver));
}

}  // namespace akv::transport
