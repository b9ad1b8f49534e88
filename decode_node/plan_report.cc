#include "decode_node/plan_report.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/config/load.h"
#include "common/model/model.h"
#include "common/model/wire.h"
#include "decode_node/cache/suffix.h"
#include "decode_node/config.h"

namespace akv::decode {
namespace {

constexpr int kBadInput = 2;

// Sessions of so many state bytes, as BytePool admits them: the first page comes with the state,
// further ones as the answer grows.
int64_t sessions_that_fit(uint64_t state_bytes, int64_t pages, const PlanNode& node) {
  const auto for_states =
      node.capacity_bytes -
      static_cast<uint64_t>(node.page_share * static_cast<double>(node.capacity_bytes));
  const uint64_t whole = state_bytes + static_cast<uint64_t>(pages) * node.page_bytes;
  const uint64_t fit = std::min(for_states / state_bytes, node.capacity_bytes / whole);
  return std::min(static_cast<int64_t>(fit), node.max_sessions);
}

double link_ms(uint64_t bytes, double gbit_per_s) {
  return static_cast<double>(bytes) * 8 / (gbit_per_s * 1e9) * 1e3;
}

// Answers a second that one decode node's memory lets through: sessions over a session's life.
double answers_per_s(const PlanLoad& load, int64_t sessions) {
  const double prefill_s = static_cast<double>(load.prompt_tokens) / load.prefill_tokens_per_s;
  const double answer_s = static_cast<double>(load.answer_tokens) / load.session_tokens_per_s;
  return static_cast<double>(sessions) / (prefill_s + answer_s);
}

nlohmann::ordered_json report(const kv::StatePlan& plan, const PlanLoad& load, const PlanNode& node,
                              const Sizing& sizing) {
  nlohmann::ordered_json json = {{"prompt_tokens", plan.tokens},
                                 {"codec", plan.codec == kv::Codec::kNone ? "none" : "anchorkv"},
                                 {"theta_requested", plan.theta_requested},
                                 {"theta", plan.theta},
                                 {"dense_bytes", plan.dense_bytes},
                                 {"state_bytes", plan.total_bytes},
                                 {"ratio", plan.ratio()},
                                 {"page_bytes", node.page_bytes},
                                 {"suffix_pages", sizing.suffix_pages},
                                 {"max_state_bytes", node.capacity_bytes},
                                 {"sessions", sizing.sessions},
                                 {"dense_sessions", sizing.dense_sessions},
                                 {"link_gbit_per_s", load.link_gbit_per_s},
                                 {"transfer_ms", sizing.transfer_ms},
                                 {"dense_transfer_ms", sizing.dense_transfer_ms},
                                 {"exposed_transfer_ms", sizing.exposed_ms}};
  if (sizing.prefill_nodes > 0 && sizing.decode_nodes > 0) {
    json["requests_per_s"] = load.requests_per_s;
    json["prefill_nodes"] = sizing.prefill_nodes;
    json["decode_nodes"] = sizing.decode_nodes;
    json["decode_per_prefill"] = sizing.decode_nodes / sizing.prefill_nodes;
  }
  return json;
}

Result<std::string> make_report(std::span<const char* const> args) {
  Config config;
  Schema schema;
  config.app.declare(schema);
  config.declare(schema);
  AKV_ASSIGN_OR_RETURN(const CommandLine line, parse_command_line(schema, args));
  AKV_RETURN_IF_ERROR(apply_configuration(schema, line, ::getenv));
  AKV_RETURN_IF_ERROR(schema.check_required());
  AKV_RETURN_IF_ERROR(config.validate());
  AKV_ASSIGN_OR_RETURN(const auto model, model::Model::load(config.model));
  AKV_ASSIGN_OR_RETURN(auto options, config.dispatcher_options());
  const PlanLoad& load = config.plan_load;
  if (options.auto_theta) options.codec.theta = kv::auto_theta(load.prompt_tokens);
  AKV_ASSIGN_OR_RETURN(const auto plan,
                       model::plan_state(*model, load.prompt_tokens, options.codec));
  const EngineOptions engine = config.engine_options(EngineDevice{});
  const PlanNode node{.capacity_bytes = engine.max_state_bytes,
                      .page_share = engine.page_share,
                      .page_bytes = PageShape(model->config()).bytes(),
                      .max_sessions = static_cast<int64_t>(engine.max_sessions)};
  return report(plan, load, node, size_deployment(plan, load, node)).dump(2) + "\n";
}

}  // namespace

Sizing size_deployment(const kv::StatePlan& plan, const PlanLoad& load, const PlanNode& node) {
  constexpr int64_t kPage = kernels::kSuffixPageTokens;
  Sizing sizing;
  sizing.suffix_pages = std::max<int64_t>(1, (load.answer_tokens + kPage - 1) / kPage);
  sizing.sessions = sessions_that_fit(plan.total_bytes, sizing.suffix_pages, node);
  sizing.dense_sessions = sessions_that_fit(plan.dense_bytes, sizing.suffix_pages, node);
  sizing.transfer_ms = link_ms(plan.total_bytes, load.link_gbit_per_s);
  sizing.dense_transfer_ms = link_ms(plan.dense_bytes, load.link_gbit_per_s);
  // Records leave as their layers are done; the last one cannot leave before the first token.
  sizing.exposed_ms = link_ms(plan.record_bytes.back(), load.link_gbit_per_s);
  if (load.prefill_tokens_per_s <= 0) return sizing;
  const double prefill_s = static_cast<double>(load.prompt_tokens) / load.prefill_tokens_per_s;
  sizing.exposed_ms = std::max(sizing.exposed_ms, sizing.transfer_ms - prefill_s * 1e3);
  if (load.requests_per_s <= 0) return sizing;
  sizing.prefill_nodes = load.requests_per_s * prefill_s;
  if (load.decode_tokens_per_s <= 0 || sizing.sessions == 0) return sizing;
  const double by_rate =
      load.requests_per_s * static_cast<double>(load.answer_tokens) / load.decode_tokens_per_s;
  const double by_memory = load.requests_per_s / answers_per_s(load, sizing.sessions);
  sizing.decode_nodes = std::max(by_rate, by_memory);
  return sizing;
}

bool wants_plan(std::span<const char* const> args) {
  return std::any_of(args.begin(), args.end(),
                     [](std::string_view word) { return word == "--plan"; });
}

int print_plan(std::span<const char* const> args) {
  const Result<std::string> text = make_report(args);
  if (!text.ok()) {
    fmt::print(stderr, "decode_node: {}\n", text.error().message);
    return kBadInput;
  }
  fmt::print("{}", *text);
  return 0;
}

}  // namespace akv::decode
