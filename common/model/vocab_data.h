// The vocabulary as a model file states it, before it is checked. Filled by the GGUF reader,
// consumed by Tokenizer::create; nothing here is trusted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace akv::model {

// tokenizer.ggml.token_type. Other numbers are refused by Tokenizer::create.
enum class TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct VocabData {
  std::string model;                // tokenizer.ggml.model: "gpt2" is byte-level BPE
  std::string pre;                  // tokenizer.ggml.pre: which pre-tokenizer; empty where absent
  std::vector<std::string> pieces;  // [vocab] as stored (normal pieces in GPT-2's byte alphabet)
  std::vector<float> scores;        // [vocab] or empty; byte-level BPE does not use them
  std::vector<int32_t> types;       // [vocab] or empty (then all are normal)
  std::vector<std::string> merges;  // "left right", best first

  // Ids of special tokens, -1 where the file names none.
  int32_t bos = -1;
  int32_t eos = -1;
  int32_t eot = -1;  // end of turn
  int32_t eom = -1;  // end of message (tool calls)
  int32_t unk = -1;
  int32_t pad = -1;

  // add_bos_token / add_eos_token; absent: what the pre-tokenizer's family does.
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;

  std::string chat_template;  // Jinja source, empty where the file has none
};

}  // namespace akv::model
