#include "transport/channel_table.h"

#include <string>

namespace akv::transport {

ChannelTable::ChannelTable(const TransportConfig& config, std::string_view transport,
                           std::string_view version)
    : transfers_max_(config.transfers_max),
      records_max_(config.records_max),
      record_bytes_max_(config.record_bytes_max),
      transport_(transport),
      version_(version) {}

Result<ChannelPtr> ChannelTable::open(const LandingAddress& to, TimePoint deadline,
                                      SendEventFn on_event) {
  if (to.transport != transport_) {
    return make_error(Code::kMismatch,
                      "the landing is for transport '" + to.transport + "', this is " + transport_,
                      "transport");
  }
  if (to.version != version_) {
    return make_error(Code::kMismatch,
                      "the landing's " + transport_ + " is version '" + to.version +
                          "', this one is " + version_ + "; both ends need the same",
                      "version");
  }
  if (to.transfer.is_zero() || to.token.is_zero() || to.state_address.port == 0) {
    return make_error(Code::kInvalidArgument, "a landing address without id, token or port");
  }
  if (!on_event) return make_error(Code::kInvalidArgument, "open without an event handler");
  auto channel = std::make_shared<Channel>();
  channel->to = to;
  channel->deadline = deadline;
  channel->on_event = std::move(on_event);
  std::lock_guard lock(mutex_);
  if (closed_) return make_error(Code::kUnavailable, "the sender is closing");
  if (channels_.size() >= transfers_max_) {
    return make_error(Code::kResourceExhausted,
                      std::to_string(transfers_max_) + " transfers are open already");
  }
  channel->id = ChannelId{next_id_++};
  channels_.emplace(channel->id.value, channel);
  return channel;
}

Result<ChannelPtr> ChannelTable::accepting_locked(ChannelId id) const {
  auto it = channels_.find(id.value);
  if (it == channels_.end() || !it->second->accepting) {
    return make_error(Code::kNotFound, "channel " + std::to_string(id.value) + " has ended");
  }
  return it->second;
}

Result<ChannelPtr> ChannelTable::admit_post(ChannelId id, uint32_t record, uint64_t bytes) {
  if (bytes == 0 || bytes > record_bytes_max_) {
    return make_error(Code::kInvalidArgument, "a record of " + std::to_string(bytes) +
                                                  " bytes, must be in [1, " +
                                                  std::to_string(record_bytes_max_) + "]");
  }
  std::lock_guard lock(mutex_);
  AKV_ASSIGN_OR_RETURN(ChannelPtr channel, accepting_locked(id));
  const auto& sizes = channel->to.sizes;
  if (!sizes.empty() && (record >= sizes.size() || sizes[record] != bytes)) {
    return make_error(Code::kInvalidArgument, "record " + std::to_string(record) + " of " +
                                                  std::to_string(bytes) +
                                                  " bytes is not what the landing expects");
  }
  if (channel->posted >= records_max_) {
    return make_error(Code::kResourceExhausted,
                      "more than " + std::to_string(records_max_) + " records in one transfer");
  }
  ++channel->posted;
  return channel;
}

Result<ChannelPtr> ChannelTable::admit_finish(ChannelId id) {
  std::lock_guard lock(mutex_);
  AKV_ASSIGN_OR_RETURN(ChannelPtr channel, accepting_locked(id));
  channel->accepting = false;
  return channel;
}

ChannelPtr ChannelTable::find(ChannelId id) const {
  std::lock_guard lock(mutex_);
  auto it = channels_.find(id.value);
  return it == channels_.end() ? nullptr : it->second;
}

void ChannelTable::stop_accepting(Channel& channel) {
  std::lock_guard lock(mutex_);
  channel.accepting = false;
}

void ChannelTable::remove(ChannelId id) {
  std::lock_guard lock(mutex_);
  channels_.erase(id.value);
}

std::vector<ChannelPtr> ChannelTable::all() const {
  std::lock_guard lock(mutex_);
  std::vector<ChannelPtr> out;
  out.reserve(channels_.size());
  for (const auto& [id, channel] : channels_) out.push_back(channel);
  return out;
}

size_t ChannelTable::size() const {
  std::lock_guard lock(mutex_);
  return channels_.size();
}

void ChannelTable::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
}

}  // namespace akv::transport
