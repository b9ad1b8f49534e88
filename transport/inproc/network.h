// The progress thread that all inproc senders and receivers of one network share.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "transport/inproc/inproc_transport.h"

namespace akv::transport {

// What the network's thread asks of a sender.
class InprocSenderEnd {
 public:
  virtual ~InprocSenderEnd() = default;
  // The receiver's word on a transfer: ok when all landed. Unknown transfers are ignored.
  virtual void on_result(const Id128& transfer, uint32_t attempt, const Status& result) = 0;
  // Ends what is late; returns the next deadline (TimePoint::max() when none).
  virtual TimePoint expire(TimePoint now) = 0;
};

// ... and of a receiver.
class InprocReceiverEnd {
 public:
  virtual ~InprocReceiverEnd() = default;
  virtual Status on_open(const Id128& transfer, const Id128& token, uint32_t attempt,
                         const void* channel) = 0;
  virtual Status on_record(const Id128& transfer, const Id128& token, uint32_t attempt,
                           const void* channel, uint32_t record,
                           std::span<const std::byte> bytes) = 0;
  // After on_record: raises the events of what it landed.
  virtual void on_landed(const Id128& transfer, uint32_t record) = 0;
  virtual void on_finish(const Id128& transfer, const void* channel, uint32_t records) = 0;
  virtual void on_abort(const Id128& transfer, const void* channel, const Error& error) = 0;
  virtual TimePoint expire(TimePoint now) = 0;
};

// Every method of the ends runs on the network's one thread, so they need no lock between them.
class InprocNetwork {
 public:
  InprocNetwork();
  ~InprocNetwork();

  // Runs `command` on the thread, in order of the calls. Any thread.
  void push(std::function<void()> command);
  // As push, and waits for its end. Not from the network's thread.
  void call(const std::function<void()>& command);

  // Network thread only.
  void add_sender(InprocSenderEnd* end) { senders_.push_back(end); }
  void remove_sender(InprocSenderEnd* end) { std::erase(senders_, end); }
  // Zero when all ports are taken.
  uint16_t add_receiver(InprocReceiverEnd* end);
  void remove_receiver(uint16_t port) { receivers_.erase(port); }
  InprocReceiverEnd* receiver(uint16_t port) const;
  void tell_senders(const Id128& transfer, uint32_t attempt, const Status& result);

 private:
  void loop();
  TimePoint expire_all();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::function<void()>> commands_;  // guarded by mutex_
  bool stop_ = false;                            // guarded by mutex_

  std::vector<InprocSenderEnd*> senders_;                       // network thread
  std::unordered_map<uint16_t, InprocReceiverEnd*> receivers_;  // network thread
  uint16_t last_port_ = 0;                                      // network thread
  std::thread thread_;                                          // last: it uses what stands above
};

}  // namespace akv::transport
