// fidelity: how much a compressed state changes what the model says. One prefill per file feeds
// every method; the answer is teacher-forced through the real decode engine over each state.
//
//   fidelity --model M [--f32] METHOD... FILE.json...
//   METHOD: NAME[+OPTION=VALUE]...[@THETA], NAME: full, paper, pooled
//
// One JSON object per file and method: nll is the mean negative log-likelihood of the answer's
// tokens, kl the mean KL(full || method) in nats, correct whether every arg max is the answer's.
#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/worker_pool.h"
#include "common/device/host.h"
#include "common/kv/codec.h"
#include "common/model/tokenizer.h"
#include "common/model/wire.h"
#include "decode_node/engine/cpu_step.h"
#include "prefill_node/engine/layer_stream.h"

namespace akv {
namespace {

struct Method {
  std::string text;
  proto::CodecChoice choice;
};

struct Sample {
  std::string file;
  std::vector<int32_t> prompt;
  std::vector<int32_t> answer;
};

struct Arguments {
  std::string model;
  bool f32 = false;
  std::vector<Method> methods;
  std::vector<std::string> files;
};

Result<Method> parse_method(const std::string& text) {
  Method method;
  method.text = text;
  method.choice.min_compress_tokens = 0;
  std::string rest = text;
  if (const size_t at = rest.rfind('@'); at != std::string::npos) {
    char* end = nullptr;
    method.choice.theta = std::strtod(rest.c_str() + at + 1, &end);
    if (*end != '\0') return make_error(Code::kInvalidArgument, text + ": theta is no number");
    rest = rest.substr(0, at);
  }
  std::vector<std::string> parts;
  std::stringstream stream(rest);
  for (std::string part; std::getline(stream, part, '+');) {
    // A value may hold a plus of its own: widths=2+4.
    if (parts.size() > 1 && part.find('=') == std::string::npos) {
      parts.back() += "+" + part;
    } else {
      parts.push_back(part);
    }
  }
  if (parts.empty()) return make_error(Code::kInvalidArgument, "a method has no name");
  if (parts[0] == "full") {
    method.choice.codec = "none";
  } else {
    method.choice.profile = parts[0];
  }
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t equals = parts[i].find('=');
    if (equals == std::string::npos) {
      return make_error(Code::kInvalidArgument, text + ": '" + parts[i] + "' is no OPTION=VALUE");
    }
    method.choice.options.emplace_back(parts[i].substr(0, equals), parts[i].substr(equals + 1));
  }
  AKV_RETURN_IF_ERROR(model::plan_request(method.choice));
  return method;
}

Result<Arguments> parse_arguments(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    if (text == "--model" && i + 1 < argc) {
      arguments.model = argv[++i];
    } else if (text == "--f32") {
      arguments.f32 = true;
    } else if (text.ends_with(".json")) {
      arguments.files.push_back(text);
    } else {
      AKV_ASSIGN_OR_RETURN(auto method, parse_method(text));
      arguments.methods.push_back(std::move(method));
    }
  }
  if (arguments.model.empty() || arguments.methods.empty() || arguments.files.empty()) {
    return make_error(Code::kInvalidArgument,
                      "usage: fidelity --model M [--f32] METHOD... FILE.json...");
  }
  return arguments;
}

Result<Sample> read_sample(const std::string& path, const model::Tokenizer& tokenizer) {
  std::ifstream stream(path);
  if (!stream) return make_error(Code::kIo, "cannot read " + path);
  const auto json = nlohmann::json::parse(stream, nullptr, false);
  if (!json.is_object()) return make_error(Code::kInvalidArgument, path + " is not a JSON object");
  Sample sample;
  sample.file = path;
  try {
    if (json.contains("prompt_ids")) {
      sample.prompt = json["prompt_ids"].get<std::vector<int32_t>>();
    } else {
      sample.prompt = tokenizer.encode(json.at("prompt").get<std::string>(), true, true);
    }
    if (json.contains("answer_ids")) {
      sample.answer = json["answer_ids"].get<std::vector<int32_t>>();
    } else {
      sample.answer = tokenizer.encode(json.at("answer").get<std::string>(), false, false);
    }
  } catch (const nlohmann::json::exception& error) {
    return make_error(Code::kInvalidArgument, path + ": " + error.what());
  }
  if (sample.prompt.size() < 2 || sample.answer.empty()) {
    return make_error(Code::kInvalidArgument, path + ": prompt or answer is empty");
  }
  return sample;
}

