// What the tokenizer tests share: recorded vectors and the small vocabularies that made them.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "common/model/tokenizer.h"

namespace akv::model {

inline nlohmann::json read_golden(const std::string& name) {
  std::ifstream in(std::string(AKV_GOLDEN_DIR) + "/" + name);
  EXPECT_TRUE(in.good()) << name;
  return nlohmann::json::parse(in);
}

inline VocabData vocab_of(const nlohmann::json& golden) {
  VocabData vocab;
  vocab.model = "gpt2";
  vocab.pre = golden["pre"];
  vocab.pieces = golden["pieces"];
  vocab.types = golden["types"].get<std::vector<int32_t>>();
  vocab.merges = golden["merges"];
  vocab.add_bos = false;
  return vocab;
}

// The small vocabulary of one family; all 256 bytes, some 500 merges, the special tokens
// <|begin|> <|im_end|> <|im_end|>> <|im_end <think> and the user-defined [tool] and two tabs.
inline VocabData small_vocab(const std::string& family) {
  return vocab_of(read_golden("tokenizer/" + family + ".json"));
}

inline Tokenizer make_tokenizer(const VocabData& vocab) {
  auto tokenizer = Tokenizer::create(vocab);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return std::move(tokenizer).value();
}

}  // namespace akv::model
