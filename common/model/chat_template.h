// Chat messages to the text that the model was trained on, by the model's own Jinja template.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/model/jinja/value.h"
#include "common/model/tokenizer.h"

namespace akv::model {

struct ChatMessage {
  std::string role;
  std::string content;
  // Further keys of the message (name, tool_calls, ...) as the template sees them; a dict or
  // undefined. Make it with jinja::value_from_json.
  jinja::Value extra;
};

// A stretch of rendered text of one origin. Only literal ones, which the template's author wrote,
// may spell control tokens.
struct Segment {
  std::string text;
  bool literal = false;
};

struct ChatTemplateLimits {
  int64_t max_steps = 1'000'000;       // statements and expression nodes evaluated in one rendering
  size_t max_output_bytes = 64 << 20;  // of one rendering, and of each value on the way to it
  int max_depth = 64;                  // nesting of blocks, expressions and macro calls
};

// Immutable after parse(); render() may be called from any thread at once.
class ChatTemplate {
 public:
  // Errors: kUnsupported for Jinja that this subset lacks, kInvalidArgument for bad syntax; the
  // message names the construct and the line.
  static Result<ChatTemplate> parse(std::string_view source, ChatTemplateLimits limits = {});
  // A template that comes with the program: "chatml", "llama3" or "zephyr". kNotFound otherwise.
  static Result<ChatTemplate> builtin(std::string_view name);
  static std::vector<std::string_view> builtin_names();

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  struct Inputs {
    std::span<const ChatMessage> messages;
    bool add_generation_prompt = true;
    // Literal texts, from the vocabulary: the pieces of BOS and EOS, or empty.
    std::string_view bos_token;
    std::string_view eos_token;
    // chat_template_kwargs, tools, documents, ...: a dict whose keys become variables, or
    // undefined. Must not name messages, add_generation_prompt, bos_token or eos_token.
    jinja::Value extra;
    int64_t now_unix_s = 0;  // for strftime_now (UTC)
  };
  // Neighbouring segments differ in origin; none is empty. Contents and all strings of `extra` are
  // not literal; a role is literal only if it is one of the usual words (system, user, assistant,
  // tool, developer, function, ipython), for templates that spell tokens with it.
  // Errors: kInvalidArgument with the template's own words for raise_exception or a message for a
  // wrong type or name; kResourceExhausted if a limit is hit.
  Result<std::vector<Segment>> render(const Inputs& inputs) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

// Token ids of a rendered chat: each segment is tokenised apart, control tokens are recognised in
// literal ones only. BOS is put in front where the model wants it and the template did not.
std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, std::span<const Segment> segments);

}  // namespace akv::model
