// The control plane's mechanism: one thread that owns a ROUTER (peers that dial us) and one DEALER
// for each peer that we dial, with heartbeats, timers and posted functions. What a message means is
// proto/control.h's business; here it is a type, a body and a blob of bounded size.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/base/units.h"

namespace akv::net {

// One message. Sizes are bounded by ControlLoopOptions on both ways.
struct ControlMessage {
  std::string type;  // 1..32 of [A-Z0-9_]
  std::string body;  // JSON text; not looked into
  std::string blob;  // binary part, such as token ids; may be empty
};

// Names a peer for its loop. A dialled peer keeps its id over reconnects, until hang_up(); a peer
// that dialled us gets a new id each time it comes up. Never reused, never 0.
using PeerId = uint64_t;
using TimerId = uint64_t;

// A CURVE key pair, Z85 text of 40 characters each.
struct CurveKeys {
  std::string public_key;
  std::string secret_key;
};
// Key files: a line "public KEY" and a line "secret KEY"; lines that start with "# " are comments.
Result<CurveKeys> read_curve_keys(const std::string& path);
Result<CurveKeys> make_curve_keys();

// Who may talk to us, and which key a server has that we dial.
struct CurvePeer {
  std::string public_key;
  std::string address;  // HOST:PORT that we dial for it; empty where it only dials us
};
// Peer files: "KEY [HOST:PORT]" a line, comments as above.
Result<std::vector<CurvePeer>> read_curve_peers(const std::string& path);

struct CurveOptions {
  CurveKeys keys;
  // Clients outside this list are refused in the handshake. The key of a server that we dial is the
  // one listed with its address; where none is, our own public key (one pair for the whole pool).
  std::vector<CurvePeer> peers;
};

struct ControlLoopOptions {
  // Where peers dial us; absent: only dials. Port 0 picks a free one. HOST is a literal or
  // "localhost".
  std::optional<HostPort> bind;
  std::optional<CurveOptions> curve;
  int heartbeat_ms = 1000;     // 10..60000
  int lost_after = 3;          // beats without any traffic
  int reconnect_min_ms = 100;  // back-off of a dial, doubled up to reconnect_max_ms
  int reconnect_max_ms = 5000;
  int send_queue_messages = 1000;  // per peer; beyond it send() is kResourceExhausted
  int receive_queue_messages = 1000;
  size_t max_body_bytes = 1 << 20;
  size_t max_blob_bytes = 16 << 20;
  size_t max_peers = 1024;      // that dialled us; further ones are not answered
  size_t max_posted = 1 << 16;  // functions that wait for the control thread
  std::string thread_name = "control";
};

struct PeerEvent {
  PeerId peer = 0;
  bool up = false;
  bool dialed = false;
  std::string address;  // of a dialled peer: as given to dial()
  std::string reason;   // of a down event: "heartbeat lost", "connection lost", "restarted", ...
};

// All run on the control thread, one at a time, and must not block. Any may be empty.
struct ControlHandlers {
  std::function<void(PeerId, ControlMessage&&)> on_message;
  // Up: the peer answers heartbeats (say HELLO now). Down: everything in flight with it is lost;
  // of a dialled peer an up event follows when it is back (perhaps another process). A dial that
  // the other side's CURVE check refuses gives down events without an up before.
  std::function<void(const PeerEvent&)> on_peer;
  // The body that the peer put into its heartbeat (its load), on each beat.
  std::function<void(PeerId, std::string_view)> on_heartbeat;
  // Our own body, asked for once a beat. At most max_body_bytes.
  std::function<std::string()> heartbeat_body;
};

// Thread-safe where said; everything else only on the control thread (in a handler, a timer or a
// posted function). Dropped messages: those queued to a peer that goes down.
class ControlLoop {
 public:
  // Binds; nothing runs yet, and peers that dial us wait. kAddressInUse when the port is taken,
  // kInvalidArgument for a bad address or key, kUnsupported when libzmq lacks CURVE.
  static Result<std::unique_ptr<ControlLoop>> create(ControlLoopOptions options);
  // Starts the thread; the handlers run from now on. Once.
  void start(ControlHandlers handlers);
  ~ControlLoop();  // stop()
  ControlLoop(const ControlLoop&) = delete;
  ControlLoop& operator=(const ControlLoop&) = delete;

  // [thread-safe] Joins the thread; no handler runs afterwards. Pending posts are dropped. Not from
  // the control thread.
  void stop();
  // [thread-safe] The bound address with its real port; nullopt without bind.
  std::optional<HostPort> address() const;
  // [thread-safe] Runs fn on the control thread, in order of posting. False when stopped or full.
  bool post(std::function<void()> fn);
  // [thread-safe]
  bool on_control_thread() const;

  // [thread-safe] Keeps a connection to address until hang_up(); before start(), too. A DNS name is
  // resolved anew at each attempt.
  PeerId dial(const HostPort& address);
  // [thread-safe] Ends a dial, or forgets a peer that dialled us. No down event follows.
  void hang_up(PeerId peer);
  // [thread-safe] New client keys and server keys; connections that exist stay.
  void set_curve_peers(std::vector<CurvePeer> peers);

  // Queues a message. kUnavailable: peer is not up or unknown; kResourceExhausted: its queue is
  // full; kInvalidArgument: over the size bounds.
  Status send(PeerId peer, const ControlMessage& message);
  // As send(), for what the other side cannot miss without being wrong afterwards: a peer whose
  // queue is full goes down, and everything in flight with it is lost on both sides.
  Status send_or_lose_peer(PeerId peer, const ControlMessage& message);
  // Milliseconds since the peer was last heard; negative when it is not up.
  double silence_ms(PeerId peer) const;
  bool is_up(PeerId peer) const;

  TimerId call_after(int64_t delay_ms, std::function<void()> fn);
  TimerId call_every(int64_t period_ms, std::function<void()> fn);
  void cancel_timer(TimerId timer);

 private:
  class Impl;
  explicit ControlLoop(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace akv::net
