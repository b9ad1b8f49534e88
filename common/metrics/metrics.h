// Metrics in the Prometheus text format. A component's probe asks for typed handles once, up front,
// and then only adds, sets and observes; names, labels and help texts are written in one place.
//
// Names are those of the project's interface: lower case, prefix akv_, base units (_seconds,
// _bytes), counters end in _total. Each sample carries the label `node`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace akv {

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// Handles are views: copied freely, valid as long as their registry, and lock-free (a histogram
// takes a short lock of its own). A default-made handle does nothing, so that a component can run
// without metrics.
class Counter {
 public:
  Counter() = default;
  explicit Counter(prometheus::Counter* counter) : counter_(counter) {}
  // amount >= 0.
  void add(double amount = 1) const;
  double value() const;

 private:
  prometheus::Counter* counter_ = nullptr;
};

class Gauge {
 public:
  Gauge() = default;
  explicit Gauge(prometheus::Gauge* gauge) : gauge_(gauge) {}
  void set(double value) const;
  // May be negative.
  void add(double amount) const;
  double value() const;

 private:
  prometheus::Gauge* gauge_ = nullptr;
};

class Histogram {
 public:
  Histogram() = default;
  explicit Histogram(prometheus::Histogram* histogram) : histogram_(histogram) {}
  void observe(double value) const;

 private:
  prometheus::Histogram* histogram_ = nullptr;
};

// Upper bounds in seconds: vLLM's for the first token, SGLang's for the gap between tokens (from
// 2 ms), vLLM's for a whole request, powers of two from 1 ms for a stage of one.
std::vector<double> ttft_buckets();
std::vector<double> inter_token_buckets();
std::vector<double> request_buckets();
std::vector<double> stage_buckets();
// Upper bounds of a compression ratio (1 .. 64) and of a batch size (1 .. 1024).
std::vector<double> ratio_buckets();
std::vector<double> batch_buckets();

struct GaugeSample {
  MetricLabels labels;
  double value = 0;
};

// Owner of all metrics of a daemon. Thread-safe.
class MetricsRegistry {
 public:
  // node: the value of the label `node`; set_node may give it later (default: the bound address).
  explicit MetricsRegistry(std::string node = {});
  ~MetricsRegistry();
  MetricsRegistry(const MetricsRegistry&) = delete;
  MetricsRegistry& operator=(const MetricsRegistry&) = delete;

  void set_node(std::string node);

  // The metric of that name and those labels, made on first use. The help text and the buckets of
  // the first use stand. REQUIRES: a valid name, and one type per name (AKV_CHECK).
  Counter counter(const std::string& name, const std::string& help,
                  const MetricLabels& labels = {});
  Gauge gauge(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  Histogram histogram(const std::string& name, const std::string& help,
                      const std::vector<double>& buckets, const MetricLabels& labels = {});

  // Takes its callback out when destroyed, and then no call is running any more. May outlive the
  // registry. Hold it as the last member of the object that the callback reads.
  class [[nodiscard]] Callback {
   public:
    Callback() = default;
    Callback(Callback&&) noexcept = default;
    Callback& operator=(Callback&& other) noexcept;
    ~Callback();

   private:
    friend class MetricsRegistry;
    struct State;
    std::shared_ptr<State> state_;
  };
  // A gauge that is read at each scrape, on the scraping thread: read must be quick and
  // thread-safe, and must not use the registry.
  Callback gauge_callback(const std::string& name, const std::string& help,
                          const MetricLabels& labels, std::function<double()> read);
  // The same for a gauge whose label values come and go (peers). All samples of one name come from
  // one callback.
  Callback gauges_callback(const std::string& name, const std::string& help,
                           std::function<std::vector<GaugeSample>()> read);

  // Everything in the text format 0.0.4 (content type kContentType).
  std::string scrape();
  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace akv
