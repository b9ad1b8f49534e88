// What a UCX sender and a UCX receiver share: worker, progress thread, connections, hello,
// heartbeats, closing. The transfers themselves are the derived classes' business.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "transport/counters.h"
#include "transport/mailbox.h"
#include "transport/ucx/connection.h"
#include "transport/ucx/worker.h"

namespace akv::transport {

// The loop: progress until nothing happens; run commands from other threads; look after
// connections and deadlines when something called for attention or a timer is due; deliver events;
// spin for at most 50 us; sleep on the worker's descriptor until the next timer.
//
// Only submit() and the destructor's stop() are for other threads; every virtual and everything
// else runs on the progress thread.
class UcxEnd {
 public:
  UcxEnd(const UcxEnd&) = delete;
  UcxEnd& operator=(const UcxEnd&) = delete;

 protected:
  UcxEnd(const TransportConfig& config, std::unique_ptr<UcxWorker> worker);
  ~UcxEnd();

  // Registers the message handlers and starts the thread; the last step of a factory.
  Status start();
  // Ends every transfer and connection, joins the thread. First thing in a derived destructor.
  void stop();
  // Runs `command` on the progress thread.
  void submit(std::function<void()> command);

  // --- progress thread ---
  // Delivers an event or runs a follow-up outside of any UCX callback, in order.
  void defer(std::function<void()> action) { deferred_.push_back(std::move(action)); }
  // Asks for a look at connections and deadlines before the next sleep.
  void attend() { attention_ = true; }
  void notice(const std::string& line);
  Result<ConnectionPtr> dial(const SocketAddress& to, const SocketAddress* local);
  Result<ConnectionPtr> accept(ucp_conn_request* request);
  size_t connections() const { return connections_.size(); }
  void leave(Connection& connection);
  Connection::AttentionFn attention();

  // The hello of a connection is through: it carries transfers from now on.
  virtual void on_open(Connection& connection) = 0;
  // Hello of a peer that dialled us (receiver), or its answer is checked here: an error refuses.
  virtual Status on_hello(Connection& connection, const wire::Message& hello) = 0;
  // Everything but hello, ping and bye, on an open connection.
  virtual void on_message(Connection& connection, const wire::Message& message) = 0;
  // A record's header and its data or (rendezvous) its descriptor. False refuses the bytes.
  virtual void on_record(Connection& connection, const Result<wire::RecordHeader>& header,
                         void* data, size_t bytes, bool rendezvous) = 0;
  // Broken: fail its transfers. It is FORCE closed right after; on_gone follows when drained.
  virtual void on_lost(Connection& connection, const Error& error) = 0;
  virtual void on_gone(Connection& connection) = 0;
  // Ends what is late. Returns the time of the next look that is needed.
  virtual TimePoint on_look(TimePoint now) = 0;
  // Cancels every transfer.
  virtual void on_stop() = 0;
  virtual bool has_transfers() const = 0;
  // Gives up waiting for transfers whose operations UCX never completed (see README).
  virtual void on_abandon() = 0;

  const TransportConfig config_;
  Counters counters_;
  std::unique_ptr<UcxWorker> worker_;
  uint32_t device_moves_ = 0;  // progress thread: operations on device memory under way

 private:
  friend struct EndCallbacks;
  void loop();
  bool progress();
  void look(TimePoint now);
  TimePoint look_at(Connection& connection, TimePoint now);
  TimePoint look_at_open(Connection& connection, TimePoint now);
  void lose(Connection& connection);
  void run_deferred();
  bool stopped(TimePoint now);
  void forgive_own_stall(TimePoint now);
  void sleep(TimePoint now);
  void handle_control(Connection& connection, std::span<const std::byte> bytes);
  void handle_hello(Connection& connection, const wire::Message& message);
  Connection* find(ucp_ep* endpoint) const;
  void add(const ConnectionPtr& connection);

  Mailbox mailbox_;
  std::thread thread_;
  std::atomic<bool> stop_requested_{false};

  // Progress thread.
  std::vector<std::function<void()>> deferred_;
  std::unordered_map<ucp_ep*, ConnectionPtr> connections_;
  bool attention_ = true;
  bool stopping_ = false;
  TimePoint stop_until_{};
  TimePoint next_look_{};
  TimePoint last_turn_{};  // of the loop
  TimePoint planned_{};    // when the loop meant to turn next
};

}  // namespace akv::transport
