#include "transport/nccl/pair.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

namespace akv::transport {
namespace {

using std::chrono::microseconds;

// Polling a stream costs a microsecond and NCCL reports nothing by itself: quick at first, then
// easy on the cores.
constexpr microseconds kPauseMin{20};
constexpr microseconds kPauseMax{500};

}  // namespace

Pair::Pair(std::unique_ptr<NcclLink> link, const PairLimits& limits)
    : link_(std::move(link)), limits_(limits) {
  thread_ = std::thread([this] { run(); });
}

Pair::~Pair() {
  break_off(make_error(Code::kUnavailable, "the NCCL pair is closed"));
  thread_.join();
}

void Pair::break_off(Error error) {
  {
    std::lock_guard lock(mutex_);
    if (!broken_) broken_ = std::move(error);
  }
  wake_.notify_all();
}

bool Pair::broken() const {
  std::lock_guard lock(mutex_);
  return broken_.has_value();
}

uint64_t Pair::send(std::span<const std::byte> host, const std::byte* device, DoneFn done) {
  Operation operation;
  operation.out = host;
  operation.from_device = device;
  operation.done = std::move(done);
  uint64_t number = 0;
  {
    std::lock_guard lock(mutex_);
    number = next_number_++;
  }
  put(number, std::move(operation));
  return number;
}

void Pair::receive(uint64_t number, std::span<std::byte> host, std::byte* device, DoneFn done) {
  Operation operation;
  operation.in = host;
  operation.to_device = device;
  operation.done = std::move(done);
  put(number, std::move(operation));
}

void Pair::put(uint64_t number, Operation operation) {
  const std::optional<Error> refused = try_put(number, operation);
  wake_.notify_all();
  if (refused) operation.done(*refused);
}

// Takes the operation, or says why not and leaves it.
std::optional<Error> Pair::try_put(uint64_t number, Operation& operation) {
  std::lock_guard lock(mutex_);
  if (over_) return broken_;
  if (number < next_issued_ || waiting_.contains(number)) {
    // A peer that numbers two messages alike has lost the sequence: nothing after it would fit.
    if (!broken_) {
      broken_ = make_error(Code::kDataLoss, "NCCL message " + std::to_string(number) + " again");
    }
    return broken_;
  }
  waiting_.emplace(number, std::move(operation));
  return std::nullopt;
}

void Pair::run() {
  if (join()) {
    microseconds pause = kPauseMin;
    while (wait_for_work(pause)) {
      if (!issue()) break;  // what is not under way must not be asked for
      pause = collect() ? kPauseMin : std::min(2 * pause, kPauseMax);
      watch(SteadyClock::now());
    }
  }
  end_all();
}

// Sleeps while there is nothing to do, or for `pause` while operations fly. False: broken.
bool Pair::wait_for_work(microseconds pause) {
  std::unique_lock lock(mutex_);
  const auto ready = [this] {
    return broken_ || (flying_.size() < link_->window() && waiting_.contains(next_issued_));
  };
  if (!flying_.empty()) {
    wake_.wait_for(lock, pause, ready);
  } else if (!waiting_.empty()) {
    wake_.wait_for(lock, std::chrono::milliseconds(50), ready);  // a gap: watch() bounds it
  } else {
    wake_.wait(lock, [&] { return ready() || !waiting_.empty(); });
  }
  return !broken_;
}

bool Pair::join() {
  const TimePoint end = after_ms(limits_.join_timeout_ms);
  for (;;) {
    const Result<bool> ready = link_->ready();
    if (!ready.ok()) {
      break_off(ready.error());
      return false;
    }
    if (*ready) return true;
    if (SteadyClock::now() >= end) {
      break_off(make_error(Code::kUnavailable, "the peer did not join the NCCL communicator"));
    }
    std::unique_lock lock(mutex_);
    if (wake_.wait_for(lock, std::chrono::milliseconds(1), [this] { return broken_.has_value(); }))
      return false;
  }
}

// False: the link took an operation no more, which ends with the rest.
bool Pair::issue() {
  while (flying_.size() < link_->window()) {
    Operation operation;
    {
      std::lock_guard lock(mutex_);
      const auto next = waiting_.find(next_issued_);
      if (next == waiting_.end() || broken_) return true;
      operation = std::move(next->second);
      waiting_.erase(next);
      ++next_issued_;
      gap_since_ = {};
    }
    operation.since = SteadyClock::now();
    const Result<uint64_t> number = operation.in.empty()
                                        ? link_->send(operation.out, operation.from_device)
                                        : link_->receive(operation.in, operation.to_device);
    if (number.ok()) operation.link_number = *number;
    flying_.push_back(std::move(operation));
    if (number.ok()) continue;
    break_off(number.error());
    return false;
  }
  return true;
}

// Ends what is over, in order; true if anything was.
bool Pair::collect() {
  bool any = false;
  while (!flying_.empty()) {
    const Result<bool> done = link_->done(flying_.front().link_number);
    if (!done.ok()) {
      break_off(done.error());
      return any;
    }
    if (!*done) return any;
    const DoneFn callback = std::move(flying_.front().done);
    flying_.pop_front();
    callback(Status{});
    any = true;
  }
  return any;
}

void Pair::watch(TimePoint now) {
  const auto limit = static_cast<double>(limits_.stall_ms);
  if (!flying_.empty() && ms_between(flying_.front().since, now) > limit) {
    return break_off(make_error(Code::kUnavailable, "an NCCL operation does not end"));
  }
  bool lost = false;
  {
    std::lock_guard lock(mutex_);
    const bool gap = !waiting_.empty() && !waiting_.contains(next_issued_);
    if (!gap) {
      gap_since_ = {};
    } else if (gap_since_ == TimePoint{}) {
      gap_since_ = now;
    } else {
      lost = ms_between(gap_since_, now) > limit;
    }
  }
  if (lost) break_off(make_error(Code::kUnavailable, "an NCCL message was announced by nobody"));
}

void Pair::end_all() {
  link_->abort();
  std::vector<DoneFn> ends;
  Error error;
  for (Operation& operation : flying_) ends.push_back(std::move(operation.done));
  flying_.clear();
  {
    std::lock_guard lock(mutex_);
    over_ = true;
    error = *broken_;
    for (auto& [number, operation] : waiting_) ends.push_back(std::move(operation.done));
    waiting_.clear();
  }
  for (const DoneFn& done : ends) done(error);
}

}  // namespace akv::transport
