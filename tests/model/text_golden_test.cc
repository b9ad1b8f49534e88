// The real vocabulary and chat template: the golden ids, from the model file of the quickstart.
#include <filesystem>

#include "common/model/chat_template.h"
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

  const auto chat = ChatTemplate::parse(vocab->chat_template);
  ASSERT_TRUE(chat.ok()) << chat.error().message;
  for (const auto& c : read_golden("model/chat.json")) {
    std::vector<ChatMessage> messages;
    for (const auto& m : c["messages"]) messages.push_back({m["role"], m["content"], {}});
    ChatTemplate::Inputs inputs;
    inputs.messages = messages;
    const auto segments = chat->render(inputs);
    ASSERT_TRUE(segments.ok()) << segments.error().message;
    std::string rendered;
    for (const Segment& s : *segments) rendered += s.text;
    EXPECT_EQ(rendered, c["rendered"].get<std::string>());
    EXPECT_EQ(encode_chat(tokenizer, *segments), c["ids"].get<std::vector<int32_t>>());
  }
}

}  // namespace
}  // namespace akv::model
