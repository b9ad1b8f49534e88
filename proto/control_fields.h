// Internal to proto: the fields of every control message, in the form that json_fields.h describes.
#pragma once

#include <cstdint>
#include <limits>

#include "proto/control.h"
#include "proto/json_fields.h"

namespace akv::proto {

inline constexpr size_t kMaxIdBytes = 64;
inline constexpr size_t kMaxNameBytes = 256;
inline constexpr size_t kMaxTextBytes = 4096;
inline constexpr size_t kMaxTokens = 1 << 22;
inline constexpr int64_t kMaxMs = int64_t{1} << 40;
inline constexpr double kMaxRealMs = 1e12;

inline constexpr uint64_t kAnyU64 = std::numeric_limits<uint64_t>::max();
inline constexpr int32_t kAnyI32 = std::numeric_limits<int32_t>::max();
inline constexpr uint32_t kAnyU32 = std::numeric_limits<uint32_t>::max();

template <class A>
void count(A& a, const char* key, Ref<A, uint64_t> value) {
  a.integer(key, value, uint64_t{0}, kAnyU64);
}
template <class A>
void duration(A& a, const char* key, Ref<A, double> value) {
  a.real(key, value, 0, kMaxRealMs);
}
template <class A>
void deadline(A& a, Ref<A, int64_t> value) {
  a.integer("deadline_ms", value, int64_t{0}, kMaxMs);
}

// ---- parts ------------------------------------------------------------------------------------
template <class A>
void fields(A& a, Ref<A, RequestRef> m) {
  a.text("id", m.id, kMaxIdBytes);
  a.integer("attempt", m.attempt, uint32_t{0}, kAnyU32);
}

template <class A>
void fields(A& a, Ref<A, Capacity> m) {
  count(a, "max_sessions", m.max_sessions);
  count(a, "max_state_bytes", m.max_state_bytes);
  count(a, "max_queue_tokens", m.max_queue_tokens);
  count(a, "max_prefill_bytes", m.max_prefill_bytes);
  count(a, "outbox_bytes", m.outbox_bytes);
}

template <class A>
void fields(A& a, Ref<A, Load> m) {
  count(a, "queue_requests", m.queue_requests);
  count(a, "queue_tokens", m.queue_tokens);
  count(a, "sessions", m.sessions);
  count(a, "reserved_bytes", m.reserved_bytes);
  count(a, "resident_bytes", m.resident_bytes);
  count(a, "suffix_bytes", m.suffix_bytes);
  count(a, "outbox_bytes", m.outbox_bytes);
  a.flag("draining", m.draining);
  a.flag("ready", m.ready);
}

template <class A>
void fields(A& a, Ref<A, Landing> m) {
  a.text("transport", m.transport, 32);
  a.text("state_address", m.state_address, kMaxNameBytes);
  a.text("ucx_version", m.ucx_version, 64);
  a.text("transfer", m.transfer, 32);
  a.text("token", m.token, 32);
  a.integer("attempt", m.attempt, uint32_t{0}, kAnyU32);
  a.optional_text("extension", m.extension, 256);
}

template <class A>
void fields(A& a, Ref<A, CodecChoice> m) {
  a.text("codec", m.codec, 32);
  a.text("profile", m.profile, 32);
  a.real("theta", m.theta, std::numeric_limits<double>::min(), 1.0);
  a.text_pairs("options", m.options, 32, 64);
  a.integer("min_compress_tokens", m.min_compress_tokens, int64_t{0}, int64_t{1} << 40);
  a.text("on_unreachable", m.on_unreachable, 32);
}

template <class A>
void fields(A& a, Ref<A, Sampling> m) {
  a.real("temperature", m.temperature, 0, 100);
  a.integer("top_k", m.top_k, -1, kAnyI32);
  a.real("top_p", m.top_p, 0, 1);
  a.real("min_p", m.min_p, 0, 1);
  a.real("repetition_penalty", m.repetition_penalty, 0, 100);
  a.real("presence_penalty", m.presence_penalty, -2, 2);
  a.real("frequency_penalty", m.frequency_penalty, -2, 2);
  a.token_values("logit_bias", m.logit_bias, 1024);
  a.integer("seed", m.seed, uint64_t{0}, kAnyU64);
  a.integer("logprobs", m.logprobs, -1, 64);
  a.ids("stop_token_ids", m.stop_token_ids, 1024);
  a.flag("ignore_eos", m.ignore_eos);
  a.integer("min_tokens", m.min_tokens, 0, kAnyI32);
}

template <class A>
void fields(A& a, Ref<A, TokenOut> m) {
  a.integer("id", m.id, 0, kAnyI32);
  a.real("logprob", m.logprob, -9999, 9999);
  a.token_values("top", m.top, 64);
}

template <class A>
void fields(A& a, Ref<A, Hello> m) {
  a.text("role", m.role, 32);
  a.text("node", m.node, kMaxNameBytes);
  a.text("version", m.version, 64);
  a.integer("protocol", m.protocol, 0, 1 << 20);
  a.integer("state_format", m.state_format, 0, 1 << 20);
  a.text("model", m.model, kMaxNameBytes);
  a.text("model_fingerprint", m.model_fingerprint, 64);
  a.text("tokenizer_hash", m.tokenizer_hash, 64);
  a.integer("context_length", m.context_length, int64_t{0}, int64_t{1} << 40);
  a.text("ucx_version", m.ucx_version, 64);
  a.text("state_address", m.state_address, kMaxNameBytes);
  a.texts("transports", m.transports, 16, 32);
  a.object("capacity", m.capacity);
}

// ---- messages -----------------------------------------------------------------------------------
template <class A>
void fields(A& a, Ref<A, Welcome> m) {
  fields(a, m.hello);
}
template <class A>
void fields(A& a, Ref<A, Refused> m) {
  a.text("reason", m.reason, kMaxTextBytes);
}
template <class A>
void fields(A& a, Ref<A, Bye> m) {
  a.text("reason", m.reason, kMaxTextBytes);
}

template <class A>
void fields(A& a, Ref<A, Prefill> m) {
  fields(a, m.ref);
  a.text("request_id", m.request_id, kMaxNameBytes);
  a.blob_ids(m.token_ids, kMaxTokens);
  a.object("sampling", m.sampling);
  a.integer("max_tokens", m.max_tokens, 1, kAnyI32);
  a.object("codec", m.codec);
  count(a, "state_bytes", m.state_bytes);
  count(a, "plan_hash", m.plan_hash);
  a.optional("landing", m.landing);
  deadline(a, m.deadline_ms);
}
template <class A>
void fields(A& a, Ref<A, Cancel> m) {
  fields(a, m.ref);
  a.text("reason", m.reason, kMaxTextBytes);
}
template <class A>
void fields(A& a, Ref<A, Release> m) {
  fields(a, m.ref);
}
template <class A>
void fields(A& a, Ref<A, Resend> m) {
  fields(a, m.ref);
  a.object("landing", m.landing);
  deadline(a, m.deadline_ms);
}

template <class A>
void fields(A& a, Ref<A, Queued> m) {
  fields(a, m.ref);
  count(a, "queue_requests", m.queue_requests);
  count(a, "queue_tokens", m.queue_tokens);
}
template <class A>
void fields(A& a, Ref<A, Started> m) {
  fields(a, m.ref);
  duration(a, "queue_ms", m.queue_ms);
}
template <class A>
void fields(A& a, Ref<A, FirstToken> m) {
  fields(a, m.ref);
  a.object("token", m.token);
  duration(a, "queue_ms", m.queue_ms);
  duration(a, "prefill_ms", m.prefill_ms);
}
template <class A>
void fields(A& a, Ref<A, Sent> m) {
  fields(a, m.ref);
  count(a, "state_bytes", m.state_bytes);
  count(a, "dense_bytes", m.dense_bytes);
  a.real("theta", m.theta, 0, 100);
  duration(a, "prefill_ms", m.prefill_ms);
  duration(a, "compress_ms", m.compress_ms);
  duration(a, "transfer_ms", m.transfer_ms);
  duration(a, "transfer_hidden_ms", m.transfer_hidden_ms);
}
template <class A>
void fields(A& a, Ref<A, Failed> m) {
  fields(a, m.ref);
  a.integer("code", m.code, uint16_t{1}, std::numeric_limits<uint16_t>::max());
  a.text("phase", m.phase, 32);
  a.text("message", m.message, kMaxTextBytes);
  a.text("param", m.param, kMaxNameBytes);
  a.integer("retry_after_ms", m.retry_after_ms, int64_t{0}, kMaxMs);
}

template <class A>
void fields(A& a, Ref<A, Open> m) {
  fields(a, m.ref);
  a.text("request_id", m.request_id, kMaxNameBytes);
  a.blob_ids(m.token_ids, kMaxTokens);
  a.object("sampling", m.sampling);
  a.integer("max_tokens", m.max_tokens, 1, kAnyI32);
  a.object("codec", m.codec);
  deadline(a, m.deadline_ms);
}
template <class A>
void fields(A& a, Ref<A, Start> m) {
  fields(a, m.ref);
  a.blob_ids(m.tokens, kMaxTokens);
}
template <class A>
void fields(A& a, Ref<A, Close> m) {
  fields(a, m.ref);
  a.text("reason", m.reason, kMaxTextBytes);
}

template <class A>
void fields(A& a, Ref<A, Opened> m) {
  fields(a, m.ref);
  a.object("landing", m.landing);
  count(a, "state_bytes", m.state_bytes);
  count(a, "dense_bytes", m.dense_bytes);
  count(a, "plan_hash", m.plan_hash);
  a.real("theta", m.theta, 0, 100);
  a.flag("unreachable", m.unreachable);
}
template <class A>
void fields(A& a, Ref<A, Landed> m) {
  fields(a, m.ref);
  count(a, "state_bytes", m.state_bytes);
  duration(a, "landing_ms", m.landing_ms);
}
template <class A>
void fields(A& a, Ref<A, Tokens> m) {
  fields(a, m.ref);
  a.integer("index", m.index, 0, kAnyI32);
  a.list("tokens", m.tokens, 4096);
}
template <class A>
void fields(A& a, Ref<A, Done> m) {
  fields(a, m.ref);
  a.text("finish_reason", m.finish_reason, 32);
  a.integer("completion_tokens", m.completion_tokens, 0, kAnyI32);
}

}  // namespace akv::proto
