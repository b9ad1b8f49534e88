// Moving a state's records between nodes: the specification that every transport implements.
//
// A transfer carries the records of one state (record 0 is the state header, record 1 + l is
// layer l, or whatever the two ends agree on: here a record is bytes with an index). The receiver
// goes first: it reserves memory and calls expect(), which yields what a LandingAddress says. The
// address reaches the sender over the control plane; the sender opens a channel and posts the
// records one by one as they become ready. Bytes are placed straight into the reserved spans.
//
// Invariants, for every implementation and in every failure:
//  1. A span is written only by a record with the landing's transfer id, token, attempt, index and
//     exact length, and only once. Everything else is refused, and the sender is told why. The same
//     holds for device destinations. A transport that falls back to another way half-way may write
//     the span of a record once more; RecordLanded then comes once more, when it is written.
//  2. After the terminal event (Complete or Failed) of a landing nothing writes to its spans, and
//     after the terminal event of a channel nothing reads its payloads.
//  3. Each open() or expect() that succeeded gets exactly one terminal event, at the latest
//     a bounded time (drain_ms) after its deadline, whatever the peer does or does not do.
//  4. Content is not checked: checksums of records belong to their format, above the transport.
//
// Events are delivered on the transport's progress thread with no lock held, the terminal one last.
// Records of one transfer may complete out of order. A handler must not block and must not destroy
// the Sender or Receiver; it may call every other method. All methods may be called from any
// thread and never wait for the network.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/base/units.h"

namespace akv::transport {

// Version of the messages between Sender and Receiver; another version is refused at hello.
inline constexpr uint16_t kProtocolVersion = 1;

// Where a landing waits: everything the sender needs, to be carried by the control plane.
// The token is a secret of this one transfer; it is never logged.
struct LandingAddress {
  HostPort state_address;       // the Receiver's advertised address, a literal IP or a host name
  Id128 transfer;               // unique per expected landing
  Id128 token;                  // one-time
  uint32_t attempt = 0;         // of the request; a late sender of an older attempt is refused
  std::string transport;        // Receiver::name(): "ucx" or "inproc"
  std::string version;          // Receiver::version(): for ucx the library's version string
  std::vector<uint64_t> sizes;  // optional: bytes of each record; checked by post() when given
  std::string extension{};      // Receiver::extension(): what it offers beyond, or empty
};

struct RecordSent {  // the payload of this record is not read any more; it may not have landed
  uint32_t record = 0;
};
// Every byte of this record is in its span, or, `on_device`, in its device destination instead:
// whoever reads it on the host copies it there first.
struct RecordLanded {
  uint32_t record = 0;
  bool on_device = false;
};
// Receiver: every record has landed. Sender: the receiver said so, and finish() was called.
struct Complete {};
// kUnavailable: peer unreachable, lost, silent or closing (retry elsewhere or again);
// kDeadlineExceeded, kCancelled (by this end, or by the peer, see message);
// kNotFound: no such landing at the peer; kMismatch: token, attempt, transport, version;
// kDataLoss: index, length, repeated or missing record; kResourceExhausted: a bound was hit.
struct Failed {
  Error error;
};
using SendEvent = std::variant<RecordSent, Complete, Failed>;
using LandEvent = std::variant<RecordLanded, Complete, Failed>;
using SendEventFn = std::function<void(const SendEvent&)>;
using LandEventFn = std::function<void(const LandEvent&)>;

// Bytes to send. `keepalive` is held from post() until the record's RecordSent or the channel's
// terminal event, so that the owner may drop its own reference at any time; when it is null the
// caller keeps the bytes valid until that event. The bytes must not change before it.
struct Payload {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> keepalive;
  // Optional: the same bytes in the memory of this process's device, complete before post() and
  // valid as long as `bytes`, for transports that can read it (Sender::reads_device).
  const std::byte* device = nullptr;
};

// Valid for one Sender; never reused within it.
struct ChannelId {
  uint64_t value = 0;
  auto operator<=>(const ChannelId&) const = default;
};

// Counters since construction, and levels (named *_open, *_inflight) of now. Thread-safe to take.
struct TransportStats {
  uint64_t transfers_started = 0;
  uint64_t transfers_completed = 0;
  uint64_t transfers_failed = 0;     // every terminal error except our own cancel
  uint64_t transfers_cancelled = 0;  // cancel() by this end
  uint64_t records = 0;              // sent (Sender) or landed (Receiver)
  uint64_t bytes = 0;                // of those records, without message headers
  uint64_t device_records = 0;       // of those: read from, or landed in, device memory
  uint64_t messages_refused = 0;     // Receiver: wrong token, index, length, ...
  uint64_t connections_opened = 0;
  uint64_t connections_lost = 0;  // closed by error, silence or FORCE
  uint64_t connections_open = 0;
  uint64_t transfers_open = 0;
  uint64_t records_inflight = 0;
};

// What a transport may do with device memory (Payload::device, LandingSpec::device_destinations).
enum class DeviceMemory {
  kNone,  // neither reads nor writes it
  kHost,  // it is memory of the host (the tests' shim of CUDA)
  kCuda,  // it is a CUDA device's
};

// Bounds and times of one Sender or Receiver. All are checked by the factories.
struct TransportConfig {
  // Peers are pinged at this interval on an open connection; a peer that showed no sign of life
  // (message or moved bytes) for lost_after is lost. A stopped process is found by nothing else.
  int64_t heartbeat_interval_ms = 1000;  // [10, 60000]
  int64_t heartbeat_lost_ms = 3000;      // [2 * interval, 600000]
  int64_t connect_timeout_ms = 5000;     // connection and hello, [10, 60000]
  // A transfer that ended early may have bytes in flight: they get this long to drain before the
  // connection is cut (which fails the other transfers on it).
  int64_t drain_ms = 500;             // [1, 60000]
  int64_t idle_close_ms = 300000;     // a connection without transfers is closed after, >= 100
  uint32_t connections_max = 64;      // [1, 4096]
  uint32_t transfers_max = 1024;      // open channels or expected landings, [1, 65536]
  uint32_t records_max = 4096;        // of one transfer, [1, 65536]
  uint32_t records_inflight_max = 8;  // sends in flight on one connection, [1, 256]
  uint64_t record_bytes_max = 1ull << 30;
  // UCX only. Transports and devices as UCX_TLS and UCX_NET_DEVICES name them; empty: UCX's own
  // choice (UCX_TLS/UCX_NET_DEVICES of the environment). "tcp" is safe between containers,
  // "tcp,posix,sysv" is faster between processes of one host, but a sender that is killed while it
  // writes leaves the receiver's shared queue blocked for all others until the receiver restarts.
  std::string ucx_transports = "tcp";
  std::string ucx_devices;
  // UCX only: what device memory is in this process. kCuda adds UCX's CUDA transports; where UCX
  // has none, device memory is left alone, and on_notice hears why.
  DeviceMemory device_memory = DeviceMemory::kNone;
  // UCX only: called on each thread that it starts to move bytes, before it does; may be empty.
  // Binds the thread to its device.
  std::function<void()> on_thread_start;
  // Sender, UCX only: the local address to dial from; port 0 and an empty host leave the choice
  // to the system.
  HostPort local_address;
  // One line when a connection opens (with the transports chosen for it), is lost or refused; for
  // the log. Called like an event handler; may be empty. Never holds a token.
  std::function<void(std::string_view)> on_notice;
};

// kInvalidArgument with param = the name of the field that is out of its bounds.
Status validate(const TransportConfig& config);

// The pushing end. Thread-safe. The destructor cancels open channels, delivers their terminal
// events and says goodbye to its peers; it waits for at most a few drain_ms.
class Sender {
 public:
  virtual ~Sender() = default;
  Sender() = default;
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  // Starts a transfer. Connecting goes on in the background (its failure is a Failed event), so
  // records may be posted at once. A connection to the same peer is shared and reused; after a
  // failure the next open() dials anew. At once, without any event: kMismatch (transport or
  // version of the address differs from ours), kInvalidArgument, kResourceExhausted,
  // kUnavailable (shutting down).
  virtual Result<ChannelId> open(const LandingAddress& to, TimePoint deadline,
                                 SendEventFn on_event) = 0;

