#include <atomic>

#include "transport/wrappers/coat.h"
#include "transport/wrappers/wrappers.h"

namespace akv::transport {
namespace {

struct Tally {
  std::atomic<uint64_t> opens{0}, posts{0}, bytes{0}, finishes{0}, cancels{0};
  std::atomic<uint64_t> completes{0}, failures{0};
};

class Counting final : public CountingSender {
 public:
  explicit Counting(std::unique_ptr<Sender> inner) : inner_(std::move(inner)) {}

  Result<ChannelId> open(const LandingAddress& to, TimePoint deadline,
                         SendEventFn on_event) override {
    // The handler shares the tally: it may run while this coat is being destroyed.
    auto counted = [tally = tally_, on_event = std::move(on_event)](const SendEvent& event) {
      if (std::holds_alternative<Complete>(event)) ++tally->completes;
      if (std::holds_alternative<Failed>(event)) ++tally->failures;
      on_event(event);
    };
    auto channel = inner_->open(to, deadline, std::move(counted));
    if (channel.ok()) ++tally_->opens;
    return channel;
  }
  Status post(ChannelId channel, uint32_t record, Payload payload) override {
    const uint64_t bytes = payload.bytes.size();
    Status status = inner_->post(channel, record, std::move(payload));
    if (status.ok()) {
      ++tally_->posts;
      tally_->bytes += bytes;
    }
    return status;
  }
  Status finish(ChannelId channel) override {
    Status status = inner_->finish(channel);
    if (status.ok()) ++tally_->finishes;
    return status;
  }
  void cancel(ChannelId channel) override {
    ++tally_->cancels;
    inner_->cancel(channel);
  }
  bool reads_device(const LandingAddress& to) const override { return inner_->reads_device(to); }
  std::string_view name() const override { return inner_->name(); }
  std::string_view version() const override { return inner_->version(); }
  TransportStats stats() const override { return inner_->stats(); }
  SendCount count() const override {
    return {tally_->opens,   tally_->posts,     tally_->bytes,   tally_->finishes,
            tally_->cancels, tally_->completes, tally_->failures};
  }

 private:
  const std::shared_ptr<Tally> tally_ = std::make_shared<Tally>();
  const std::unique_ptr<Sender> inner_;
};

}  // namespace

std::unique_ptr<CountingSender> count_sends(std::unique_ptr<Sender> inner) {
  return std::make_unique<Counting>(std::move(inner));
}

}  // namespace akv::transport
