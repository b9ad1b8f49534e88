// Tokens of one choice to the text and log-probabilities that its client gets.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/model/stop_matcher.h"
#include "common/model/stream_decoder.h"
#include "proto/api.h"
#include "proto/sampling.h"

namespace akv::decode::api {

struct TextOptions {
  std::vector<std::string> stop;
  bool include_stop = false;
  bool skip_special = true;
  int32_t min_tokens = 0;  // no stop string ends the text before
  bool logprobs = false;
  bool token_ids = false;
};

// Holds back incomplete characters and what could become a stop string; logprobs and ids wait with
// the text that they belong to. Not thread-safe. REQUIRES: the tokenizer outlives it.
class TextAssembler {
 public:
  TextAssembler(const model::Tokenizer& tokenizer, TextOptions options);

  // What may be sent now. `text` is valid UTF-8.
  struct Piece {
    std::string text;
    std::vector<proto::LogprobEntry> logprobs;
    std::vector<int64_t> text_offsets;
    std::vector<int32_t> token_ids;
    // No text; there may be tokens of which the text is still held back.
    bool empty() const { return text.empty(); }
  };
  // Takes tokens up to the one that completes a stop string; the rest is dropped.
  Piece push(std::span<const proto::TokenOut> tokens);
  // The end of the output: everything that was held back.
  Piece finish();

  bool stopped() const { return stopped_; }
  // Tokens taken so far.
  int64_t tokens() const { return tokens_; }

 private:
  void note(const proto::TokenOut& token);
  Piece take(std::string text);

  const model::Tokenizer& tokenizer_;
  const TextOptions options_;
  model::StreamDecoder decoder_;
  std::optional<model::StopMatcher> matcher_;  // only where there are stop strings
  Piece pending_;
  int64_t tokens_ = 0;
  int64_t characters_ = 0;
  bool stopped_ = false;
};

}  // namespace akv::decode::api
