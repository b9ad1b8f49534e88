#include "common/model/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "common/model/philox.h"

namespace akv::model {
namespace {

using Candidate = SamplerScratch::Candidate;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
// Below this a division by the temperature overflows before it changes the choice.
constexpr float kGreedyBelow = 1e-5f;

// The one order of tokens: higher logit first, ties to the lower id.
bool better(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

Status out_of_range(const char* param, double got, const char* takes) {
  std::string number = std::to_string(got);
  if (number.find('.') != std::string::npos) {
    number.erase(number.find_last_not_of('0') + 1);
    if (number.back() == '.') number.pop_back();
  }
  return make_error(Code::kInvalidArgument,
                    std::string(param) + " is " + number + ", but must be " + takes, param);
}

// Index of the weight in which uniform * total falls; weights of 0 are never picked.
size_t pick(std::span<const float> weights, double total, double uniform) {
  double left = uniform * total;
  size_t last = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0) continue;
    last = i;  // where rounding lets the sum fall short of total
    left -= weights[i];
    if (left < 0) break;
  }
  return last;
}

// False for NaN, too.
bool within(float x, float low, float high) { return x >= low && x <= high; }

Status validate_tokens(const SamplingParams& p, int32_t vocab_size) {
  const auto known = [&](int32_t id) { return id >= 0 && id < vocab_size; };
  if (p.logit_bias.size() > kMaxLogitBias) {
    return make_error(Code::kInvalidArgument,
                      "logit_bias has more than " + std::to_string(kMaxLogitBias) + " entries",
                      "logit_bias");
  }
  for (const auto& [id, bias] : p.logit_bias) {
    if (!known(id)) {
      return make_error(Code::kInvalidArgument,
                        "logit_bias names token " + std::to_string(id) +
                            ", but the vocabulary has " + std::to_string(vocab_size),
                        "logit_bias");
    }
    if (!within(bias, -100, 100)) return out_of_range("logit_bias", bias, "in [-100, 100]");
  }
  if (p.stop_token_ids.size() > kMaxStopTokenIds) {
    return make_error(
        Code::kInvalidArgument,
        "stop_token_ids has more than " + std::to_string(kMaxStopTokenIds) + " entries",
        "stop_token_ids");
  }
  for (const int32_t id : p.stop_token_ids) {
    if (!known(id)) return out_of_range("stop_token_ids", id, "token ids of the vocabulary");
  }
  return {};
}

}  // namespace

Status validate(const SamplingParams& p, int32_t vocab_size) {
  if (!within(p.temperature, 0, 100)) {
    return out_of_range("temperature", p.temperature, "in [0, 100]");
  }
  if (p.top_k < -1) return out_of_range("top_k", p.top_k, "positive, or 0 or -1 for all");
  if (!(p.top_p > 0 && p.top_p <= 1)) return out_of_range("top_p", p.top_p, "in (0, 1]");
  if (!within(p.min_p, 0, 1)) return out_of_range("min_p", p.min_p, "in [0, 1]");
  if (!(p.repetition_penalty > 0 && p.repetition_penalty <= 100)) {
    return out_of_range("repetition_penalty", p.repetition_penalty, "in (0, 100]");
  }
  if (!within(p.presence_penalty, -2, 2)) {
    return out_of_range("presence_penalty", p.presence_penalty, "in [-2, 2]");
  }
  if (!within(p.frequency_penalty, -2, 2)) {
    return out_of_range("frequency_penalty", p.frequency_penalty, "in [-2, 2]");
  }
  if (p.logprobs < -1 || p.logprobs > kMaxLogprobs) {
    return out_of_range("top_logprobs", p.logprobs, "in [0, 20]");
  }
  if (p.min_tokens < 0) return out_of_range("min_tokens", p.min_tokens, "0 or more");
  return validate_tokens(p, vocab_size);
}

SamplerState::SamplerState(const SamplingParams& params, std::span<const int32_t> prompt,
                           std::span<const int32_t> end_tokens)
    : counts_tokens_(params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
                     params.frequency_penalty != 0.0f),
      ignore_eos_(params.ignore_eos),
      min_tokens_(params.min_tokens),
      end_tokens_(end_tokens.begin(), end_tokens.end()),
      stop_token_ids_(params.stop_token_ids),
      all_ends_(end_tokens_) {
  all_ends_.insert(all_ends_.end(), stop_token_ids_.begin(), stop_token_ids_.end());
  if (params.repetition_penalty == 1.0f) return;
  for (const int32_t token : prompt) seen_[token].in_prompt = true;
}

void SamplerState::add(int32_t token) {
  ++generated_;
  if (counts_tokens_) ++seen_[token].in_output;
}

