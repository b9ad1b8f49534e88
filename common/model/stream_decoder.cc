#include "common/model/stream_decoder.h"

#include <cstring>

#include "common/base/utf8.h"

namespace akv::model {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

void Utf8Assembler::push(std::string_view bytes, std::string& out) {
  std::string joined;
  if (size_ > 0) {
    joined.assign(held_, static_cast<size_t>(size_));
    joined += bytes;
    bytes = joined;
    size_ = 0;
  }
  while (!bytes.empty()) {
    const Utf8Step step = utf8_step(bytes);
    if (step.state == Utf8State::kIncomplete) {
      size_ = step.length;
      std::memcpy(held_, bytes.data(), bytes.size());
      return;
    }
    out += step.state == Utf8State::kValid ? bytes.substr(0, step.length) : kReplacement;
    bytes.remove_prefix(step.length);
  }
}

void Utf8Assembler::finish(std::string& out) {
  if (size_ > 0) out += kReplacement;
  size_ = 0;
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(&tokenizer), skip_special_(skip_special) {}

std::string StreamDecoder::push(int32_t token) {
  std::string out;
  if (!skip_special_ || !tokenizer_->is_control(token)) {
    assembler_.push(tokenizer_->piece(token), out);
  }
  return out;
}

std::string StreamDecoder::finish() {
  std::string out;
  assembler_.finish(out);
  return out;
}

}  // namespace akv::model
