// Internal to net: the control loop's state. Members are the control thread's unless said
// otherwise.
#pragma once

#include <atomic>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "common/base/clock.h"
#include "common/net/control_loop.h"
#include "common/net/control_wire.h"
#include "common/net/curve.h"
#include "common/net/timer_queue.h"
#include "common/net/zmq_socket.h"

namespace akv::net {

class ControlLoop::Impl {
 public:
  explicit Impl(ControlLoopOptions options);
  ~Impl();

  Status open();
  void start(ControlHandlers handlers);
  void stop();

  // From any thread. force: beyond the bound, for the loop's own few commands.
  bool post(std::function<void()> fn, bool force);
  PeerId dial(const HostPort& address);
  bool on_thread() const { return std::this_thread::get_id() == thread_id_; }

  Status send(PeerId peer, const ControlMessage& message);
  Status send_or_lose_peer(PeerId peer, const ControlMessage& message);
  void hang_up(PeerId peer);
  void set_curve_peers(std::vector<CurvePeer> peers);

  struct Dial {
    HostPort address;
    std::string text;
    ZmqSocket socket;
    ZmqSocket monitor;
    std::optional<TimePoint> reopen_at;  // set while there is no socket
    Pong last_pong;
  };
  struct Peer {
    PeerId id = 0;
    bool up = false;
    bool broken = false;  // a send found it gone; the down event follows outside of handlers
    TimePoint heard;
    int interval_ms = 0;         // how often it pings us
    std::string route;           // of one that dialled us
    std::unique_ptr<Dial> dial;  // of one that we dial
  };
  const Peer* find(PeerId peer) const;

  const ControlLoopOptions options_;
  std::optional<HostPort> bound_;  // constant after open()
  TimerQueue timers_;

 private:
  void run();
  void wait();
  void run_posted();
  void read_router();
  void read_zap();
  void read_dial(Peer& peer);
  void read_monitor(Peer& peer);
  void on_router_message(std::vector<std::string>&& parts);
  void on_dial_message(Peer& peer, WireMessage&& wire);
  void beat();
  void drop_lost(TimePoint now, bool we_were_late);
  void drop_broken();

  void open_dial(Peer& peer);
  void close_dial(Peer& peer);
  void reopen_later(Peer& peer, int delay_ms);
  void set_common(ZmqSocket& socket) const;
  Peer* peer_of_route(const std::string& route, TimePoint now);
  void send_ping(Dial& dial);
  void send_pong(const Peer& peer);
  void go_up(Peer& peer);
  // Inbound peers are forgotten: the reference is invalid afterwards.
  void go_down(Peer& peer, const std::string& reason);
  void report_down(const Peer& peer, const std::string& reason);
  const std::string& heartbeat_body();

  ControlHandlers handlers_;
  ZmqContext context_;
  ZmqSocket router_;
  ZmqSocket zap_;
  CurveOptions curve_;
  CurveGate gate_;
  const uint64_t incarnation_;
  std::unordered_map<PeerId, Peer> peers_;
  std::unordered_map<std::string, PeerId> by_route_;
  bool any_broken_ = false;
  TimePoint next_beat_;
  std::string body_;
  TimePoint body_made_;

  int wake_fd_ = -1;  // constant; written from any thread
  std::thread thread_;
  std::atomic<std::thread::id> thread_id_;
  std::atomic<bool> stopping_ = false;
  std::atomic<PeerId> last_peer_ = 0;
  std::atomic<uint64_t> last_monitor_ = 0;
  std::mutex mutex_;
  std::deque<std::function<void()>> posted_;  // guarded by mutex_
};

}  // namespace akv::net
