#include "prefill_node/probe.h"

namespace akv::prefill {

Probe::Probe(MetricsRegistry& r, bool shared_process)
    : prefill_seconds_(r.histogram("akv_prefill_seconds",
                                   "From the start of a prompt's first layer to its first token.",
                                   stage_buckets())),
      compress_seconds_(r.histogram("akv_compress_seconds",
                                    "Compression of all layers of one prompt.", stage_buckets())),
      transfer_seconds_(r.histogram("akv_transfer_seconds",
                                    "From the first record posted to the last one landed.",
                                    stage_buckets())),
      transfers_ok_(
          r.counter("akv_transfers_total", "State transfers ended.", {{"outcome", "ok"}})),
      transfers_failed_(
          r.counter("akv_transfers_total", "State transfers ended.", {{"outcome", "failed"}})),
      transfers_cancelled_(
          r.counter("akv_transfers_total", "State transfers ended.", {{"outcome", "cancelled"}})),
      sent_bytes_(r.counter("akv_state_sent_bytes_total", "Bytes of states that were delivered.")),
      ratio_(r.histogram("akv_compression_ratio", "Dense bytes over state bytes of a prompt.",
                         ratio_buckets())) {
  if (shared_process) return;
  prompt_tokens_ = r.counter("akv_prompt_tokens_total", "Prompt tokens prefilled.");
  unreachable_ = r.counter("akv_theta_unreachable_total",
                           "Prompts too short for the theta asked for; the best was built.");
  const auto requests = [&](const char* outcome) {
    return r.counter("akv_requests_total", "Requests ended.", {{"outcome", outcome}});
  };
  ok_ = requests("ok");
  failed_ = requests("failed");
  cancelled_ = requests("cancelled");
}

void Probe::watch(MetricsRegistry& r, Levels levels) {
  const auto gauge = [&](const char* name, const char* help, std::function<double()> read) {
    if (read) callbacks_.push_back(r.gauge_callback(name, help, {}, std::move(read)));
  };
  gauge("akv_queue_requests", "Prompts waiting or in work.", std::move(levels.queue_requests));
  gauge("akv_queue_tokens", "Prompt tokens waiting or in work.", std::move(levels.queue_tokens));
  gauge("akv_queue_limit_tokens", "Prompt tokens that may wait or be in work at most.",
        std::move(levels.max_queue_tokens));
  gauge("akv_outbox_bytes", "Bytes of states kept for resending.", std::move(levels.outbox_bytes));
  gauge("akv_outbox_limit_bytes", "What --outbox-bytes allows.",
        std::move(levels.max_outbox_bytes));
  gauge("akv_prefill_dense_kv_bytes", "Dense K/V alive in prefill: one layer of one prompt.",
        std::move(levels.dense_kv_bytes));
}

void Probe::prefilled(int64_t tokens, double seconds) const {
  prompt_tokens_.add(static_cast<double>(tokens));
  prefill_seconds_.observe(seconds);
}
void Probe::compressed(double seconds, double ratio) const {
  compress_seconds_.observe(seconds);
  ratio_.observe(ratio);
}
void Probe::transferred(double seconds, uint64_t bytes) const {
  transfers_ok_.add();
  transfer_seconds_.observe(seconds);
  sent_bytes_.add(static_cast<double>(bytes));
}
void Probe::transfer_failed() const { transfers_failed_.add(); }
void Probe::transfer_cancelled() const { transfers_cancelled_.add(); }
void Probe::finished(const std::string& outcome) const {
  (outcome == "ok" ? ok_ : outcome == "cancelled" ? cancelled_ : failed_).add();
}
void Probe::theta_unreachable() const { unreachable_.add(); }

}  // namespace akv::prefill
