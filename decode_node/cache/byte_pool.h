// The one memory budget of a decode engine: --max-state-bytes, shared by states and suffix pages.
#pragma once

#include <atomic>
#include <cstdint>

namespace akv::decode {

// Accounting only; the owner of the bytes frees them before it gives their count back. Written by
// the engine thread; the counters may be read by any thread.
class BytePool {
 public:
  // page_share of the capacity is never given to states, so that live sessions can always grow.
  BytePool(uint64_t capacity, double page_share)
      : capacity_(capacity),
        state_capacity_(capacity -
                        static_cast<uint64_t>(page_share * static_cast<double>(capacity))) {}

  // Reserves a state's exact bytes together with its first suffix page: both or nothing.
  bool reserve_session(uint64_t state_bytes, uint64_t page_bytes) {
    const uint64_t states = states_.load(std::memory_order_relaxed);
    const uint64_t pages = pages_.load(std::memory_order_relaxed);
    if (states + state_bytes > state_capacity_) return false;
    if (states + pages + state_bytes + page_bytes > capacity_) return false;
    states_.store(states + state_bytes, std::memory_order_relaxed);
    pages_.store(pages + page_bytes, std::memory_order_relaxed);
    return true;
  }
  // Reserves a state that comes back; its session pays for pages as it grows.
  bool reserve_state(uint64_t bytes) {
    const uint64_t states = states_.load(std::memory_order_relaxed);
    if (states + bytes > state_capacity_) return false;
    if (states + pages_.load(std::memory_order_relaxed) + bytes > capacity_) return false;
    states_.store(states + bytes, std::memory_order_relaxed);
    return true;
  }
  // True if a state of this size could ever be admitted, on an empty pool.
  bool could_hold(uint64_t state_bytes, uint64_t page_bytes) const {
    return state_bytes <= state_capacity_ && state_bytes + page_bytes <= capacity_;
  }
  void release_state(uint64_t bytes) { states_.fetch_sub(bytes, std::memory_order_relaxed); }

  bool reserve_page(uint64_t bytes) {
    const uint64_t pages = pages_.load(std::memory_order_relaxed);
    if (states_.load(std::memory_order_relaxed) + pages + bytes > capacity_) return false;
    pages_.store(pages + bytes, std::memory_order_relaxed);
    return true;
  }
  void release_pages(uint64_t bytes) { pages_.fetch_sub(bytes, std::memory_order_relaxed); }

  uint64_t free_bytes() const { return capacity_ - state_bytes() - page_bytes(); }
  uint64_t capacity() const { return capacity_; }
  uint64_t state_capacity() const { return state_capacity_; }
  uint64_t state_bytes() const { return states_.load(std::memory_order_relaxed); }
  uint64_t page_bytes() const { return pages_.load(std::memory_order_relaxed); }
  // Of the capacity, 0 to 1.
  double used_share() const {
    return static_cast<double>(state_bytes() + page_bytes()) / static_cast<double>(capacity_);
  }

 private:
  const uint64_t capacity_;
  const uint64_t state_capacity_;
  std::atomic<uint64_t> states_{0};
  std::atomic<uint64_t> pages_{0};
};

}  // namespace akv::decode
