#include "common/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "common/base/check.h"

namespace akv {
namespace {

bool is_valid_name(const std::string& name) {
  if (!name.starts_with("akv_")) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

prometheus::Labels to_labels(const MetricLabels& labels) {
  prometheus::Labels out;
  for (const auto& [key, value] : labels) out.emplace(key, value);
  return out;
}

// A callback's samples as the family that the serializer writes.
prometheus::MetricFamily to_family(const std::string& name, const std::string& help,
                                   const std::vector<GaugeSample>& samples) {
  prometheus::MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = prometheus::MetricType::Gauge;
  for (const GaugeSample& sample : samples) {
    prometheus::ClientMetric metric;
    for (const auto& [key, value] : sample.labels) metric.label.push_back({key, value});
    metric.gauge.value = sample.value;
    family.metric.push_back(std::move(metric));
  }
  return family;
}

}  // namespace

void Counter::add(double amount) const {
  if (counter_ != nullptr) counter_->Increment(amount);
}
double Counter::value() const { return counter_ != nullptr ? counter_->Value() : 0; }

void Gauge::set(double value) const {
  if (gauge_ != nullptr) gauge_->Set(value);
}
void Gauge::add(double amount) const {
  if (gauge_ != nullptr) gauge_->Increment(amount);
}
double Gauge::value() const { return gauge_ != nullptr ? gauge_->Value() : 0; }

void Histogram::observe(double value) const {
  if (histogram_ != nullptr) histogram_->Observe(value);
}

// Shared by the registry and the Callback handle, whichever goes first. The mutex is held over
// read(), so that a handle's destructor waits for a call in progress.
struct MetricsRegistry::Callback::State {
  std::string name;
  std::string help;
  std::mutex mutex;
  std::function<std::vector<GaugeSample>()> read;  // guarded by mutex; null once taken out
};

MetricsRegistry::Callback& MetricsRegistry::Callback::operator=(Callback&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

MetricsRegistry::Callback::~Callback() {
  if (!state_) return;
  std::lock_guard lock(state_->mutex);
  state_->read = nullptr;
}

struct MetricsRegistry::Impl {
  prometheus::Registry registry;
  std::mutex mutex;
  std::string node;                                                              // guarded by mutex
  std::map<std::string, prometheus::Family<prometheus::Counter>*> counters;      // guarded by mutex
  std::map<std::string, prometheus::Family<prometheus::Gauge>*> gauges;          // guarded by mutex
  std::map<std::string, prometheus::Family<prometheus::Histogram>*> histograms;  // guarded by mutex
  std::vector<std::shared_ptr<Callback::State>> callbacks;                       // guarded by mutex

  // The family of a name, made by build on first use. Caller holds mutex.
  template <class M, class Builder>
  prometheus::Family<M>& family(std::map<std::string, prometheus::Family<M>*>& known, Builder build,
                                const std::string& name, const std::string& help) {
    AKV_CHECK(is_valid_name(name));
    auto [it, fresh] = known.try_emplace(name, nullptr);
    if (fresh) {
      AKV_CHECK(counters.count(name) + gauges.count(name) + histograms.count(name) == 1);
      it->second = &build().Name(name).Help(help).Register(registry);
    }
    return *it->second;
  }

  std::vector<prometheus::MetricFamily> collect_callbacks() {
    std::vector<std::shared_ptr<Callback::State>> live;
    {
      std::lock_guard lock(mutex);
      live = callbacks;
    }
    // Gauges of one name may come from several callbacks (one per label set): one family each name.
    std::map<std::string, prometheus::MetricFamily> families;
    for (const auto& state : live) {
      std::lock_guard lock(state->mutex);
      if (!state->read) continue;
      prometheus::MetricFamily family = to_family(state->name, state->help, state->read());
      auto [it, fresh] = families.try_emplace(state->name, family);
      if (!fresh)
        std::move(family.metric.begin(), family.metric.end(),
                  std::back_inserter(it->second.metric));
    }
    std::vector<prometheus::MetricFamily> out;
    for (auto& [name, family] : families) out.push_back(std::move(family));
    return out;
  }
};

MetricsRegistry::MetricsRegistry(std::string node) : impl_(std::make_unique<Impl>()) {
  impl_->node = std::move(node);
}

MetricsRegistry::~MetricsRegistry() = default;

void MetricsRegistry::set_node(std::string node) {
  std::lock_guard lock(impl_->mutex);
  impl_->node = std::move(node);
}

Counter MetricsRegistry::counter(const std::string& name, const std::string& help,
                                 const MetricLabels& labels) {
  AKV_CHECK(name.ends_with("_total"));
  std::lock_guard lock(impl_->mutex);
  return Counter(
      &impl_->family(impl_->counters, prometheus::BuildCounter, name, help).Add(to_labels(labels)));
}

Gauge MetricsRegistry::gauge(const std::string& name, const std::string& help,
                             const MetricLabels& labels) {
  std::lock_guard lock(impl_->mutex);
  return Gauge(
      &impl_->family(impl_->gauges, prometheus::BuildGauge, name, help).Add(to_labels(labels)));
}

Histogram MetricsRegistry::histogram(const std::string& name, const std::string& help,
                                     const std::vector<double>& buckets,
                                     const MetricLabels& labels) {
  std::lock_guard lock(impl_->mutex);
  return Histogram(&impl_->family(impl_->histograms, prometheus::BuildHistogram, name, help)
                        .Add(to_labels(labels), buckets));
}

MetricsRegistry::Callback MetricsRegistry::gauge_callback(const std::string& name,
                                                          const std::string& help,
                                                          const MetricLabels& labels,
                                                          std::function<double()> read) {
  return gauges_callback(name, help, [labels, read = std::move(read)] {
    return std::vector<GaugeSample>{{labels, read()}};
  });
}

MetricsRegistry::Callback MetricsRegistry::gauges_callback(
    const std::string& name, const std::string& help,
    std::function<std::vector<GaugeSample>()> read) {
  AKV_CHECK(is_valid_name(name));
  auto state = std::make_shared<Callback::State>();
  state->name = name;
  state->help = help;
  state->read = std::move(read);
  std::lock_guard lock(impl_->mutex);
  AKV_CHECK(
      impl_->counters.count(name) + impl_->gauges.count(name) + impl_->histograms.count(name) == 0);
  // Callbacks that were taken out leave the list here, so it stays as long as what is in use.
  std::erase_if(impl_->callbacks, [](const auto& old) {
    std::lock_guard state_lock(old->mutex);
    return !old->read;
  });
  impl_->callbacks.push_back(state);
  Callback handle;
  handle.state_ = std::move(state);
  return handle;
}

std::string MetricsRegistry::scrape() {
  std::vector<prometheus::MetricFamily> families = impl_->registry.Collect();
  std::vector<prometheus::MetricFamily> read = impl_->collect_callbacks();
  std::move(read.begin(), read.end(), std::back_inserter(families));
  std::string node;
  {
    std::lock_guard lock(impl_->mutex);
    node = impl_->node;
  }
  for (prometheus::MetricFamily& family : families) {
    for (prometheus::ClientMetric& metric : family.metric) {
      metric.label.insert(metric.label.begin(), {"node", node});
    }
  }
  std::sort(families.begin(), families.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace akv
