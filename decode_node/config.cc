#include "decode_node/config.h"

#include <charconv>
#include <filesystem>

#include <fmt/format.h>

#include "common/device/host.h"
#include "common/model/wire.h"

namespace akv::decode {
namespace {

void declare_source(Schema& s, const std::string& role, PeerSource& source) {
  s.addresses(role, source.addresses).doc(role + " peers").reloadable();
  s.text(role + "-file", source.file, "FILE")
      .doc(role + " peers, one HOST:PORT a line, # comments; re-read on change");
  s.address(role + "-dns", source.dns).doc(role + " peers by a DNS name, resolved again every 5 s");
}

Status at_most_one(const PeerSource& source, const char* role) {
  const int given = !source.addresses.empty() + !source.file.empty() + source.dns.has_value();
  if (given <= 1) return {};
  return make_error(Code::kInvalidArgument,
                    fmt::format("{0}: got several sources, takes one of --{0}, --{0}-file and "
                                "--{0}-dns",
                                role),
                    role);
}

Status parse_theta(std::string_view text, double& theta) {
  if (text == "auto") {
    theta = 0;
    return {};
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value > 0 && value <= 1)) {
    return make_error(Code::kInvalidArgument, "");
  }
  theta = value;
  return {};
}

}  // namespace

void Config::declare(Schema& s) {
  declare_node(s);
  s.section("Front door");
  s.address("http", http).doc("HTTP address of the API");
  declare_source(s, "prefill", prefill);
  declare_source(s, "decode", decode);
  s.flag("local", local).doc("run prefill in this process, over memory instead of a network");
  s.text("api-key-file", api_key_file, "FILE").doc("API keys, one a line; none: open").reloadable();
  s.integer("max-queue", max_queue)
      .unit("requests")
      .range(1, 1e6)
      .doc("requests without a first token; more get 429");
  s.integer("max-queue-tokens", max_queue_tokens)
      .unit("tokens")
      .range(1, 1e12)
      .doc("their prompt tokens");
  s.integer("request-timeout-ms", request_timeout_ms)
      .unit("ms")
      .range(1, 86'400'000)
      .doc("a request's time from arrival to end");
  s.text("model-name", model_name, "NAME")
      .default_note("the file's name")
      .doc("the model's id in the API");
  s.text("chat-template", chat_template, "NAME")
      .default_note("the model's")
      .doc("a builtin chat template: chatml, llama3, zephyr");
  s.section("Codec");
  s.choice(
       "codec", codec,
       std::vector<std::pair<std::string, std::string>>{{"anchorkv", "anchorkv"}, {"none", "none"}})
      .doc("how states are compressed");
  s.choice(
       "profile", profile,
       std::vector<std::pair<std::string, std::string>>{{"pooled", "pooled"}, {"paper", "paper"}})
      .doc("options of the codec: the project's or the paper's");
  s.custom(
       "theta", "auto|X", "auto or a number in (0, 1]",
       [this](std::string_view text) { return parse_theta(text, theta); },
       [this] { return theta == 0 ? std::string("auto") : fmt::format("{}", theta); })
      .doc("retained share of the dense bytes; auto is max(0.05, 200 / tokens)");
  s.list("codec-option", codec_options, "OPTION=VALUE").doc("a single option of the codec");
  s.choice("on-unreachable-theta", on_unreachable_theta,
           std::vector<std::pair<std::string, std::string>>{
               {"best", "best"}, {"dense", "dense"}, {"error", "error"}})
      .doc("what a prompt too short for its theta gets");
  s.integer("min-compress-tokens", min_compress_tokens)
      .unit("tokens")
      .range(0, 1e9)
      .doc("shorter prompts are sent dense");
  s.section("Engine");
  s.integer("max-sessions", max_sessions)
      .range(0, 65536)
      .doc("sessions at once; 0 makes this a pure front door");
  s.bytes("max-state-bytes", max_state_bytes)
      .default_note("50% of the memory limit, or of a GPU's free memory")
      .doc("states and suffix pages together, in the memory that the engine computes in");
  s.bytes("max-parked-bytes", max_parked_bytes)
      .default_note("25% of the memory limit")
      .doc("with a GPU: host memory for states that land or are parked");
  s.section("Prefill in this process (--local)");
  s.bytes("outbox-bytes", outbox_bytes)
      .default_note("10% of the memory limit")
      .doc("states kept until their request ends");
  s.bytes("max-prefill-bytes", max_prefill_bytes)
      .default_note("25% of the memory limit")
      .doc("hidden states and activations of all prompts in work");
  declare_plan(s);
}

