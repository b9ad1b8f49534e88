// One communicator and the thread that feeds it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "transport/nccl/nccl.h"

namespace akv::transport {

struct PairLimits {
  int64_t join_timeout_ms = 5000;  // until the other rank is there
  int64_t stall_ms = 3000;         // an operation, or a gap in the sequence, may take this long
};

// Operations of one direction, issued strictly in the order of their numbers whatever order they
// come in: NCCL matches the n-th send with the n-th receive and knows no other name for them.
// Thread-safe. Each operation's done runs exactly once, on the pair's thread (or the caller's, when
// the pair is broken already), with no lock held, when its memory is not touched any more.
class Pair {
 public:
  using DoneFn = std::function<void(const Status&)>;

  Pair(std::unique_ptr<NcclLink> link, const PairLimits& limits);
  // Breaks the pair off and waits for its thread.
  ~Pair();
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  // Queues a message to the peer; returns its number, which the peer's receive() needs.
  uint64_t send(std::span<const std::byte> host, const std::byte* device, DoneFn done);
  void receive(uint64_t number, std::span<std::byte> host, std::byte* device, DoneFn done);

  // Aborts the communicator; outstanding operations end with the error. First cause wins.
  void break_off(Error error);
  bool broken() const;

 private:
  struct Operation {
    std::span<const std::byte> out;
    std::span<std::byte> in;
    const std::byte* from_device = nullptr;
    std::byte* to_device = nullptr;
    DoneFn done;
    uint64_t link_number = 0;
    TimePoint since;
  };
  void put(uint64_t number, Operation operation);
  std::optional<Error> try_put(uint64_t number, Operation& operation);
  void run();
  bool join();
  bool issue();
  bool collect();
  void watch(TimePoint now);
  void end_all();
  bool wait_for_work(std::chrono::microseconds pause);

  const std::unique_ptr<NcclLink> link_;
  const PairLimits limits_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::map<uint64_t, Operation> waiting_;  // guarded by mutex_; by number
  std::optional<Error> broken_;            // guarded by mutex_
  bool over_ = false;                      // guarded by mutex_: the thread takes nothing any more
  uint64_t next_number_ = 0;               // guarded by mutex_: of send()
  uint64_t next_issued_ = 0;               // guarded by mutex_
  TimePoint gap_since_{};                  // guarded by mutex_
  std::deque<Operation> flying_;           // pair thread
  std::thread thread_;
};

}  // namespace akv::transport
