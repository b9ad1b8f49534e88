#include <algorithm>
#include <deque>
#include <unordered_map>

#include "common/base/check.h"
#include "transport/channel_table.h"
#include "transport/extension.h"
#include "transport/ucx/end.h"
#include "transport/ucx/ucx_transport.h"

namespace akv::transport {
namespace {

using std::chrono::milliseconds;

// A record that waits for its turn on a connection.
struct Queued {
  ChannelPtr channel;
  uint32_t record = 0;
  Payload payload;
};

// A connection as the sender sees it. Lives until its connection is gone.
struct Link {
  ConnectionPtr connection;
  std::string address;
  std::deque<Queued> queue;          // in the order posted, over all channels
  std::vector<ChannelPtr> channels;  // that have not ended
  uint32_t reading = 0;              // records on the wire
  TimePoint idle_since;
  bool usable() const {
    return !connection->broken() && (connection->state() == Connection::State::kHello ||
                                     connection->state() == Connection::State::kOpen);
  }
  bool open() const { return usable() && connection->state() == Connection::State::kOpen; }
};

class UcxSender final : public Sender, public UcxEnd {
 public:
  UcxSender(const TransportConfig& config, std::unique_ptr<UcxWorker> worker)
      : UcxEnd(config, std::move(worker)),
        version_(ucx_version()),
        device_offer_(device_offer(worker_->device_memory())),
        table_(config, "ucx", version_) {}

  ~UcxSender() override {
    table_.close();
    stop();
  }

  Status begin() {
    if (!config_.local_address.host.empty()) {
      AKV_ASSIGN_OR_RETURN(local_, resolve(config_.local_address));
    }
    return start();
  }

  Result<ChannelId> open(const LandingAddress& to, TimePoint deadline,
                         SendEventFn on_event) override {
    AKV_ASSIGN_OR_RETURN(ChannelPtr channel, table_.open(to, deadline, std::move(on_event)));
    auto address = resolve(to.state_address);
    if (!address.ok()) {
      table_.remove(channel->id);
      return address.error();
    }
    ++counters_.started;
    ++counters_.transfers_open;
    submit([this, channel, address = *address] { begin_transfer(channel, address); });
    return channel->id;
  }

  Status post(ChannelId id, uint32_t record, Payload payload) override {
    AKV_ASSIGN_OR_RETURN(ChannelPtr channel, table_.admit_post(id, record, payload.bytes.size()));
    submit([this, queued = Queued{std::move(channel), record, std::move(payload)}]() mutable {
      enqueue(std::move(queued));
    });
    return {};
  }

  Status finish(ChannelId id) override {
    AKV_ASSIGN_OR_RETURN(ChannelPtr channel, table_.admit_finish(id));
    submit([this, channel] {
      channel->finishing = true;
      settle(channel);
    });
    return {};
  }

  void cancel(ChannelId id) override {
    submit([this, id] {
      ChannelPtr channel = table_.find(id);
      if (!channel || channel->ending) return;
      channel->cancelled_here = true;
      fail(channel, make_error(Code::kCancelled, "cancelled by the sender"), true);
    });
  }

  bool reads_device(const LandingAddress& to) const override {
    return !device_offer_.empty() && extension_item(to.extension, device_offer_) == "";
  }
  std::string_view name() const override { return "ucx"; }
  std::string_view version() const override { return version_; }
  TransportStats stats() const override { return counters_.snapshot(); }

 private:
  static Link* link_of(const Channel& channel) { return static_cast<Link*>(channel.link); }

  // The connection to use for an address: the cached one while it is good, else a new one.
  Result<Link*> link_to(const SocketAddress& to) {
    const std::string address = to_host_port(to.storage).str();
    auto it = by_address_.find(address);
    if (it != by_address_.end() && it->second->usable()) return it->second;
    if (connections() >= config_.connections_max && !leave_an_idle_link()) {
      return make_error(Code::kResourceExhausted,
                        std::to_string(config_.connections_max) + " connections are open already");
    }
    AKV_ASSIGN_OR_RETURN(ConnectionPtr connection,
                         dial(to, config_.local_address.host.empty() ? nullptr : &local_));
    auto link = std::make_unique<Link>();
    link->connection = connection;
    link->address = address;
    link->idle_since = SteadyClock::now();
    Link* raw = link.get();
    links_.emplace(connection.get(), std::move(link));
    by_address_[address] = raw;
    return raw;
  }

  bool leave_an_idle_link() {
    for (auto& [connection, link] : links_) {
      if (!link->channels.empty() || !link->usable()) continue;
      leave(*link->connection);
      return true;
    }
    return false;
  }

  void begin_transfer(const ChannelPtr& channel, const SocketAddress& to) {
    if (channel->ending) return;
    auto link = link_to(to);
    if (!link.ok()) {
      fail(channel, link.error(), false);
      return;
    }
    channel->link = *link;
    (*link)->channels.push_back(channel);
    if ((*link)->open()) announce(*channel);
  }

