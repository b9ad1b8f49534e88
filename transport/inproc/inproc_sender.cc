#include <algorithm>

#include "transport/channel_table.h"
#include "transport/inproc/network.h"

namespace akv::transport {
namespace {

class InprocSender final : public Sender, public InprocSenderEnd {
 public:
  InprocSender(std::shared_ptr<InprocNetwork> network, const TransportConfig& config)
      : network_(std::move(network)), table_(config, "inproc", "1") {
    network_->call([this] { network_->add_sender(this); });
  }

  ~InprocSender() override {
    table_.close();
    network_->call([this] {
      for (const ChannelPtr& channel : table_.all()) {
        channel->cancelled_here = true;
        fail(*channel, make_error(Code::kCancelled, "the sender is closing"), true);
      }
      network_->remove_sender(this);
    });
  }

  Result<ChannelId> open(const LandingAddress& to, TimePoint deadline,
                         SendEventFn on_event) override {
    AKV_ASSIGN_OR_RETURN(ChannelPtr channel, table_.open(to, deadline, std::move(on_event)));
    ++counters_.started;
    ++counters_.transfers_open;
    network_->push([this, channel] { start(*channel); });
    return channel->id;
  }

  Status post(ChannelId id, uint32_t record, Payload payload) override {
    AKV_ASSIGN_OR_RETURN(ChannelPtr channel, table_.admit_post(id, record, payload.bytes.size()));
    network_->push([this, channel = std::move(channel), record, payload = std::move(payload)] {
      send(*channel, record, payload);
    });
    return {};
  }

  Status finish(ChannelId id) override {
    AKV_ASSIGN_OR_RETURN(ChannelPtr channel, table_.admit_finish(id));
    network_->push([this, channel] { finish_now(*channel); });
    return {};
  }

  void cancel(ChannelId id) override {
    network_->push([this, id] {
      ChannelPtr channel = table_.find(id);
      if (!channel || channel->ending) return;
      channel->cancelled_here = true;
      fail(*channel, make_error(Code::kCancelled, "cancelled by the sender"), true);
    });
  }

  std::string_view name() const override { return "inproc"; }
  std::string_view version() const override { return "1"; }
  TransportStats stats() const override { return counters_.snapshot(); }

  void on_result(const Id128& transfer, uint32_t attempt, const Status& result) override {
    for (const ChannelPtr& channel : table_.all()) {
      if (channel->to.transfer != transfer || channel->to.attempt != attempt || !channel->opened) {
        continue;
      }
      if (!result.ok()) {
        fail(*channel, result.error(), false);
      } else {
        channel->acknowledged = true;
        end_if_complete(*channel);
      }
    }
  }

  TimePoint expire(TimePoint now) override {
    TimePoint next = TimePoint::max();
    for (const ChannelPtr& channel : table_.all()) {
      if (now >= channel->deadline) {
        fail(*channel, make_error(Code::kDeadlineExceeded, "the transfer's deadline has passed"),
             true);
      } else {
        next = std::min(next, channel->deadline);
      }
    }
    return next;
  }

 private:
  InprocReceiverEnd* peer(const Channel& channel) const {
    return network_->receiver(channel.to.state_address.port);
  }

  void start(Channel& channel) {
    if (channel.ending) return;
    InprocReceiverEnd* to = peer(channel);
    if (to == nullptr) {
      fail(channel,
           make_error(Code::kUnavailable, "nobody listens at " + channel.to.state_address.str()),
           false);
      return;
    }
    channel.opened = true;
    Status status =
        to->on_open(channel.to.transfer, channel.to.token, channel.to.attempt, &channel);
    if (!status.ok()) fail(channel, status.error(), false);
  }

  void send(Channel& channel, uint32_t record, const Payload& payload) {
    if (channel.ending) return;
    InprocReceiverEnd* to = peer(channel);
    if (to == nullptr) {
      fail(channel, make_error(Code::kUnavailable, "the receiver has gone"), false);
      return;
    }
    const LandingAddress& a = channel.to;
    Status status = to->on_record(a.transfer, a.token, a.attempt, &channel, record, payload.bytes);
    if (!status.ok()) {
      fail(channel, status.error(), false);
      return;
    }
    ++channel.records;
    ++counters_.records;
    counters_.bytes += payload.bytes.size();
    channel.on_event(RecordSent{record});
    to->on_landed(a.transfer, record);
  }

  void finish_now(Channel& channel) {
    if (channel.ending) return;
    channel.finishing = true;
    if (channel.acknowledged) {
      end_if_complete(channel);
    } else if (InprocReceiverEnd* to = peer(channel)) {
      to->on_finish(channel.to.transfer, &channel, channel.records);
    }
  }

  void end_if_complete(Channel& channel) {
    if (channel.ending || !channel.acknowledged || !channel.finishing) return;
    channel.ending = Error{};  // nothing may follow
    ChannelPtr keep = table_.find(channel.id);
    table_.remove(channel.id);
    counters_.count_end(nullptr, false);
    channel.on_event(Complete{});
  }

  void fail(Channel& channel, const Error& error, bool tell) {
    if (channel.ending) return;
    channel.ending = error;
    ChannelPtr keep = table_.find(channel.id);
    table_.stop_accepting(channel);
    table_.remove(channel.id);
    InprocReceiverEnd* to = peer(channel);
    if (tell && channel.opened && to != nullptr) to->on_abort(channel.to.transfer, &channel, error);
    counters_.count_end(&error, channel.cancelled_here);
    channel.on_event(Failed{error});
  }

  const std::shared_ptr<InprocNetwork> network_;
  ChannelTable table_;
  Counters counters_;
};

}  // namespace

Result<std::unique_ptr<Sender>> make_inproc_sender(std::shared_ptr<InprocNetwork> network,
                                                   const TransportConfig& config) {
  AKV_RETURN_IF_ERROR(validate(config));
  return std::unique_ptr<Sender>(std::make_unique<InprocSender>(std::move(network), config));
}

}  // namespace akv::transport
