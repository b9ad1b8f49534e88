// The real vocabulary: the golden ids, from the model file that the quickstart uses.
#include <filesystem>

#include "common/model/gguf.h"
#include "common/model/vocab_loader.h"
#include "tests/model/text_fixture.h"

namespace akv::model {
namespace {

TEST(ModelText, GoldenIds) {
  if (!std::filesystem::exists(AKV_MODEL_PATH)) GTEST_SKIP() << "no model at " << AKV_MODEL_PATH;
  auto file = GgufFile::open(AKV_MODEL_PATH);
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto vocab = load_vocab(**file, 49152);
  ASSERT_TRUE(vocab.ok()) << vocab.error().message;
  const Tokenizer tokenizer = make_tokenizer(*vocab);
  for (const auto& c : read_golden("model/tokenizer.json")) {
    const std::string text = c["text"];
    const auto ids = tokenizer.encode(text, false, true);
    EXPECT_EQ(ids, c["ids"].get<std::vector<int32_t>>()) << c["text"];
    EXPECT_EQ(tokenizer.decode(ids, false), text);
  }
  EXPECT_EQ(tokenizer.end_tokens(), (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(tokenizer.eot(), 2);
}

}  // namespace
}  // namespace akv::model
