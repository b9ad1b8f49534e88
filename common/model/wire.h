// From wire types (proto/) to the model's and the codec's own, for both daemons alike.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/base/result.h"
#include "common/kv/plan.h"
#include "common/kv/state.h"
#include "common/model/model.h"
#include "common/model/sampler.h"
#include "proto/control.h"
#include "proto/sampling.h"

namespace akv::model {

SamplingParams sampling_params(const proto::Sampling& sampling);
proto::TokenOut token_out(const Sampled& sampled);

kv::KvShape kv_shape(const ModelConfig& config);
// What a state of this prompt under this model belongs to.
kv::StateIdentity state_identity(const Model& model, std::span<const int32_t> token_ids);

// kInvalidArgument: unknown codec, profile, option or policy, theta out of (0, 1]; param names it.
Result<kv::PlanRequest> plan_request(const proto::CodecChoice& choice);
// The plan of a prompt of `tokens` tokens; the same on every node by construction.
Result<kv::StatePlan> plan_state(const Model& model, int64_t tokens,
                                 const proto::CodecChoice& choice);
// Hash over everything of a plan that both ends must agree on to exchange its records.
uint64_t plan_hash(const kv::StatePlan& plan);

// What a node of this model says of itself in HELLO; addresses, transports and capacity are the
// daemon's to add.
proto::Hello make_hello(std::string role, const Model& model);

}  // namespace akv::model
