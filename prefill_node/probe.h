// Metrics of a prefill node: named methods, registered in one place.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/metrics/metrics.h"

namespace akv::prefill {

// Levels that are read at each scrape; each must be thread-safe, an empty one is left out.
struct Levels {
  std::function<double()> queue_requests;
  std::function<double()> queue_tokens;
  std::function<double()> max_queue_tokens;
  std::function<double()> outbox_bytes;
  std::function<double()> max_outbox_bytes;
  std::function<double()> dense_kv_bytes;
};

// Thread-safe. A default-made probe counts nothing (tests, tools).
class Probe {
 public:
  Probe() = default;
  // shared_process: a decode node's front door in this process counts requests, prompts and queues.
  Probe(MetricsRegistry& registry, bool shared_process);
  void watch(MetricsRegistry& registry, Levels levels);

  void prefilled(int64_t tokens, double seconds) const;
  void compressed(double seconds, double ratio) const;
  void transferred(double seconds, uint64_t bytes) const;
  void transfer_failed() const;
  void transfer_cancelled() const;
  void finished(const std::string& outcome) const;
  void theta_unreachable() const;

 private:
  Counter prompt_tokens_;
  Histogram prefill_seconds_;
  Histogram compress_seconds_;
  Histogram transfer_seconds_;
  Counter transfers_ok_;
  Counter transfers_failed_;
  Counter transfers_cancelled_;
  Counter sent_bytes_;
  Histogram ratio_;
  Counter unreachable_;
  Counter ok_, failed_, cancelled_;
  std::vector<MetricsRegistry::Callback> callbacks_;
};

}  // namespace akv::prefill
