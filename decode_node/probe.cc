#include "decode_node/probe.h"

namespace akv::decode {
namespace {

// The outcomes of api::RequestRecord.
constexpr const char* kOutcomes[] = {"ok",          "client_gone", "timeout",      "overloaded",
                                     "unavailable", "invalid",     "unauthorized", "error"};

}  // namespace

Probe::Probe(MetricsRegistry& r)
    : batch_size_(
          r.histogram("akv_batch_size", "Live sessions in a decode step.", batch_buckets())),
      checksum_failures_(
          r.counter("akv_checksum_failures_total", "States refused by verification before use.")),
      ttft_(r.histogram("akv_ttft_seconds", "From a request's arrival to its first token.",
                        ttft_buckets())),
      inter_token_(r.histogram("akv_inter_token_seconds", "Between two tokens of a request.",
                               inter_token_buckets())),
      e2e_(r.histogram("akv_e2e_seconds", "From a request's arrival to its end.",
                       request_buckets())),
      prompt_tokens_(r.counter("akv_prompt_tokens_total", "Prompt tokens of requests.")),
      generated_tokens_(r.counter("akv_generated_tokens_total", "Tokens given to clients.")),
      unreachable_(r.counter("akv_theta_unreachable_total",
                             "Prompts too short for the theta asked for; the best was built.")) {
  for (const char* outcome : kOutcomes) {
    outcomes_.emplace_back(
        outcome, r.counter("akv_requests_total", "Requests ended.", {{"outcome", outcome}}));
  }
}

void Probe::watch(MetricsRegistry& r, EngineLevels engine, FrontLevels front) {
  const auto gauge = [&](const char* name, const char* help, std::function<double()> read) {
    if (read) callbacks_.push_back(r.gauge_callback(name, help, {}, std::move(read)));
  };
  gauge("akv_sessions", "Sessions in every phase.", std::move(engine.sessions));
  gauge("akv_sessions_parked", "Sessions that wait for pages in the middle of an answer.",
        std::move(engine.parked));
  gauge("akv_sessions_limit", "What --max-sessions allows.", std::move(engine.max_sessions));
  gauge("akv_state_limit_bytes", "What --max-state-bytes allows: states and dense pages together.",
        std::move(engine.max_state_bytes));
  gauge("akv_state_used_ratio", "Share of that limit that states and pages take or reserve.",
        std::move(engine.used_share));
  gauge("akv_state_resident_bytes", "Bytes of states held and verified.",
        std::move(engine.resident_bytes));
  gauge("akv_state_reserved_bytes", "Bytes reserved for states that have not landed.",
        std::move(engine.reserved_bytes));
  gauge("akv_suffix_bytes", "Bytes of dense pages after prompts.", std::move(engine.suffix_bytes));
  gauge("akv_queue_requests", "Requests without a first token.", std::move(front.queue_requests));
  gauge("akv_queue_tokens", "Their prompt tokens.", std::move(front.queue_tokens));
  gauge("akv_queue_limit_requests", "Requests without a first token that are taken at most.",
        std::move(front.max_queue_requests));
  gauge("akv_queue_limit_tokens", "Prompt tokens that may wait at most.",
        std::move(front.max_queue_tokens));
  callbacks_.push_back(
      r.gauges_callback("akv_peers", "Peers by role and state.", std::move(front.peers)));
  callbacks_.push_back(r.gauges_callback("akv_heartbeat_age_seconds",
                                         "Since a peer was last heard.",
                                         std::move(front.heartbeat_ages)));
}

void Probe::stepped(size_t batch) const { batch_size_.observe(static_cast<double>(batch)); }
void Probe::checksum_failed() const { checksum_failures_.add(); }
void Probe::request_ended(const std::string& outcome) const {
  for (const auto& [name, counter] : outcomes_) {
    if (name == outcome) counter.add();
  }
}
void Probe::first_token(double seconds) const { ttft_.observe(seconds); }
void Probe::inter_token(double seconds) const { inter_token_.observe(seconds); }
void Probe::request_seconds(double seconds) const { e2e_.observe(seconds); }
void Probe::tokens(int64_t prompt, int64_t generated) const {
  prompt_tokens_.add(static_cast<double>(prompt));
  generated_tokens_.add(static_cast<double>(generated));
}
void Probe::theta_unreachable() const { unreachable_.add(); }

}  // namespace akv::decode
