#include <algorithm>
#include <cstring>

#include "transport/landing_table.h"
#include "transport/ucx/end.h"
#include "transport/ucx/ucx_transport.h"

namespace akv::transport {
namespace {

using std::chrono::milliseconds;

class UcxReceiver final : public Receiver, public UcxEnd {
 public:
  UcxReceiver(const TransportConfig& config, std::unique_ptr<UcxWorker> worker)
      : UcxEnd(config, std::move(worker)),
        version_(ucx_version()),
        extension_(device_offer(worker_->device_memory())),
        table_(config) {}

  ~UcxReceiver() override {
    table_.close();
    stop();
  }

  Status begin(const HostPort& listen) {
    AKV_ASSIGN_OR_RETURN(address_, worker_->listen(listen, on_request, this));
    return start();
  }

  HostPort address() const override { return address_; }

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
    submit([] {});  // the thread takes the new deadline into account
    return {};
  }

  void cancel(const Id128& transfer) override {
    submit([this, transfer] {
      LandingPtr landing = table_.find(transfer);
      if (!landing || landing->ending) return;
      landing->cancelled_here = true;
      fail(landing, make_error(Code::kCancelled, "cancelled by the receiver"));
    });
  }

  std::string_view name() const override { return "ucx"; }
  std::string_view version() const override { return version_; }
  std::string extension() const override { return extension_; }
  TransportStats stats() const override { return counters_.snapshot(); }

 private:
  // Within progress(): the endpoint is made outside of the callback.
  static void on_request(ucp_conn_request* request, void* arg) {
    auto* self = static_cast<UcxReceiver*>(arg);
    self->requests_.push_back(request);
    self->attend();
  }

  void take_requests() {
    std::vector<ucp_conn_request*> requests;
    requests.swap(requests_);
    for (ucp_conn_request* request : requests) {
      if (stopping_requests_ || connections() >= config_.connections_max) {
        ++counters_.refused;
        notice("a connection is rejected: " + std::to_string(connections()) + " are open");
        worker_->reject(request);
        continue;
      }
      auto connection = accept(request);
      if (!connection.ok()) notice("cannot accept: " + connection.error().message);
    }
  }

  static Connection* peer_of(const Landing& landing) {
    // Bound by match() below to nothing but connections; a lost one fails its landings first.
    return static_cast<Connection*>(const_cast<void*>(landing.peer));
  }

  void tell(Connection& connection, const TransferKey& key, const Status& status) {
    wire::Message m;
    m.type = wire::Type::kResult;
    m.key = key;
    if (!status.ok()) {
      m.code = static_cast<uint16_t>(status.error().code);
      m.text = status.error().message;
    }
    connection.send(m);
  }

  // Null where the landing gave none, or nothing could write there.
  std::byte* device_place(const Landing& landing, uint32_t record) const {
    const auto& places = landing.spec.device_destinations;
    if (worker_->device_memory() == DeviceMemory::kNone || places.empty()) return nullptr;
    return places[record];
  }

  static TransferKey key_of(const Landing& landing) {
    return {landing.spec.transfer, landing.spec.token, landing.spec.attempt};
  }

  // Starts the end with an error: nothing more is admitted; the event waits for what is written.
  void fail(const LandingPtr& landing, const Error& error) {
    if (landing->ending || landing->complete()) return;
    landing->ending = error;
    landing->drain_until = SteadyClock::now() + milliseconds(config_.drain_ms);
    if (landing->peer != nullptr) tell(*peer_of(*landing), key_of(*landing), error);
    attend();
    settle(landing);
  }

  void settle(const LandingPtr& landing) {
    if (landing->ending && landing->writing == 0) end(landing);
  }

  void end(const LandingPtr& landing) {
    if (table_.find(landing->spec.transfer) != landing) return;
    table_.remove(landing->spec.transfer);
    const std::optional<Error>& error = landing->ending;
    counters_.count_end(error ? &*error : nullptr, landing->cancelled_here);
    defer([landing] {
      const auto& failure = landing->ending;
      landing->spec.on_event(failure ? LandEvent(Failed{*failure}) : LandEvent(Complete{}));
    });
  }

  void on_landed(const LandingPtr& landing, uint32_t record, bool on_device, bool ok) {
    if (ok) {
      ++landing->landed;
      ++counters_.records;
      if (on_device) ++counters_.device_records;
      counters_.bytes += landing->spec.destinations[record].size();
      if (!landing->ending) {
        defer([landing, record, on_device] {
          landing->spec.on_event(RecordLanded{record, on_device});
        });
      }
    } else if (!landing->ending) {
      landing->ending = make_error(Code::kUnavailable, "the connection was lost while record " +
                                                           std::to_string(record) + " landed");
    }
    if (landing->ending) {
      settle(landing);
    } else if (landing->complete()) {
      tell(*peer_of(*landing), key_of(*landing), Status{});
      end(landing);
    }
  }

  Status on_hello(Connection& connection, const wire::Message& hello) override {
    if (hello.type != wire::Type::kHello) {
      return make_error(Code::kMismatch, "hello expected");
    }
    if (hello.protocol != kProtocolVersion) {
      return make_error(Code::kMismatch, "state protocol " + std::to_string(hello.protocol) +
                                             ", this node speaks " +
                                             std::to_string(kProtocolVersion));
    }
    if (hello.text != version_) {
      return make_error(Code::kMismatch, "ucx " + hello.text + ", this node has " + version_);
    }
    wire::Message welcome;
    welcome.type = wire::Type::kWelcome;
    welcome.text = version_;
    connection.send(welcome);
    return {};
  }