// A method's state, built by the real codec beside the others of the same prefill.
struct Built {
  const Method* method = nullptr;
  kv::StatePlan plan;
  kv::StateBuffer buffer;
  uint64_t checksum = 0;
};

Result<std::vector<Built>> prefill(prefill::LayerStream& stream, const Sample& sample,
                                   const std::vector<Method>& methods, const Parallel& parallel) {
  const model::Model& model = stream.model();
  const auto identity = model::state_identity(model, sample.prompt);
  std::vector<Built> states;
  for (const Method& method : methods) {
    Built built;
    built.method = &method;
    AKV_ASSIGN_OR_RETURN(
        built.plan,
        model::plan_state(model, static_cast<int64_t>(sample.prompt.size()), method.choice));
    AKV_ASSIGN_OR_RETURN(built.buffer, kv::StateBuffer::create(built.plan));
    built.checksum = kv::write_header(built.plan, identity, built.buffer.header(built.plan));
    states.push_back(std::move(built));
  }
  kv::Workspace workspace;
  const std::atomic<bool> cancelled{false};
  int window = 1;  // the longest of any method; each observes its own last positions
  for (const Built& built : states) window = std::max(window, built.plan.options.window);
  AKV_ASSIGN_OR_RETURN(const auto prompt, stream.begin(sample.prompt, window));
  const auto on_layer = [&](const prefill::LayerKv& layer) -> Status {
    const auto row = static_cast<size_t>(model.config().q_dim());
    std::vector<bf16> q(static_cast<size_t>(layer.window) * row);
    for (size_t i = 0; i < q.size(); ++i) q[i] = to_bf16(layer.q_window[i]);
    kv::LayerInput input{.layer = layer.layer, .k_pre = layer.k_pre, .v = layer.v};
    input.rope = &model.rope();
    for (Built& built : states) {
      const int skip = std::max(layer.window - built.plan.options.window, 0);
      input.q_obs = q.data() + static_cast<size_t>(skip) * row;
      AKV_RETURN_IF_ERROR(kv::compress_layer(input, built.plan, built.checksum,
                                             built.buffer.record(built.plan, layer.layer),
                                             workspace, parallel));
      AKV_RETURN_IF_ERROR(kv::verify_record(built.buffer.record(built.plan, layer.layer),
                                            layer.layer, built.plan, built.checksum));
    }
    return {};
  };
  while (prompt->next_layer() < model.config().layers) {
    AKV_RETURN_IF_ERROR(stream.run_layer(*prompt, cancelled, on_layer));
  }
  return states;
}

// Log-probabilities [answer tokens][vocab] of the answer, teacher-forced: the entry of the last
// prompt token leaves the state and the token runs again as a dense one.
Result<std::vector<float>> answer_logprobs(decode::CpuStepEngine& engine, const Sample& sample,
                                           const Built& built) {
  const auto& config = engine.model().config();
  AKV_ASSIGN_OR_RETURN(const auto state,
                       engine.adopt({built.buffer.bytes(), &built.plan, nullptr}));
  decode::Suffix suffix(decode::PageShape(config), nullptr);
  std::vector<int32_t> tokens{sample.prompt.back()};
  tokens.insert(tokens.end(), sample.answer.begin(), sample.answer.end() - 1);
  suffix.grow(static_cast<int64_t>(tokens.size()));
  decode::StepEntry entry;
  entry.prompt = state.get();
  entry.suffix = &suffix;
  entry.tokens = tokens;
  entry.position = static_cast<int64_t>(sample.prompt.size()) - 1;
  entry.window_drop = 1;
  entry.want = decode::StepEntry::Want::kAll;
  AKV_RETURN_IF_ERROR(engine.forward({&entry, 1}));
  const auto vocab = static_cast<size_t>(config.vocab);
  std::vector<float> logprobs(entry.logits, entry.logits + tokens.size() * vocab);
  for (size_t i = 0; i < tokens.size(); ++i) {
    float* row = logprobs.data() + i * vocab;
    const float peak = *std::max_element(row, row + vocab);
    double sum = 0;
    for (size_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(row[v] - peak));
    const auto log_sum = static_cast<float>(std::log(sum)) + peak;
    for (size_t v = 0; v < vocab; ++v) row[v] -= log_sum;
  }
  return logprobs;
}

