// Control messages between front door, prefill and decode daemons (ZeroMQ): types, fields, and
// their encoding as (type, JSON body, binary blob). Grammar and worked example: README.md.
//
// Everything about a request carries its id (unique, made by the front door) and an attempt: a
// receiver drops what comes for an older attempt, so CANCEL is idempotent and late answers are
// harmless. Durations are milliseconds; deadlines are the milliseconds that remain at sending, as
// clocks of two machines differ.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/sampling.h"

namespace akv::proto {

// Raised when a message changes so that an older reader would misread it.
inline constexpr int kControlProtocol = 1;

struct Frames {
  std::string type;
  std::string body;
  std::string blob;
};

// Either a value or the reason why the bytes are not one (names the field).
template <class T>
struct Decoded {
  std::optional<T> value;
  std::string error;
  explicit operator bool() const { return value.has_value(); }
};

// ---- greeting ---------------------------------------------------------------------------------
struct Capacity {
  uint64_t max_sessions = 0;
  uint64_t max_state_bytes = 0;
  uint64_t max_queue_tokens = 0;
  uint64_t max_prefill_bytes = 0;
  uint64_t outbox_bytes = 0;
  bool operator==(const Capacity&) const = default;
};

// HELLO from the dialler, WELCOME back with the same fields, or REFUSED.
struct Hello {
  std::string role;  // "frontdoor", "prefill", "decode"
  std::string node;
  std::string version;  // of the software; informative
  int protocol = kControlProtocol;
  int state_format = 0;
  std::string model;              // informative
  std::string model_fingerprint;  // hex SHA-256
  std::string tokenizer_hash;     // hex SHA-256
  int64_t context_length = 0;
  std::string ucx_version;
  std::string state_address;            // HOST:PORT where state lands; empty: none
  std::vector<std::string> transports;  // "ucx", "inproc"
  Capacity capacity;
  bool operator==(const Hello&) const = default;
};
struct Welcome {
  Hello hello;
};
struct Refused {
  std::string reason;
};
// Says goodbye: the sender stops now; nothing in flight will be answered.
struct Bye {
  std::string reason;
};

// Empty when the two may work together, else each field that differs with both values, ready for
// a log line, REFUSED and /health/ready.
std::string incompatibility(const Hello& mine, const Hello& theirs);

// Body of heartbeats, both ways.
struct Load {
  uint64_t queue_requests = 0;
  uint64_t queue_tokens = 0;  // prompt tokens queued and in work
  uint64_t sessions = 0;
  uint64_t reserved_bytes = 0;
  uint64_t resident_bytes = 0;
  uint64_t suffix_bytes = 0;
  uint64_t outbox_bytes = 0;
  bool draining = false;
  bool ready = true;
  bool operator==(const Load&) const = default;
};
std::string encode_load(const Load& load);
Decoded<Load> decode_load(std::string_view body);

// ---- shared parts -----------------------------------------------------------------------------
// Where a state goes; made by the decode engine that reserved the memory.
struct Landing {
  std::string transport;      // "ucx" or "inproc"
  std::string state_address;  // HOST:PORT
  std::string ucx_version;
  std::string transfer;     // 32 hex digits
  std::string token;        // one-time secret, 32 hex digits
  uint32_t attempt = 0;     // of the transfer
  std::string extension{};  // what the receiver offers beyond; may be empty (transport.h)
  bool operator==(const Landing&) const = default;
};

// The resolved choice of codec: defaults of the front door and the request's wishes, merged.
struct CodecChoice {
  std::string codec = "anchorkv";                            // or "none"
  std::string profile = "pooled";                            // or "paper"
  double theta = 0.05;                                       // (0, 1]
  std::vector<std::pair<std::string, std::string>> options;  // --codec-option, in order
  int64_t min_compress_tokens = 512;
  std::string on_unreachable = "best";  // "dense", "error"
  bool operator==(const CodecChoice&) const = default;
};

// Every message about a request starts with this.
struct RequestRef {
  std::string id;  // unique for the front door, at most 64 characters
  uint32_t attempt = 0;
  bool operator==(const RequestRef&) const = default;
};

// ---- front door -> prefill --------------------------------------------------------------------
struct Prefill {
  RequestRef ref;
  std::string request_id;          // x-request-id, for logs
  std::vector<int32_t> token_ids;  // blob: int32 little-endian
  Sampling sampling;
  int32_t max_tokens = 1;
  CodecChoice codec;
  uint64_t state_bytes = 0;        // the decode engine's plan; the prefill's own must equal both
  uint64_t plan_hash = 0;          // over the record sizes of the plan
  std::optional<Landing> landing;  // absent: only the first token is wanted
  int64_t deadline_ms = 0;
  bool operator==(const Prefill&) const = default;
};
struct Cancel {
  RequestRef ref;
  std::string reason;
};
// The request has ended: the outbox forgets its state.
struct Release {
  RequestRef ref;
};
// Send the state of the outbox to another landing. Answered by SENT or FAILED.
struct Resend {
  RequestRef ref;  // with the new attempt
  Landing landing;
  int64_t deadline_ms = 0;
};

// ---- prefill -> front door --------------------------------------------------------------------
struct Queued {
  RequestRef ref;
  uint64_t queue_requests = 0;  // before it
  uint64_t queue_tokens = 0;
};
struct Started {
  RequestRef ref;
  double queue_ms = 0;
};
struct FirstToken {
  RequestRef ref;
  TokenOut token;
  double queue_ms = 0;
  double prefill_ms = 0;  // until this token
};
// The whole state was handed over (the receiver's LANDED says that it arrived well).
struct Sent {
  RequestRef ref;
  uint64_t state_bytes = 0;
  uint64_t dense_bytes = 0;
  double theta = 0;  // achieved
  double prefill_ms = 0;
  double compress_ms = 0;
  double transfer_ms = 0;         // from the first byte posted to the last completion
  double transfer_hidden_ms = 0;  // of which while layers were still computed
};
// From prefill and decode alike; the request is over there and nothing of it is held.
struct Failed {
  RequestRef ref;
  uint16_t code = 0;  // akv::Code
  std::string phase;  // "queued", "prefill", "send", "landing", "decode", "resend"
  std::string message;
  std::string param;
  int64_t retry_after_ms = 0;  // 0: no advice
};

// ---- front door -> decode engine (own or remote) ------------------------------------------------
struct Open {
  RequestRef ref;
  std::string request_id;
  std::vector<int32_t> token_ids;  // blob
  Sampling sampling;
  int32_t max_tokens = 1;
  CodecChoice codec;
  int64_t deadline_ms = 0;
  bool operator==(const Open&) const = default;
};
// Decode may begin once the state has landed. tokens: those already given to the client, the first
// one of prefill at least; they are replayed, not sent again.
struct Start {
  RequestRef ref;
  std::vector<int32_t> tokens;  // blob
};
struct Close {
  RequestRef ref;
  std::string reason;
};

// ---- decode engine -> front door ----------------------------------------------------------------
struct Opened {
  RequestRef ref;
  Landing landing;
  uint64_t state_bytes = 0;
  uint64_t dense_bytes = 0;
  uint64_t plan_hash = 0;
  double theta = 0;          // that the plan achieves
  bool unreachable = false;  // the theta asked for was not reachable
};
struct Landed {
  RequestRef ref;
  uint64_t state_bytes = 0;
  double landing_ms = 0;  // first byte to verified
};
struct Tokens {
  RequestRef ref;
  int32_t index = 0;  // of the first of them in the output; START's tokens count
  std::vector<TokenOut> tokens;
};
struct Done {
  RequestRef ref;
  std::string finish_reason;  // "stop" or "length"
  int32_t completion_tokens = 0;
};

// type of the message, e.g. "PREFILL".
template <class M>
std::string_view type_of();
template <class M>
Frames encode(const M& message);
// Checks type, JSON, presence, types and ranges of all fields; unknown fields are ignored.
// Instantiated for every message above: Hello Welcome Refused Bye Prefill Cancel Release Resend
// Queued Started FirstToken Sent Failed Open Start Close Opened Landed Tokens Done.
template <class M>
Decoded<M> decode(std::string_view type, std::string_view body, std::string_view blob);

}  // namespace akv::proto