  void on_open(Connection&) override {}

  void on_message(Connection& connection, const wire::Message& message) override {
    if (message.type == wire::Type::kResult) return;
    auto matched = table_.match(message.key, &connection);
    if (!matched.ok()) {
      // After the end of a transfer its sender may still say these two: it knows the outcome.
      if (message.type == wire::Type::kOpen) refuse(connection, message.key, matched.error());
      return;
    }
    const LandingPtr& landing = *matched;
    const size_t expected = landing->spec.destinations.size();
    if (message.type == wire::Type::kFinish && message.records != expected) {
      fail(landing, make_error(Code::kDataLoss, "the sender finished after " +
                                                    std::to_string(message.records) + " of " +
                                                    std::to_string(expected) + " records"));
    } else if (message.type == wire::Type::kAbort) {
      fail(landing, wire::to_error(message.code, message.text));
    }
  }

  void refuse(Connection& connection, const TransferKey& key, const Error& error) {
    ++counters_.refused;
    tell(connection, key, error);
  }

  void on_record(Connection& connection, const Result<wire::RecordHeader>& header, void* data,
                 size_t bytes, bool rendezvous) override {
    if (!header.ok()) {
      ++counters_.refused;
      connection.break_off(header.error());
      return;
    }
    auto matched = table_.match(header->key, &connection);
    if (!matched.ok()) {
      refuse(connection, header->key, matched.error());
      return;
    }
    const LandingPtr landing = *matched;
    if (landing->ending) return;  // the sender was told already
    auto span = header->bytes == bytes
                    ? LandingTable::claim(*landing, header->record, bytes)
                    : Result<std::span<std::byte>>(make_error(
                          Code::kDataLoss, "record " + std::to_string(header->record) + " says " +
                                               std::to_string(header->bytes) + " bytes and has " +
                                               std::to_string(bytes)));
    if (!span.ok()) {
      ++counters_.refused;
      fail(landing, span.error());
      return;
    }
    if (!rendezvous) {
      std::memcpy(span->data(), data, bytes);
      on_landed(landing, header->record, /*on_device=*/false, true);
      return;
    }
    ++landing->writing;
    ++counters_.records_inflight;
    // What is read from host memory lands there: bringing it to the device is its owner's.
    std::byte* device = header->on_device ? device_place(*landing, header->record) : nullptr;
    if (device != nullptr) {
      span = std::span(device, bytes);
      ++device_moves_;
    }
    const bool on_device = device != nullptr;
    connection.receive(data, *span, on_device,
                       [this, landing, record = header->record, on_device](bool ok) {
                         --landing->writing;
                         if (on_device) --device_moves_;
                         --counters_.records_inflight;
                         on_landed(landing, record, on_device, ok);
                       });
  }

  void on_lost(Connection& connection, const Error& error) override {
    for (const LandingPtr& landing : table_.all()) {
      if (landing->peer == &connection) fail(landing, error);
    }
  }

  void on_gone(Connection&) override {}

  TimePoint on_look(TimePoint now) override {
    take_requests();
    TimePoint next = TimePoint::max();
    for (const LandingPtr& landing : table_.all()) {
      if (!landing->ending && now >= landing->spec.deadline) {
        fail(landing, make_error(Code::kDeadlineExceeded, "the state did not land in time"));
      }
      if (!landing->ending) {
        next = std::min(next, landing->spec.deadline);
      } else if (landing->writing > 0 && now >= landing->drain_until) {
        peer_of(*landing)->break_off(
            make_error(Code::kUnavailable, "cut to end a transfer that did not drain in time"));
      } else {
        next = std::min(next, landing->drain_until);
      }
    }
    return next;
  }

  void on_stop() override {
    stopping_requests_ = true;
    take_requests();  // refuses them from now on; the listener goes with the worker, after the
                      // drain
    for (const LandingPtr& landing : table_.all()) {
      if (landing->ending) continue;
      landing->cancelled_here = true;
      fail(landing, make_error(Code::kCancelled, "the receiver is closing"));
    }
  }

  bool has_transfers() const override { return table_.size() > 0; }

  void on_abandon() override {
    for (const LandingPtr& landing : table_.all()) end(landing);
  }

  const std::string version_;
  const std::string extension_;
  HostPort address_;
  LandingTable table_;
  // Progress thread.
  std::vector<ucp_conn_request*> requests_;
  bool stopping_requests_ = false;
};

}  // namespace

Result<std::unique_ptr<Receiver>> make_ucx_receiver(const TransportConfig& config,
                                                    const HostPort& listen) {
  AKV_RETURN_IF_ERROR(validate(config));
  AKV_ASSIGN_OR_RETURN(auto worker, UcxWorker::create(config, is_loopback(listen) ? "lo" : ""));
  auto receiver = std::make_unique<UcxReceiver>(config, std::move(worker));
  AKV_RETURN_IF_ERROR(receiver->begin(listen));
  return std::unique_ptr<Receiver>(std::move(receiver));
}

}  // namespace akv::transport
