// What peers say about a request.
#include <algorithm>
#include <type_traits>

#include "common/model/wire.h"
#include "decode_node/dispatch/dispatcher.h"
#include "decode_node/dispatch/tell.h"

namespace akv::decode {
namespace {

Error error_of(const proto::Failed& failed) {
  return {static_cast<Code>(failed.code), failed.message, failed.param};
}

// Errors that another attempt, elsewhere or later, may not meet.
bool retryable(const proto::Failed& failed) {
  switch (static_cast<Code>(failed.code)) {
    case Code::kResourceExhausted:
      // An output that outgrew a node's memory alone would do it again.
      return failed.phase != "decode";
    case Code::kUnavailable:
    case Code::kDataLoss:
    case Code::kNotFound:
    case Code::kIo:
    case Code::kCancelled:
      return true;
    default:
      return false;
  }
}

// Peers are trusted to serve, not to be right: a token that the model lacks would end in a wrong
// text or an invalid index.
bool in_vocabulary(std::span<const proto::TokenOut> tokens, int64_t vocab) {
  const auto known = [vocab](int32_t id) { return id >= 0 && id < vocab; };
  return std::all_of(tokens.begin(), tokens.end(), [&](const proto::TokenOut& token) {
    return known(token.id) && std::all_of(token.top.begin(), token.top.end(),
                                          [&](const auto& rival) { return known(rival.first); });
  });
}

template <class M>
bool of_prefill(const M& message) {
  if constexpr (std::is_same_v<M, proto::Failed>) {
    return message.phase == "queued" || message.phase == "prefill";
  }
  return std::is_same_v<M, proto::FirstToken>;
}

}  // namespace

// Messages of older attempts, of requests that ended, and of peers that a request has left are
// dropped here.
void Dispatcher::on_event(net::PeerId from, PeerEvent&& event) {
  std::visit(
      [&](const auto& message) {
        const auto handle = handles_.find(message.ref.id);
        if (handle == handles_.end()) return;
        const RequestPtr request = requests_.at(handle->second);
        if (message.ref.attempt != request->attempt) {
          // A prefill goes on over attempts that only move the engine; its token or its end count.
          const bool older_prefill = of_prefill(message) && request->has_prefill &&
                                     from == request->prefill &&
                                     message.ref.attempt == request->prefill_attempt;
          if (!older_prefill) return;
        }
        on(*request, from, message);
      },
      event);
}

void Dispatcher::on(Request&, net::PeerId, const proto::Queued&) {}

void Dispatcher::on(Request& r, net::PeerId, const proto::Started& m) { r.queue_ms = m.queue_ms; }

void Dispatcher::on(Request& r, net::PeerId from, const proto::Opened& m) {
  if (!r.has_engine || from != r.engine || r.stage != Request::Stage::kOpening) return;
  if (m.plan_hash != model::plan_hash(r.plan)) {
    return fail(r, make_error(Code::kMismatch, "the decode node plans another state"), "queued");
  }
  r.opened = m;
  // What the client already has is replayed once the state is there; nothing is sent twice.
  if (!r.output.empty()) {
    tell_engine(r.engine, proto::Start{.ref = r.ref(), .tokens = r.output});
  }
  if (r.has_prefill) {
    send_resend(r);
  } else {
    send_prefill(r);
  }
}

void Dispatcher::on(Request& r, net::PeerId from, const proto::FirstToken& m) {
  if (!r.has_prefill || from != r.prefill) return;
  if (!in_vocabulary({&m.token, 1}, info_.vocab)) {
    return fail(r, make_error(Code::kInternal, "the prefill peer's token is not in the vocabulary"),
                "prefill");
  }
  const Peer* peer = peers_.find(Role::kPrefill, from);
  if (peer != nullptr) r.report.prefill_node = peer->node;
  prefill_over(r);
  r.report.prefill_ms = m.prefill_ms;
  r.queue_ms = m.queue_ms;
  if (!r.output.empty()) {
    // A second prefill after the first token was streamed: the stream goes on only if it agrees.
    if (m.token.id == r.output.front()) return;
    return fail(r, make_error(Code::kInternal, "a repeated prefill drew another first token"),
                "prefill");
  }
  r.first_token_ms = ms_since(r.arrived);
  left_queue(r);
  const auto params = model::sampling_params(r.spec.sampling);
  const model::SamplerState state(params, r.spec.prompt_ids, tokenizer_.end_tokens());
  if (state.stops_at(m.token.id) != model::SamplerState::Stop::kNone) return complete(r, "stop");
  deliver(r, {&m.token, 1});
  if (*r.cancelled) return;  // its cancel() is on the way
  if (r.spec.max_tokens == 1) return complete(r, "length");
  if (r.stage != Request::Stage::kPrefill) return;  // the next attempt starts with this output
  r.stage = Request::Stage::kDecoding;
  tell_engine(r.engine, proto::Start{.ref = r.ref(), .tokens = r.output});
}

void Dispatcher::on(Request& r, net::PeerId from, const proto::Sent& m) {
  if (!r.has_prefill || from != r.prefill) return;
  r.sent = true;
  r.report.compress_ms = m.compress_ms;
  r.report.transfer_ms = m.transfer_ms;
  if (r.stage == Request::Stage::kEnding) conclude(r);
}

void Dispatcher::on(Request& r, net::PeerId from, const proto::Landed&) {
  if (!r.has_engine || from != r.engine) return;
  r.landed = true;
}

void Dispatcher::on(Request& r, net::PeerId from, const proto::Tokens& m) {
  if (!r.has_engine || from != r.engine || r.stage == Request::Stage::kEnding) return;
  const auto have = static_cast<int64_t>(r.output.size());
  if (m.index != have) return tokens_missing(r);
  const auto count = static_cast<int64_t>(m.tokens.size());
  if (!in_vocabulary(m.tokens, info_.vocab) || have + count > r.spec.max_tokens) {
    return fail(r, make_error(Code::kInternal, "the decode peer's tokens were not asked for"),
                "decode");
  }
  r.stage = Request::Stage::kDecoding;
  deliver(r, m.tokens);
  // Not left to DONE: if that is lost with its engine, another one would draw a token too many.
  if (have + count == r.spec.max_tokens) complete(r, "length");
}

// What the client has is replayed by another session, and nothing is lost.
void Dispatcher::tokens_missing(Request& r) {
  retry(r, make_error(Code::kUnavailable, "tokens are missing from the decode peer's answer"),
        "decode");
}

void Dispatcher::on(Request& r, net::PeerId from, const proto::Done& m) {
  if (!r.has_engine || from != r.engine || r.stage == Request::Stage::kEnding) return;
  const bool stopped = m.finish_reason == "stop";
  // The token that stops is counted, but is not part of the output.
  if (m.completion_tokens != static_cast<int32_t>(r.output.size()) + (stopped ? 1 : 0)) {
    return tokens_missing(r);
  }
  complete(r, stopped ? "stop" : "length");
}

void Dispatcher::on(Request& r, net::PeerId from, const proto::Failed& m) {
  if (r.stage == Request::Stage::kEnding || r.stage == Request::Stage::kWaiting) return;
  const bool engine_phase = m.phase == "landing" || m.phase == "decode";
  if (r.stage == Request::Stage::kOpening || engine_phase) {
    if (r.has_engine && from == r.engine) engine_failed(r, m);
  } else if (r.has_prefill && from == r.prefill) {
    prefill_failed(r, m);
  }
}

void Dispatcher::engine_failed(Request& r, const proto::Failed& m) {
  engine_over(r);
  if (!retryable(m)) return fail(r, error_of(m), m.phase == "queued" ? "queued" : "decode");
  retry(r, error_of(m), m.phase == "landing" ? "transfer" : "decode");
}

// After "send" and "resend" the outbox still holds the state, unless it says kNotFound.
void Dispatcher::prefill_failed(Request& r, const proto::Failed& m) {
  const bool transfer = m.phase == "send" || m.phase == "resend";
  if (transfer && r.landed) return;  // only the acknowledgement was lost
  const bool state_lost = static_cast<Code>(m.code) == Code::kNotFound && m.phase == "resend";
  if (!transfer) r.prefill_error = error_of(m);
  if (state_lost || !transfer) release_prefill(r, "failed");
  if (transfer || retryable(m)) return retry(r, error_of(m), transfer ? "transfer" : "prefill");
  fail(r, error_of(m), "prefill");
}

// A prefill peer is needed until the state has landed; an engine until the end.
void Dispatcher::on_peer_lost(const Peer& peer) {
  std::vector<RequestPtr> hit;
  for (const auto& [handle, request] : requests_) hit.push_back(request);
  const Error error = make_error(Code::kUnavailable, std::string("the ") + role_name(peer.role) +
                                                         " peer was lost: " + peer.reason);
  for (const RequestPtr& request : hit) {
    Request& r = *request;
    if (r.stage == Request::Stage::kEnding || r.stage == Request::Stage::kWaiting) continue;
    if (peer.role == Role::kDecode) {
      if (!r.has_engine || r.engine != peer.id) continue;
      engine_over(r);
      retry(r, error, "decode");
    } else {
      if (!r.has_prefill || r.prefill != peer.id) continue;
      r.has_prefill = false;
      r.prefilling = false;
      if (!r.landed) retry(r, error, "prefill");
    }
  }
}

}  // namespace akv::decode