void print_row(const Sample& sample, const Built& built, const std::vector<float>& full,
               const std::vector<float>& logprobs, size_t vocab) {
  const size_t n = sample.answer.size();
  double nll = 0;
  double kl = 0;
  bool correct = true;
  for (size_t i = 0; i < n; ++i) {
    const float* row = logprobs.data() + i * vocab;
    const float* reference = full.data() + i * vocab;
    nll -= row[sample.answer[i]];
    for (size_t v = 0; v < vocab; ++v) {
      kl += std::exp(static_cast<double>(reference[v])) * (reference[v] - row[v]);
    }
    correct = correct && std::max_element(row, row + vocab) - row == sample.answer[i];
  }
  nlohmann::ordered_json json;
  json["file"] = sample.file.substr(sample.file.rfind('/') + 1);
  json["method"] = built.method->text;
  json["prompt_tokens"] = sample.prompt.size();
  json["dense_bytes"] = built.plan.dense_bytes;
  json["state_bytes"] = built.plan.total_bytes;
  json["nll"] = nll / static_cast<double>(n);
  json["kl"] = kl / static_cast<double>(n);
  json["correct"] = correct;
  std::printf("%s\n", json.dump().c_str());
  std::fflush(stdout);
}

Status run(const Arguments& arguments) {
  AKV_ASSIGN_OR_RETURN(const auto model, model::Model::load(arguments.model));
  AKV_ASSIGN_OR_RETURN(const auto tokenizer, model::Tokenizer::create(model->vocab()));
  WorkerPool pool(cpu_count());
  const Parallel parallel = parallel_view(pool);
  AKV_ASSIGN_OR_RETURN(const Method full, parse_method("full"));
  for (const std::string& file : arguments.files) {
    AKV_ASSIGN_OR_RETURN(const Sample sample, read_sample(file, tokenizer));
    std::vector<Method> methods{full};
    methods.insert(methods.end(), arguments.methods.begin(), arguments.methods.end());
    std::vector<Built> states;
    {
      prefill::LayerStream stream(model, prefill::StreamOptions{.f32 = arguments.f32}, parallel);
      AKV_ASSIGN_OR_RETURN(states, prefill(stream, sample, methods, parallel));
    }
    decode::CpuStepEngine engine(model, parallel);
    AKV_ASSIGN_OR_RETURN(const auto reference, answer_logprobs(engine, sample, states[0]));
    for (size_t i = 1; i < states.size(); ++i) {
      AKV_ASSIGN_OR_RETURN(const auto logprobs, answer_logprobs(engine, sample, states[i]));
      print_row(sample, states[i], reference, logprobs, static_cast<size_t>(model->config().vocab));
    }
  }
  return {};
}

}  // namespace
}  // namespace akv

int main(int argc, char** argv) {
  const auto arguments = akv::parse_arguments(argc, argv);
  if (!arguments.ok()) {
    std::fprintf(stderr, "fidelity: %s\n", arguments.error().message.c_str());
    return 2;
  }
  const akv::Status status = akv::run(*arguments);
  if (!status.ok()) std::fprintf(stderr, "fidelity: %s\n", status.error().message.c_str());
  return status.ok() ? 0 : 1;
}