  static wire::Message message(wire::Type type, const Channel& channel) {
    wire::Message m;
    m.type = type;
    m.key = {channel.to.transfer, channel.to.token, channel.to.attempt};
    return m;
  }

  void announce(Channel& channel) {
    channel.opened = true;
    link_of(channel)->connection->send(message(wire::Type::kOpen, channel));
  }

  void enqueue(Queued queued) {
    Channel& channel = *queued.channel;
    if (channel.ending || channel.link == nullptr) return;
    Link& link = *link_of(channel);
    ++channel.queued;
    link.queue.push_back(std::move(queued));
    pump(link);
  }

  void pump(Link& link) {
    while (link.open() && !link.queue.empty() && link.reading < config_.records_inflight_max) {
      Queued next = std::move(link.queue.front());
      link.queue.pop_front();
      give_to_wire(link, std::move(next));
    }
  }

  void give_to_wire(Link& link, Queued next) {
    const ChannelPtr channel = next.channel;
    const uint64_t bytes = next.payload.bytes.size();
    --channel->queued;
    ++channel->reading;
    ++channel->records;
    ++link.reading;
    ++counters_.records_inflight;
    wire::RecordHeader header;
    header.key = {channel->to.transfer, channel->to.token, channel->to.attempt};
    header.record = next.record;
    header.bytes = bytes;
    header.on_device = next.payload.device != nullptr && Connection::by_rendezvous(bytes) &&
                       reads_device(channel->to);
    if (header.on_device) ++device_moves_;
    // The follow-up is deferred: a small record completes inside send_record, within pump().
    link.connection->send_record(
        header, std::move(next.payload), [this, &link, channel, header](bool ok) {
          --channel->reading;
          --link.reading;
          if (header.on_device) --device_moves_;
          --counters_.records_inflight;
          if (ok) {
            ++counters_.records;
            counters_.bytes += header.bytes;
            if (header.on_device) ++counters_.device_records;
            if (!channel->ending)
              defer([channel, header] { channel->on_event(RecordSent{header.record}); });
          }
          attend();  // pump() and settle() follow in on_look()
        });
    settle(channel);
  }

  // Takes the next step of a channel that may be able to end.
  void settle(const ChannelPtr& channel) {
    if (channel->ending) {
      if (channel->reading == 0) end(channel);
      return;
    }
    if (channel->acknowledged && channel->finishing && channel->queued == 0 &&
        channel->reading == 0) {
      end(channel);
      return;
    }
    if (channel->finishing && channel->opened && channel->queued == 0 && !channel->finish_sent &&
        !channel->acknowledged) {
      channel->finish_sent = true;
      wire::Message m = message(wire::Type::kFinish, *channel);
      m.records = channel->records;
      link_of(*channel)->connection->send(m);
    }
  }

  // Starts the end with an error: nothing more is sent; the event waits for what is being read.
  void fail(const ChannelPtr& channel, const Error& error, bool tell) {
    if (channel->ending) return;
    channel->ending = error;
    channel->drain_until = SteadyClock::now() + milliseconds(config_.drain_ms);
    table_.stop_accepting(*channel);
    if (Link* link = link_of(*channel)) {
      std::erase_if(link->queue, [&](const Queued& q) { return q.channel == channel; });
      channel->queued = 0;
      if (tell && channel->opened) {
        wire::Message m = message(wire::Type::kAbort, *channel);
        m.code = static_cast<uint16_t>(error.code);
        m.text = error.message;
        link->connection->send(m);
      }
    }
    attend();
    settle(channel);
  }

  void end(const ChannelPtr& channel) {
    if (!table_.find(channel->id)) return;
    table_.remove(channel->id);
    if (Link* link = link_of(*channel)) {
      std::erase(link->channels, channel);
      link->idle_since = SteadyClock::now();
      channel->link = nullptr;
    }
    const std::optional<Error> error = channel->ending;
    if (!error) channel->ending = Error{};  // late commands of this channel do nothing
    counters_.count_end(error ? &*error : nullptr, channel->cancelled_here);
    defer([channel, error] {
      channel->on_event(error ? SendEvent(Failed{*error}) : SendEvent(Complete{}));
    });
  }

  Link* find_link(const Connection& connection) {
    auto it = links_.find(&connection);
    return it == links_.end() ? nullptr : it->second.get();
  }

  Status on_hello(Connection& connection, const wire::Message& hello) override {
    if (hello.type == wire::Type::kRefused) {
      Error error = wire::to_error(hello.code, hello.text);
      error.message = connection.peer() + " refused the connection: " + error.message;
      return error;
    }
    if (hello.type != wire::Type::kWelcome || hello.protocol != kProtocolVersion ||
        hello.text != version_) {
      return make_error(Code::kMismatch,
                        connection.peer() + " speaks protocol " + std::to_string(hello.protocol) +
                            " over ucx " + hello.text + ", not " +
                            std::to_string(kProtocolVersion) + " over " + version_);
    }
    return {};
  }

