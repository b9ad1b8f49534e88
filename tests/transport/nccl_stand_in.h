// NCCL's two-rank communicators inside one process: the n-th send of one end meets the n-th receive
// of the other. Delivers, delays, fails, hangs and aborts as a test says.
#pragma once

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "transport/nccl/nccl.h"

namespace akv::transport {

class NcclStandIn final : public Nccl {
 public:
  // Faults, to be set at any time.
  std::atomic<int64_t> delay_ms{0};       // from both ends' calls to the copy
  std::atomic<int64_t> fail_after{-1};    // messages that pass before the network fails; -1: never
  std::atomic<bool> hang{false};          // nothing is copied, nothing is said
  std::atomic<bool> nobody_joins{false};  // ready() stays false
  std::atomic<bool> refuse{false};        // join() fails
  std::atomic<bool> refuse_sends{false}, refuse_receives{false};  // the calls themselves fail
  std::atomic<bool> fail_sender{
      false};  // once a message is received, its sender hears of a failure
  std::atomic<uint32_t> version_number{22809};
  std::atomic<uint64_t> messages{0};  // copied
  std::atomic<uint64_t> joined{0};    // ends made
  std::atomic<uint64_t> device_sends{0}, device_receives{0};
  // An aborted receiver takes a while, and leaves rubbish in the device memory that it was
  // receiving to. Host memory is written once all bytes are there, or not at all.
  std::atomic<bool> spoil{false};

  uint32_t version() const override { return version_number; }

  Result<NcclUniqueId> unique_id() override {
    NcclUniqueId id;
    const Id128 random = Id128::random();
    std::memcpy(id.bytes.data(), &random, sizeof(random));
    return id;
  }

  Result<std::unique_ptr<NcclLink>> join(const NcclUniqueId& id, int rank) override {
    if (refuse) return make_error(Code::kUnavailable, "the stand-in refuses");
    ++joined;
    Id128 key;
    std::memcpy(&key, id.bytes.data(), sizeof(key));
    std::lock_guard lock(mutex_);
    std::shared_ptr<Wire>& wire = wires_[key];
    if (!wire) wire = std::make_shared<Wire>();
    std::lock_guard wire_lock(wire->mutex);
    wire->present[rank] = true;
    return std::unique_ptr<NcclLink>(std::make_unique<End>(*this, wire, rank));
  }
  Result<std::unique_ptr<NcclLink>> join_alone() override {
    return make_error(Code::kUnsupported, "the stand-in has two ranks");
  }

 private:
  struct Message {
    const std::byte* from = nullptr;  // the sender's bytes
    std::byte* to = nullptr;          // the receiver's
    bool to_device = false;
    size_t sent_bytes = 0, received_bytes = 0;
    TimePoint met{};
    bool copied = false;
    bool receiver_knows = false;
  };
  struct Wire {
    std::mutex mutex;
    bool present[2] = {false, false};
    bool aborted = false;
    bool failed = false;
    std::map<uint64_t, Message> messages;
  };

  class End final : public NcclLink {
   public:
    End(NcclStandIn& nccl, std::shared_ptr<Wire> wire, int rank)
        : nccl_(nccl), wire_(std::move(wire)), rank_(rank) {}
    ~End() override { abort(); }

    Result<bool> ready() override {
      std::lock_guard lock(wire_->mutex);
      if (wire_->aborted) return make_error(Code::kUnavailable, "the other rank has aborted");
      return wire_->present[1 - rank_] && !nccl_.nobody_joins;
    }
    Result<uint64_t> send(std::span<const std::byte> host, const std::byte* device) override {
      if (nccl_.refuse_sends) return make_error(Code::kUnavailable, "no connection");
      if (device != nullptr) ++nccl_.device_sends;
      std::lock_guard lock(wire_->mutex);
      Message& message = wire_->messages[next_];
      message.from = device != nullptr ? device : host.data();
      message.sent_bytes = host.size();
      return next_++;
    }
    Result<uint64_t> receive(std::span<std::byte> host, std::byte* device) override {
      if (nccl_.refuse_receives) return make_error(Code::kUnavailable, "no connection");
      if (device != nullptr) ++nccl_.device_receives;
      std::lock_guard lock(wire_->mutex);
      Message& message = wire_->messages[next_];
      message.to = device != nullptr ? device : host.data();
      message.to_device = device != nullptr;
      message.received_bytes = host.size();
      return next_++;
    }
    Result<bool> done(uint64_t operation) override {
      std::lock_guard lock(wire_->mutex);
      if (wire_->failed) return make_error(Code::kUnavailable, "the network failed");
      if (wire_->aborted) return make_error(Code::kUnavailable, "the other rank has aborted");
      Message& message = wire_->messages[operation];
      Result<bool> copied = copy(message);
      if (!copied.ok() || !*copied) return copied;
      if (rank_ == 1) message.receiver_knows = true;
      if (rank_ == 1 || !nccl_.fail_sender) return true;
      if (!message.receiver_knows) return false;
      return make_error(Code::kUnavailable, "the sender's network failed");
    }
    uint32_t window() const override { return 4; }
    void abort() override {
      std::unique_lock lock(wire_->mutex);
      wire_->aborted = true;  // nothing is copied any more
      if (rank_ == 0) return;
      if (nccl_.spoil && !wire_->messages.empty()) {
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        lock.lock();
      }
      for (auto& [number, m] : wire_->messages) {
        if (nccl_.spoil && m.to_device && !m.copied) std::memset(m.to, 0xee, m.received_bytes);
      }
      wire_->messages.clear();
    }

   private:
    Result<bool> copy(Message& m) {
      if (m.copied) return true;
      if (m.from == nullptr || m.to == nullptr || nccl_.hang) return false;
      if (m.met == TimePoint{}) m.met = SteadyClock::now();
      if (ms_since(m.met) < static_cast<double>(nccl_.delay_ms)) return false;
      if (m.sent_bytes != m.received_bytes) {
        wire_->failed = true;
        return make_error(Code::kInternal, "the ends disagree on the length");
      }
      if (nccl_.fail_after >= 0 && nccl_.messages >= static_cast<uint64_t>(nccl_.fail_after)) {
        wire_->failed = true;
        return make_error(Code::kUnavailable, "the network failed");
      }
      std::memcpy(m.to, m.from, m.sent_bytes);
      m.copied = true;
      ++nccl_.messages;
      return true;
    }

    NcclStandIn& nccl_;
    const std::shared_ptr<Wire> wire_;
    const int rank_;
    uint64_t next_ = 0;
  };

  std::mutex mutex_;
  std::map<Id128, std::shared_ptr<Wire>> wires_;  // guarded by mutex_
};

}  // namespace akv::transport
