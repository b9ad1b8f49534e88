#include "decode_node/api/text_assembler.h"

#include <algorithm>
#include <utility>

namespace akv::decode::api {
namespace {

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

}  // namespace

TextAssembler::TextAssembler(const model::Tokenizer& tokenizer, TextOptions options)
    : tokenizer_(tokenizer),
      options_(std::move(options)),
      decoder_(tokenizer, options_.skip_special) {
  if (!options_.stop.empty()) matcher_.emplace(options_.stop, options_.include_stop);
}

TextAssembler::Piece TextAssembler::push(std::span<const proto::TokenOut> tokens) {
  std::string text;
  for (const proto::TokenOut& token : tokens) {
    if (stopped_) break;
    ++tokens_;
    note(token);
    std::string decoded = decoder_.push(token.id);
    characters_ += count_characters(decoded);
    if (!matcher_) {
      text += decoded;
      continue;
    }
    model::StopMatcher::Step step = matcher_->push(decoded, tokens_ >= options_.min_tokens);
    text += step.text;
    stopped_ = step.stopped;
  }
  return take(std::move(text));
}

TextAssembler::Piece TextAssembler::finish() {
  std::string text;
  if (!stopped_) {
    const std::string rest = decoder_.finish();
    if (matcher_) {
      model::StopMatcher::Step step = matcher_->push(rest, tokens_ >= options_.min_tokens);
      text = std::move(step.text);
      stopped_ = step.stopped;
      if (!stopped_) text += matcher_->finish();
    } else {
      text = rest;
    }
  }
  Piece piece = std::exchange(pending_, {});
  piece.text += text;
  return piece;
}

void TextAssembler::note(const proto::TokenOut& token) {
  if (options_.token_ids) pending_.token_ids.push_back(token.id);
  if (!options_.logprobs) return;
  proto::LogprobEntry entry;
  entry.bytes = tokenizer_.piece(token.id);
  entry.logprob = token.logprob;
  for (const auto& [id, logprob] : token.top)
    entry.top.push_back({std::string(tokenizer_.piece(id)), logprob});
  pending_.logprobs.push_back(std::move(entry));
  pending_.text_offsets.push_back(characters_);
}

TextAssembler::Piece TextAssembler::take(std::string text) {
  if (text.empty()) return {};
  Piece piece = std::exchange(pending_, {});
  piece.text = std::move(text);
  return piece;
}

}  // namespace akv::decode::api