  void on_open(Connection& connection) override {
    Link* link = find_link(connection);
    if (link == nullptr) return;
    for (const ChannelPtr& channel : link->channels) announce(*channel);
    pump(*link);
    const std::vector<ChannelPtr> channels = link->channels;
    for (const ChannelPtr& channel : channels) settle(channel);
  }

  void on_message(Connection& connection, const wire::Message& message) override {
    Link* link = find_link(connection);
    if (link == nullptr || message.type != wire::Type::kResult) return;
    auto it = std::find_if(link->channels.begin(), link->channels.end(), [&](const ChannelPtr& c) {
      return c->to.transfer == message.key.transfer && c->to.attempt == message.key.attempt;
    });
    if (it == link->channels.end()) return;
    const ChannelPtr channel = *it;
    if (message.code == wire::kOk) {
      channel->acknowledged = true;
      settle(channel);
    } else {
      fail(channel, wire::to_error(message.code, message.text), false);
    }
  }

  // A sender takes no records: the bytes are dropped.
  void on_record(Connection&, const Result<wire::RecordHeader>&, void*, size_t, bool) override {
    ++counters_.refused;
  }

  void on_lost(Connection& connection, const Error& error) override {
    Link* link = find_link(connection);
    if (link == nullptr) return;
    auto it = by_address_.find(link->address);
    if (it != by_address_.end() && it->second == link) by_address_.erase(it);
    const std::vector<ChannelPtr> channels = link->channels;
    for (const ChannelPtr& channel : channels) fail(channel, error, false);
  }

  void on_gone(Connection& connection) override {
    auto it = links_.find(&connection);
    if (it == links_.end()) return;
    Link& link = *it->second;
    auto cached = by_address_.find(link.address);
    if (cached != by_address_.end() && cached->second == &link) by_address_.erase(cached);
    const std::vector<ChannelPtr> channels = link.channels;
    for (const ChannelPtr& channel : channels) {
      fail(channel, make_error(Code::kUnavailable, "the connection was closed"), false);
      settle(channel);
    }
    AKV_CHECK(link.channels.empty() && link.reading == 0);
    links_.erase(it);
  }

  TimePoint on_look(TimePoint now) override {
    TimePoint next = TimePoint::max();
    for (const ChannelPtr& channel : table_.all()) {
      if (!channel->ending && now >= channel->deadline) {
        fail(channel, make_error(Code::kDeadlineExceeded, "the transfer's deadline has passed"),
             true);
      }
      settle(channel);
      if (channel->ending && channel->reading > 0) {
        if (now >= channel->drain_until) {
          link_of(*channel)->connection->break_off(
              make_error(Code::kUnavailable, "cut to end a transfer that did not drain in time"));
        } else {
          next = std::min(next, channel->drain_until);
        }
      } else if (!channel->ending) {
        next = std::min(next, channel->deadline);
      }
    }
    for (auto& [connection, link] : links_) next = std::min(next, look_at_link(*link, now));
    return next;
  }

  TimePoint look_at_link(Link& link, TimePoint now) {
    pump(link);
    if (!link.channels.empty() || !link.usable()) return TimePoint::max();
    // The difference is taken this way round because idle_close_ms may be as large as it likes.
    if (ms_between(link.idle_since, now) >= static_cast<double>(config_.idle_close_ms)) {
      leave(*link.connection);
      return TimePoint::max();
    }
    return now + milliseconds(std::min<int64_t>(config_.idle_close_ms, 60000));
  }

  void on_stop() override {
    for (const ChannelPtr& channel : table_.all()) {
      channel->cancelled_here = true;
      fail(channel, make_error(Code::kCancelled, "the sender is closing"), true);
    }
  }

  bool has_transfers() const override { return table_.size() > 0; }

  void on_abandon() override {
    for (const ChannelPtr& channel : table_.all()) end(channel);
  }

  const std::string version_;
  const std::string device_offer_;  // that a landing must make for records from device memory
  SocketAddress local_;
  ChannelTable table_;
  // Progress thread.
  std::unordered_map<const Connection*, std::unique_ptr<Link>> links_;
  std::unordered_map<std::string, Link*> by_address_;
};

}  // namespace

Result<std::unique_ptr<Sender>> make_ucx_sender(const TransportConfig& config) {
  AKV_RETURN_IF_ERROR(validate(config));
  const HostPort& local = config.local_address;
  const bool loopback = !local.host.empty() && is_loopback(local);
  AKV_ASSIGN_OR_RETURN(auto worker, UcxWorker::create(config, loopback ? "lo" : ""));
  auto sender = std::make_unique<UcxSender>(config, std::move(worker));
  AKV_RETURN_IF_ERROR(sender->begin());
  return std::unique_ptr<Sender>(std::move(sender));
}

}  // namespace akv::transport
