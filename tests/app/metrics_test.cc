#include "common/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/temp_dir.h"

namespace akv {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Fills a registry with one metric of each kind, as a daemon's probe would.
void fill(MetricsRegistry& registry) {
  registry.counter("akv_requests_total", "Requests by outcome.", {{"outcome", "ok"}}).add(2);
  registry.gauge("akv_queue_requests", "Requests waiting.").set(3);
  registry.histogram("akv_ttft_seconds", "Time to first token.", ttft_buckets()).observe(0.3);
}

TEST(Metrics, EverySampleCarriesTheNode) {
  MetricsRegistry registry("first");
  fill(registry);
  EXPECT_THAT(registry.scrape(),
              HasSubstr("akv_requests_total{node=\"first\",outcome=\"ok\"} 2\n"));
  registry.set_node("10.0.0.1:5");  // known once the control socket is bound
  const std::string text = registry.scrape();
  EXPECT_THAT(text, HasSubstr("akv_queue_requests{node=\"10.0.0.1:5\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("akv_ttft_seconds_count{node=\"10.0.0.1:5\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("akv_ttft_seconds_bucket{node=\"10.0.0.1:5\",le=\"0.25\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("akv_ttft_seconds_bucket{node=\"10.0.0.1:5\",le=\"0.5\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("\"first\"")));
}

TEST(Metrics, TheSameNameAndLabelsAreTheSameMetric) {
  MetricsRegistry registry("n");
  const Counter a = registry.counter("akv_requests_total", "Requests.", {{"outcome", "ok"}});
  const Counter b = registry.counter("akv_requests_total", "Requests.", {{"outcome", "ok"}});
  const Counter c = registry.counter("akv_requests_total", "Requests.", {{"outcome", "error"}});
  a.add();
  b.add(4);
  EXPECT_EQ(a.value(), 5);
  EXPECT_EQ(c.value(), 0);
}

TEST(Metrics, HandlesAreSafeFromManyThreads) {
  MetricsRegistry registry("n");
  const Counter counter = registry.counter("akv_generated_tokens_total", "Tokens.");
  const Gauge gauge = registry.gauge("akv_sessions", "Sessions.");
  const Histogram histogram =
      registry.histogram("akv_e2e_seconds", "Whole request.", request_buckets());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        counter.add();
        gauge.add(1);
        gauge.add(-1);
        histogram.observe(0.2);
        if (i % 100 == 0) {
          EXPECT_FALSE(registry.scrape().empty());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter.value(), 4000);
  EXPECT_EQ(gauge.value(), 0);
  EXPECT_THAT(registry.scrape(), HasSubstr("akv_e2e_seconds_count{node=\"n\"} 4000\n"));
}

TEST(Metrics, CallbacksAreReadAtEachScrapeUntilTheirHandleGoes) {
  MetricsRegistry registry("n");
  std::atomic<int> bytes{7};
  {
    const MetricsRegistry::Callback handle = registry.gauge_callback(
        "akv_suffix_bytes", "Dense suffix pages.", {}, [&] { return double(bytes); });
    EXPECT_THAT(registry.scrape(), HasSubstr("akv_suffix_bytes{node=\"n\"} 7\n"));
    bytes = 8;
    EXPECT_THAT(registry.scrape(), HasSubstr("akv_suffix_bytes{node=\"n\"} 8\n"));
  }
  EXPECT_THAT(registry.scrape(), Not(HasSubstr("akv_suffix_bytes")));
}

TEST(Metrics, SamplesOfPeersComeAndGo) {
  MetricsRegistry registry("n");
  std::vector<GaugeSample> peers = {{{{"peer", "a:1"}}, 0.5}};
  const auto handle =
      registry.gauges_callback("akv_heartbeat_age_seconds", "Age.", [&] { return peers; });
  EXPECT_THAT(registry.scrape(),
              HasSubstr("akv_heartbeat_age_seconds{node=\"n\",peer=\"a:1\"} 0.5\n"));
  peers = {};
  EXPECT_THAT(registry.scrape(), Not(HasSubstr("peer=\"a:1\"")));
}

TEST(Metrics, CallbacksOfOneNameShareOneFamily) {
  MetricsRegistry registry("n");
  const auto read = [] { return 1.0; };
  const auto a = registry.gauge_callback("akv_peers", "Peers.", {{"role", "prefill"}}, read);
  const auto b = registry.gauge_callback("akv_peers", "Peers.", {{"role", "decode"}}, read);
  const std::string text = registry.scrape();
  const size_t first = text.find("# TYPE akv_peers ");
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(text.find("# TYPE akv_peers ", first + 1), std::string::npos);
  EXPECT_THAT(text, HasSubstr("role=\"prefill\""));
  EXPECT_THAT(text, HasSubstr("role=\"decode\""));
}

TEST(Metrics, AHandleMayOutliveItsRegistry) {
  MetricsRegistry::Callback handle;
  {
    MetricsRegistry registry("n");
    handle = registry.gauge_callback("akv_sessions", "Sessions.", {}, [] { return 1.0; });
  }
  SUCCEED();
}

TEST(Metrics, LabelValuesAreEscaped) {
  MetricsRegistry registry("n");
  registry.gauge("akv_build_info", "Build.", {{"version", "a\"b\\c\nd"}}).set(1);
  EXPECT_THAT(registry.scrape(), HasSubstr("version=\"a\\\"b\\\\c\\nd\""));
}

TEST(MetricsDeathTest, OneNameHasOneType) {
  MetricsRegistry registry("n");
  registry.gauge("akv_sessions", "Sessions.");
  EXPECT_DEATH(registry.histogram("akv_sessions", "Sessions.", batch_buckets()), "CHECK");
  EXPECT_DEATH(registry.counter("akv_requests", "No _total."), "CHECK");
  EXPECT_DEATH(registry.gauge("vllm:sessions", "Not ours."), "CHECK");
}

TEST(Metrics, BucketsRise) {
  for (const auto& bounds : {ttft_buckets(), inter_token_buckets(), request_buckets(),
                             stage_buckets(), ratio_buckets(), batch_buckets()}) {
    EXPECT_TRUE(std::is_sorted(bounds.begin(), bounds.end()));
    EXPECT_EQ(std::adjacent_find(bounds.begin(), bounds.end()), bounds.end());
  }
}

TEST(Metrics, PromtoolFindsNothingToSay) {
  if (std::system("command -v promtool >/dev/null") != 0) GTEST_SKIP() << "no promtool";
  MetricsRegistry registry("n");
  fill(registry);
  const auto handle =
      registry.gauge_callback("akv_suffix_bytes", "Dense suffix pages.", {}, [] { return 1.0; });
  const testing::TempDir dir;
  const std::string file = dir.write("metrics.txt", registry.scrape());
  EXPECT_EQ(std::system(("promtool check metrics < " + file).c_str()), 0);
}

}  // namespace
}  // namespace akv
