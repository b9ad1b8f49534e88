#include "common/model/wire.h"

#include <vector>

#include <fmt/format.h>

#include "common/base/checksum.h"
#include "proto/state.h"

namespace akv::model {

SamplingParams sampling_params(const proto::Sampling& s) {
  SamplingParams params;
  params.temperature = static_cast<float>(s.temperature);
  params.top_k = s.top_k;
  params.top_p = static_cast<float>(s.top_p);
  params.min_p = static_cast<float>(s.min_p);
  params.repetition_penalty = static_cast<float>(s.repetition_penalty);
  params.presence_penalty = static_cast<float>(s.presence_penalty);
  params.frequency_penalty = static_cast<float>(s.frequency_penalty);
  params.logit_bias = s.logit_bias;
  params.seed = s.seed;
  params.logprobs = s.logprobs;
  params.stop_token_ids = s.stop_token_ids;
  params.ignore_eos = s.ignore_eos;
  params.min_tokens = s.min_tokens;
  return params;
}

proto::TokenOut token_out(const Sampled& sampled) {
  return {.id = sampled.token, .logprob = sampled.logprob, .top = sampled.top};
}

kv::KvShape kv_shape(const ModelConfig& config) {
  return {.layers = config.layers,
          .heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim};
}

kv::StateIdentity state_identity(const Model& model, std::span<const int32_t> token_ids) {
  return {.model_fingerprint = model.fingerprint(),
          .tokenizer_hash = model.tokenizer_hash(),
          .prompt_hash = kv::prompt_hash(token_ids)};
}

Result<kv::PlanRequest> plan_request(const proto::CodecChoice& choice) {
  kv::PlanRequest request;
  if (choice.codec == "none") {
    request.codec = kv::Codec::kNone;
  } else if (choice.codec != "anchorkv") {
    return make_error(Code::kInvalidArgument,
                      fmt::format("codec '{}' is not known, takes anchorkv or none", choice.codec),
                      "kv.codec");
  }
  auto options = kv::profile_options(choice.profile);
  if (!options.ok()) {
    return make_error(options.error().code, options.error().message, "kv.profile");
  }
  request.options = *options;
  for (const auto& [key, value] : choice.options) {
    AKV_RETURN_IF_ERROR(kv::set_option(request.options, key, value));
  }
  AKV_RETURN_IF_ERROR(kv::validate(request.options));
  if (!(choice.theta > 0 && choice.theta <= 1)) {
    return make_error(Code::kInvalidArgument,
                      fmt::format("theta is {}, takes a number in (0, 1]", choice.theta),
                      "kv.theta");
  }
  request.theta = choice.theta;
  request.min_compress_tokens = static_cast<int>(choice.min_compress_tokens);
  AKV_ASSIGN_OR_RETURN(request.on_unreachable, kv::parse_on_unreachable(choice.on_unreachable));
  return request;
}

Result<kv::StatePlan> plan_state(const Model& model, int64_t tokens,
                                 const proto::CodecChoice& choice) {
  AKV_ASSIGN_OR_RETURN(const auto request, plan_request(choice));
  return kv::plan_state(kv_shape(model.config()), tokens, request);
}

uint64_t plan_hash(const kv::StatePlan& plan) {
  std::vector<uint64_t> facts{static_cast<uint64_t>(plan.tokens), static_cast<uint64_t>(plan.codec),
                              plan.header_bytes, plan.total_bytes};
  facts.insert(facts.end(), plan.record_bytes.begin(), plan.record_bytes.end());
  return xxh3_64(std::as_bytes(std::span(facts)));
}

proto::Hello make_hello(std::string role, const Model& model) {
  proto::Hello hello;
  hello.role = std::move(role);
  hello.state_format = static_cast<int>(proto::kStateVersion);
  hello.model = model.config().name;
  hello.model_fingerprint = to_hex(model.fingerprint());
  hello.tokenizer_hash = to_hex(model.tokenizer_hash());
  hello.context_length = model.config().context_length;
  return hello;
}

}  // namespace akv::model