void Config::declare_plan(Schema& s) {
  s.section("Planning (--plan)");
  s.flag("plan", plan).doc("print bytes, sessions, transfer times and nodes as JSON, then exit");
  s.integer("plan-prompt-tokens", plan_load.prompt_tokens)
      .unit("tokens")
      .range(1, 1e9)
      .doc("of a request");
  s.integer("plan-answer-tokens", plan_load.answer_tokens)
      .unit("tokens")
      .range(1, 1e9)
      .doc("of a request");
  const auto rate = [&](const char* name, double& field, const char* unit, const char* doc) {
    s.real(name, field).unit(unit).range(0, 1e12).doc(doc);
  };
  s.real("plan-link", plan_load.link_gbit_per_s)
      .unit("Gbit/s")
      .range(1e-6, 1e6)
      .doc("between prefill and decode nodes");
  rate("plan-requests", plan_load.requests_per_s, "a second", "over all nodes; 0: unknown");
  rate("plan-prefill-rate", plan_load.prefill_tokens_per_s, "tokens/s",
       "prompt tokens of a prefill node; 0: unknown");
  rate("plan-decode-rate", plan_load.decode_tokens_per_s, "tokens/s",
       "generated tokens of a decode node, all sessions; 0: unknown");
  s.real("plan-session-rate", plan_load.session_tokens_per_s)
      .unit("tokens/s")
      .range(1e-3, 1e6)
      .doc("generated tokens of one stream");
}

Status Config::validate() const {
  AKV_RETURN_IF_ERROR(validate_node());
  AKV_RETURN_IF_ERROR(at_most_one(prefill, "prefill"));
  AKV_RETURN_IF_ERROR(at_most_one(decode, "decode"));
  if (local && (prefill.any() || decode.any())) {
    return make_error(Code::kInvalidArgument,
                      "local: got it together with peers, takes either --local or peers", "local");
  }
  if (local && max_sessions == 0) {
    return make_error(Code::kInvalidArgument, "max-sessions: got 0 with --local, takes at least 1",
                      "max-sessions");
  }
  AKV_ASSIGN_OR_RETURN(const auto options, dispatcher_options());
  const auto request = model::plan_request(options.codec);
  if (!request.ok()) return request.error();
  return {};
}

Result<DispatcherOptions> Config::dispatcher_options() const {
  DispatcherOptions options;
  options.auto_theta = theta == 0;
  options.codec.codec = codec;
  options.codec.profile = profile;
  if (theta > 0) options.codec.theta = theta;
  options.codec.on_unreachable = on_unreachable_theta;
  options.codec.min_compress_tokens = min_compress_tokens;
  for (const std::string& option : codec_options) {
    const size_t equals = option.find('=');
    if (equals == std::string::npos) {
      return make_error(Code::kInvalidArgument,
                        fmt::format("codec-option: got '{}', takes OPTION=VALUE", option),
                        "codec-option");
    }
    options.codec.options.emplace_back(option.substr(0, equals), option.substr(equals + 1));
  }
  options.model_name =
      model_name.empty() ? std::filesystem::path(model).stem().string() : model_name;
  options.max_queue = static_cast<size_t>(max_queue);
  options.max_queue_tokens = static_cast<uint64_t>(max_queue_tokens);
  return options;
}

EngineOptions Config::engine_options(const EngineDevice& where) const {
  const uint64_t memory = memory_limit_bytes();
  const uint64_t states = (where.is_gpu() ? where.free_bytes : memory) / 2;
  EngineOptions options;
  options.max_sessions = static_cast<size_t>(max_sessions);
  options.max_state_bytes = max_state_bytes > 0 ? max_state_bytes : states;
  options.max_host_state_bytes = max_parked_bytes > 0 ? max_parked_bytes : memory / 4;
  options.max_queue_requests = static_cast<size_t>(max_queue);
  options.lease_ms = lease_ms;
  return options;
}

}  // namespace akv::decode