  // Queues one record; records leave in the order posted. At once: kInvalidArgument (empty, too
  // large, index out of bounds or of another size than the address says), kNotFound (the channel
  // has ended or ends; its terminal event tells why). An index that was posted before is sent
  // and then refused by the receiver, which fails the channel.
  virtual Status post(ChannelId channel, uint32_t record, Payload payload) = 0;

  // No further posts. Complete follows when the receiver has acknowledged that every record it
  // expected has landed; Failed{kDataLoss} when it misses some.
  virtual Status finish(ChannelId channel) = 0;

  // Ends the transfer: Failed{kCancelled} follows when no byte is read any more, and the
  // receiver's landing fails with kCancelled. Does nothing to a channel that has ended.
  virtual void cancel(ChannelId channel) = 0;

  // Whether records to this landing are read from Payload::device where it is given. A hint: device
  // memory that is kept for them pays off only then.
  virtual bool reads_device(const LandingAddress& to) const {
    (void)to;
    return false;
  }

  // "ucx", "inproc": what LandingAddress::transport must say.
  virtual std::string_view name() const = 0;
  virtual std::string_view version() const = 0;
  virtual TransportStats stats() const = 0;
};

// One expected state. `destinations[i]` is the reserved memory of record i, exactly its size and
// not empty; the spans must stay valid until the terminal event.
struct LandingSpec {
  Id128 transfer;
  Id128 token;
  uint32_t attempt = 0;
  std::vector<std::span<std::byte>> destinations;
  TimePoint deadline;
  LandEventFn on_event;
  // Optional, one for each destination (null: none for that record), as large and valid as long:
  // device memory that a transport which lands there fills instead. RecordLanded says which.
  std::vector<std::byte*> device_destinations{};
};

// The landing end. Thread-safe. The destructor cancels every landing, delivers its terminal event
// and says goodbye to the peers; it waits for at most a few drain_ms.
class Receiver {
 public:
  virtual ~Receiver() = default;
  Receiver() = default;
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  // The address bound, with the real port; a wildcard host is reported as it was given.
  virtual HostPort address() const = 0;

  // Reserves the landing: when this returns, a sender may open and post. At once, without any
  // event: kInvalidArgument (no or empty destination, zero id, id already expected),
  // kResourceExhausted, kUnavailable (shutting down). A connection that is lost, a cancel by the
  // sender or a wrong message with the right token ends the landing with Failed; a retry is a new
  // landing with a new id, token and attempt.
  virtual Status expect(LandingSpec spec) = 0;

  // Failed{kCancelled} follows, as soon as nothing writes to the spans; the sender is told. Does
  // nothing to a transfer that has ended or was never expected.
  virtual void cancel(const Id128& transfer) = 0;

  virtual std::string_view name() const = 0;
  virtual std::string_view version() const = 0;
  // What a sender may use beyond name() and version(), to be carried in the landing's address:
  // items of the layers' own words between semicolons. A sender ignores those that it does not
  // know.
  virtual std::string extension() const { return {}; }
  virtual TransportStats stats() const = 0;
};

}  // namespace akv::transport