SamplerState::Stop SamplerState::stops_at(int32_t token) const {
  if (generated_ < min_tokens_) return Stop::kNone;
  const auto has = [token](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  if (has(stop_token_ids_)) return Stop::kStopTokenId;
  return !ignore_eos_ && has(end_tokens_) ? Stop::kEndToken : Stop::kNone;
}

std::span<const int32_t> SamplerState::forbidden() const {
  if (generated_ >= min_tokens_) return {};
  return all_ends_;
}

namespace {

// One draw: the steps of sample() over shared operands.
class Draw {
 public:
  Draw(std::span<float> logits, const SamplingParams& params, const SamplerState& state,
       SamplerScratch& scratch)
      : logits_(logits), params_(params), state_(state), scratch_(scratch) {
    scratch_.raw_of_changed.clear();
  }

  Result<Sampled> run(uint64_t position);

 private:
  bool all_finite() const;
  void take_logprobs(Sampled& out);
  void change(int32_t token, float value);
  void apply_bias();
  void apply_penalties();
  Candidate best() const;
  int32_t draw_from_all(const Candidate& top, double uniform);
  int32_t draw_truncated(const Candidate& top, double uniform);
  void keep_top_k();
  void keep_top_p(float top_logit);
  float weight(float logit, float top_logit) const {
    return std::exp((logit - top_logit) / params_.temperature);
  }
  float raw_logit(int32_t token) const;

  std::span<float> logits_;
  const SamplingParams& params_;
  const SamplerState& state_;
  SamplerScratch& scratch_;
  double log_total_ = 0;  // log of the sum of exp of the raw logits
};

bool Draw::all_finite() const {
  // x - x is 0 for finite x and NaN otherwise, so that the loop has no branches; several sums, so
  // that it does not wait for one.
  float poison[8] = {};
  const size_t whole = logits_.size() / 8 * 8;
  for (size_t i = 0; i < whole; i += 8) {
    for (size_t j = 0; j < 8; ++j) poison[j] += logits_[i + j] - logits_[i + j];
  }
  for (size_t i = whole; i < logits_.size(); ++i) poison[0] += logits_[i] - logits_[i];
  return std::all_of(std::begin(poison), std::end(poison), [](float p) { return p == 0; });
}

void Draw::take_logprobs(Sampled& out) {
  const float top = best().logit;
  double total = 0;
  for (const float x : logits_) total += std::exp(x - top);
  log_total_ = top + std::log(total);

  // A heap of the n best so far with the worst of them on top.
  const auto n = std::min(static_cast<size_t>(params_.logprobs), logits_.size());
  auto& heap = scratch_.candidates;
  heap.clear();
  for (size_t i = 0; i < logits_.size() && n > 0; ++i) {
    const Candidate c{logits_[i], static_cast<int32_t>(i)};
    if (heap.size() == n) {
      if (!better(c, heap.front())) continue;
      std::pop_heap(heap.begin(), heap.end(), better);
      heap.pop_back();
    }
    heap.push_back(c);
    std::push_heap(heap.begin(), heap.end(), better);
  }
  std::sort(heap.begin(), heap.end(), better);
  for (const Candidate& c : heap) {
    out.top.emplace_back(c.token, static_cast<float>(c.logit - log_total_));
  }
}

void Draw::change(int32_t token, float value) {
  scratch_.raw_of_changed.emplace_back(token, logits_[token]);
  logits_[token] = value;
}

float Draw::raw_logit(int32_t token) const {
  for (const auto& [changed, raw] : scratch_.raw_of_changed) {
    if (changed == token) return raw;  // the first entry is from before all changes
  }
  return logits_[token];
}

void Draw::apply_bias() {
  for (const auto& [token, bias] : params_.logit_bias) change(token, logits_[token] + bias);
  for (const int32_t token : state_.forbidden()) {
    if (static_cast<size_t>(token) < logits_.size()) change(token, kMinusInfinity);
  }
}

void Draw::apply_penalties() {
  const float repetition = params_.repetition_penalty;
  for (const auto& [token, seen] : state_.seen()) {
    if (static_cast<size_t>(token) >= logits_.size()) continue;  // negative ones, too
    float x = logits_[token];
    x = x > 0 ? x / repetition : x * repetition;
    if (seen.in_output > 0) {
      x -= params_.frequency_penalty * static_cast<float>(seen.in_output);
      x -= params_.presence_penalty;
    }
    change(token, x);
  }
}

Candidate Draw::best() const {
  // The maximum in eight lanes without branches, then the first place where it stands.
  float lanes[8];
  std::fill(std::begin(lanes), std::end(lanes), kMinusInfinity);
  const size_t whole = logits_.size() / 8 * 8;
  for (size_t i = 0; i < whole; i += 8) {
    for (size_t j = 0; j < 8; ++j) {
      lanes[j] = logits_[i + j] > lanes[j] ? logits_[i + j] : lanes[j];
    }
  }
  float top = *std::max_element(std::begin(lanes), std::end(lanes));
  for (size_t i = whole; i < logits_.size(); ++i) top = std::max(top, logits_[i]);
  if (top == kMinusInfinity) return {top, -1};
  const auto at = std::find(logits_.begin(), logits_.end(), top);
  return {top, static_cast<int32_t>(at - logits_.begin())};
}

// The whole distribution, in the order of ids: nothing to sort.
int32_t Draw::draw_from_all(const Candidate& top, double uniform) {
  auto& weights = scratch_.weights;
  weights.resize(logits_.size());
  double total = 0;
  for (size_t i = 0; i < logits_.size(); ++i) {
    weights[i] = weight(logits_[i], top.logit);
    total += weights[i];
  }
  return static_cast<int32_t>(pick(weights, total, uniform));
}

void Draw::keep_top_k() {
  auto& all = scratch_.candidates;
  if (params_.top_k <= 0 || static_cast<size_t>(params_.top_k) >= all.size()) return;
  std::nth_element(all.begin(), all.begin() + params_.top_k, all.end(), better);
  all.resize(static_cast<size_t>(params_.top_k));
  std::sort(all.begin(), all.end(), better);
}

// Sorts only as far down as the mass needs: blocks that double, each split off in linear time.
void Draw::keep_top_p(float top_logit) {
  auto& all = scratch_.candidates;
  auto& weights = scratch_.weights;
  weights.resize(all.size());
  double total = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    total += weights[i] = weight(all[i].logit, top_logit);
  }
  const double wanted = params_.top_p * total;
  // All candidates lighter than this together weigh less than what may be left out, so none of
  // them is needed; what remains to be sorted is short.
  const double negligible = (total - wanted) / static_cast<double>(all.size());
  size_t kept = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (weights[i] >= negligible) all[kept++] = all[i];
  }
  all.resize(kept);
  double mass = 0;
  size_t done = 0;
  for (size_t block = 64; done < all.size(); block *= 2) {
    const size_t end = std::min(all.size(), done + block);
    if (end < all.size()) {
      std::nth_element(all.begin() + done, all.begin() + end, all.end(), better);
    }
    std::sort(all.begin() + done, all.begin() + end, better);
    for (; done < end; ++done) {
      mass += weight(all[done].logit, top_logit);
      if (mass >= wanted) return all.resize(done + 1);
    }
  }
}

