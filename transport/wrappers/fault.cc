// Coats that break things: a flipped bit, a transfer that ends half way.
#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "transport/wrappers/coat.h"
#include "transport/wrappers/wrappers.h"

namespace akv::transport {
namespace {

// Knows the first so many channels, which are the ones to break.
class BreakingCoat : public SenderCoat {
 public:
  BreakingCoat(std::unique_ptr<Sender> inner, uint64_t channels_max)
      : SenderCoat(std::move(inner)), channels_max_(channels_max) {}

  Result<ChannelId> open(const LandingAddress& to, TimePoint deadline,
                         SendEventFn on_event) override {
    auto channel = SenderCoat::open(to, deadline, std::move(on_event));
    std::lock_guard lock(broken_mutex_);
    if (channel.ok() && opened_++ < channels_max_) broken_.insert(channel->value);
    return channel;
  }

 protected:
  bool breaks(ChannelId channel) const {
    std::lock_guard lock(broken_mutex_);
    return broken_.contains(channel.value);
  }

 private:
  const uint64_t channels_max_;
  mutable std::mutex broken_mutex_;
  uint64_t opened_ = 0;
  std::unordered_set<uint64_t> broken_;
};

class CorruptingSender final : public BreakingCoat {
 public:
  CorruptingSender(std::unique_ptr<Sender> inner, uint32_t record, uint64_t bit,
                   uint64_t channels_max)
      : BreakingCoat(std::move(inner), channels_max), record_(record), bit_(bit) {}

  Status post(ChannelId channel, uint32_t record, Payload payload) override {
    if (record != record_ || payload.bytes.empty() || !breaks(channel)) {
      return SenderCoat::post(channel, record, std::move(payload));
    }
    auto copy =
        std::make_shared<std::vector<std::byte>>(payload.bytes.begin(), payload.bytes.end());
    const uint64_t bit = bit_ % (8 * static_cast<uint64_t>(copy->size()));
    (*copy)[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    return SenderCoat::post(channel, record, Payload{*copy, copy});
  }

 private:
  const uint32_t record_;
  const uint64_t bit_;
};

class CuttingSender final : public BreakingCoat {
 public:
  CuttingSender(std::unique_ptr<Sender> inner, uint64_t records_max, uint64_t bytes_max, Cut cut,
                uint64_t channels_max)
      : BreakingCoat(std::move(inner), channels_max),
        records_max_(records_max),
        bytes_max_(bytes_max),
        cut_(cut) {}

  Status post(ChannelId channel, uint32_t record, Payload payload) override {
    if (!breaks(channel)) return SenderCoat::post(channel, record, std::move(payload));
    bool last = false;
    {
      std::lock_guard lock(mutex_);
      Passed& passed = passed_[channel.value];
      if (passed.cut) return {};  // swallowed
      const uint64_t room = bytes_max_ - passed.bytes;
      if (passed.records >= records_max_ || room == 0) {
        passed.cut = last = true;
        payload.bytes = {};
      } else if (payload.bytes.size() > room) {
        passed.cut = last = true;
        payload.bytes = payload.bytes.first(room);
      }
      ++passed.records;
      passed.bytes += payload.bytes.size();
    }
    Status status;
    if (!payload.bytes.empty()) status = SenderCoat::post(channel, record, std::move(payload));
    if (last && cut_ == Cut::kCancel) SenderCoat::cancel(channel);
    return status;
  }

  Status finish(ChannelId channel) override {
    {
      std::lock_guard lock(mutex_);
      const bool cut = passed_[channel.value].cut;
      passed_.erase(channel.value);
      if (cut) return {};  // the receiver is left waiting, or was told by the cancel
    }
    return SenderCoat::finish(channel);
  }

  void cancel(ChannelId channel) override {
    {
      std::lock_guard lock(mutex_);
      passed_.erase(channel.value);
    }
    SenderCoat::cancel(channel);
  }

 private:
  struct Passed {
    uint64_t records = 0;
    uint64_t bytes = 0;
    bool cut = false;
  };
  const uint64_t records_max_;
  const uint64_t bytes_max_;
  const Cut cut_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, Passed> passed_;  // by channel; guarded by mutex_
};

}  // namespace

std::unique_ptr<Sender> corrupt_record(std::unique_ptr<Sender> inner, uint32_t record, uint64_t bit,
                                       uint64_t channels_max) {
  return std::make_unique<CorruptingSender>(std::move(inner), record, bit, channels_max);
}

std::unique_ptr<Sender> cut_after_records(std::unique_ptr<Sender> inner, uint32_t records, Cut cut,
                                          uint64_t channels_max) {
  return std::make_unique<CuttingSender>(std::move(inner), records, UINT64_MAX, cut, channels_max);
}

std::unique_ptr<Sender> cut_after_bytes(std::unique_ptr<Sender> inner, uint64_t bytes, Cut cut,
                                        uint64_t channels_max) {
  return std::make_unique<CuttingSender>(std::move(inner), UINT64_MAX, bytes, cut, channels_max);
}

}  // namespace akv::transport
