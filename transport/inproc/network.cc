#include "transport/inproc/network.h"

#include <algorithm>
#include <future>

namespace akv::transport {

std::shared_ptr<InprocNetwork> make_inproc_network() { return std::make_shared<InprocNetwork>(); }

InprocNetwork::InprocNetwork() : thread_([this] { loop(); }) {}

InprocNetwork::~InprocNetwork() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void InprocNetwork::push(std::function<void()> command) {
  {
    std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
  }
  wake_.notify_one();
}

void InprocNetwork::call(const std::function<void()>& command) {
  std::promise<void> done;
  push([&] {
    command();
    done.set_value();
  });
  done.get_future().wait();
}

uint16_t InprocNetwork::add_receiver(InprocReceiverEnd* end) {
  for (int tries = 0; tries < UINT16_MAX; ++tries) {
    if (++last_port_ == 0) ++last_port_;
    if (receivers_.emplace(last_port_, end).second) return last_port_;
  }
  return 0;
}

InprocReceiverEnd* InprocNetwork::receiver(uint16_t port) const {
  auto it = receivers_.find(port);
  return it == receivers_.end() ? nullptr : it->second;
}

void InprocNetwork::tell_senders(const Id128& transfer, uint32_t attempt, const Status& result) {
  for (size_t i = 0; i < senders_.size(); ++i) senders_[i]->on_result(transfer, attempt, result);
}

TimePoint InprocNetwork::expire_all() {
  const TimePoint now = SteadyClock::now();
  TimePoint next = TimePoint::max();
  for (InprocSenderEnd* end : senders_) next = std::min(next, end->expire(now));
  for (auto& [port, end] : receivers_) next = std::min(next, end->expire(now));
  return next;
}

void InprocNetwork::loop() {
  std::vector<std::function<void()>> running;
  TimePoint next = TimePoint::max();
  while (true) {
    {
      std::unique_lock lock(mutex_);
      auto ready = [&] { return stop_ || !commands_.empty(); };
      // wait_until(max) overflows in some libraries, so a wait without deadline is its own case.
      if (next == TimePoint::max()) {
        wake_.wait(lock, ready);
      } else {
        wake_.wait_until(lock, next, ready);
      }
      if (stop_ && commands_.empty()) return;
      running.swap(commands_);
    }
    for (auto& command : running) command();
    running.clear();  // drops what the commands kept alive
    next = expire_all();
  }
}

}  // namespace akv::transport