int32_t Draw::draw_truncated(const Candidate& top, double uniform) {
  auto& kept = scratch_.candidates;
  kept.clear();
  const float floor = params_.min_p > 0 ? top.logit + params_.temperature * std::log(params_.min_p)
                                        : kMinusInfinity;
  for (size_t i = 0; i < logits_.size(); ++i) {
    // The best stays even if min_p is 1 and rounding puts the floor above it.
    if (logits_[i] >= floor || static_cast<int32_t>(i) == top.token) {
      kept.push_back({logits_[i], static_cast<int32_t>(i)});
    }
  }
  keep_top_k();
  if (params_.top_p < 1) keep_top_p(top.logit);
  auto& weights = scratch_.weights;
  weights.resize(kept.size());
  double total = 0;
  for (size_t i = 0; i < kept.size(); ++i) {
    total += weights[i] = weight(kept[i].logit, top.logit);
  }
  return kept[pick(weights, total, uniform)].token;
}

Result<Sampled> Draw::run(uint64_t position) {
  if (logits_.empty() || !all_finite()) {
    return make_error(Code::kInternal, "the model's logits are not finite");
  }
  Sampled out;
  if (params_.logprobs >= 0) take_logprobs(out);
  apply_bias();
  apply_penalties();
  const Candidate top = best();
  if (top.token < 0) return make_error(Code::kInternal, "no token is left to draw");
  if (params_.temperature < kGreedyBelow) {
    out.token = top.token;
  } else {
    const double uniform = philox_uniform(params_.seed, position);
    const bool truncates = params_.top_k > 0 || params_.top_p < 1 || params_.min_p > 0;
    out.token = truncates ? draw_truncated(top, uniform) : draw_from_all(top, uniform);
  }
  if (params_.logprobs >= 0) {
    out.logprob = static_cast<float>(raw_logit(out.token) - log_total_);
  }
  return out;
}

}  // namespace

Result<Sampled> sample(std::span<float> logits, const SamplingParams& params,
                       const SamplerState& state, uint64_t position, SamplerScratch& scratch) {
  return Draw(logits, params, state, scratch).run(position);
}

}  // namespace akv::model
