// The plain coat: hands everything through. Wrappers override what they change.
#pragma once

#include <memory>

#include "transport/transport.h"

namespace akv::transport {

class SenderCoat : public Sender {
 public:
  explicit SenderCoat(std::unique_ptr<Sender> inner) : inner_(std::move(inner)) {}
  Result<ChannelId> open(const LandingAddress& to, TimePoint deadline,
                         SendEventFn on_event) override {
    return inner_->open(to, deadline, std::move(on_event));
  }
  Status post(ChannelId channel, uint32_t record, Payload payload) override {
    return inner_->post(channel, record, std::move(payload));
  }
  Status finish(ChannelId channel) override { return inner_->finish(channel); }
  void cancel(ChannelId channel) override { inner_->cancel(channel); }
  bool reads_device(const LandingAddress& to) const override { return inner_->reads_device(to); }
  std::string_view name() const override { return inner_->name(); }
  std::string_view version() const override { return inner_->version(); }
  TransportStats stats() const override { return inner_->stats(); }

 protected:
  Sender& inner() { return *inner_; }

 private:
  std::unique_ptr<Sender> inner_;
};

}  // namespace akv::transport
