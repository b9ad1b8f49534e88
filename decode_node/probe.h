// Metrics of a decode node: named methods, registered in one place.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "common/metrics/metrics.h"

namespace akv::decode {

// Levels that are read at each scrape; each must be thread-safe, an empty one is left out. Limits
// are what the flags say, so that a share can be computed without knowing them.
struct EngineLevels {
  std::function<double()> sessions;
  std::function<double()> parked;
  std::function<double()> resident_bytes;
  std::function<double()> reserved_bytes;
  std::function<double()> suffix_bytes;
  std::function<double()> max_sessions;
  std::function<double()> max_state_bytes;
  std::function<double()> used_share;  // of max_state_bytes, 0 to 1
};
struct FrontLevels {
  std::function<double()> queue_requests;
  std::function<double()> queue_tokens;
  std::function<double()> max_queue_requests;
  std::function<double()> max_queue_tokens;
  std::function<std::vector<GaugeSample>()> peers;           // labels role, state
  std::function<std::vector<GaugeSample>()> heartbeat_ages;  // label peer; seconds
};

// Thread-safe. A default-made probe counts nothing (tests, tools).
class Probe {
 public:
  Probe() = default;
  explicit Probe(MetricsRegistry& registry);
  void watch(MetricsRegistry& registry, EngineLevels engine, FrontLevels front);

  // Engine.
  void stepped(size_t batch) const;
  void checksum_failed() const;

  // Front door.
  void request_ended(const std::string& outcome) const;
  void first_token(double seconds) const;
  void inter_token(double seconds) const;
  void request_seconds(double seconds) const;
  void tokens(int64_t prompt, int64_t generated) const;
  void theta_unreachable() const;

 private:
  Histogram batch_size_;
  Counter checksum_failures_;
  Histogram ttft_;
  Histogram inter_token_;
  Histogram e2e_;
  Counter prompt_tokens_;
  Counter generated_tokens_;
  Counter unreachable_;
  std::vector<std::pair<std::string, Counter>> outcomes_;
  std::vector<MetricsRegistry::Callback> callbacks_;
};

}  // namespace akv::decode
