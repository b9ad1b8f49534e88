#include "common/model/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "common/base/check.h"
#include "common/base/utf8.h"

namespace akv::model {
namespace {

// Unicode White_Space, written out: PCRE2's own \s under UCP also has U+180E, which is none.
#define AKV_SPACE                                                                             \
  R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f})" \
  R"(\x{3000})"
#define AKV_TRAILING_SPACE "[" AKV_SPACE "]+(?![^" AKV_SPACE "])|[" AKV_SPACE "]+"
// Llama 3 and Qwen 2 differ only in how many digits go together.
#define AKV_LLAMA_LIKE(NUMBER)                                                         \
  R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)" NUMBER "| ?[^" AKV_SPACE \
  R"(\p{L}\p{N}]+[\r\n]*|[)" AKV_SPACE R"(]*[\r\n]+|)" AKV_TRAILING_SPACE

constexpr char kGpt2[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^)" AKV_SPACE
                         R"(\p{L}\p{N}]+|)" AKV_TRAILING_SPACE;
constexpr char kSingleNumber[] = R"(\p{N})";
constexpr char kLlamaBpe[] = AKV_LLAMA_LIKE(R"(\p{N}{1,3})");
constexpr char kQwen2[] = AKV_LLAMA_LIKE(R"(\p{N})");

struct Family {
  const char* name;
  std::vector<const char*> aliases;
  std::vector<const char*> patterns;  // applied in sequence, each to the pieces of the one before
  bool ignore_merges;
  bool adds_bos;
};

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {"gpt-2", {"gpt2"}, {kGpt2}, false, false},
      {"smollm", {}, {kSingleNumber, kGpt2}, false, false},
      {"llama-bpe", {"llama3", "llama-v3"}, {kLlamaBpe}, true, true},
      {"qwen2", {"deepseek-r1-qwen"}, {kQwen2}, false, false},
  };
  return all;
}

const Family* find_family(std::string_view pre) {
  for (const Family& f : families()) {
    if (pre == f.name) return &f;
    for (const char* alias : f.aliases) {
      if (pre == alias) return &f;
    }
  }
  return nullptr;
}

struct CodeFree {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
};
struct MatchDataFree {
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
};
struct MatchContextFree {
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
};
struct JitStackFree {
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};
using Code2 = std::unique_ptr<pcre2_code, CodeFree>;

Code2 compile(const char* pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code2 code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED,
                           PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
  AKV_CHECK(code != nullptr);  // the patterns are our own
  // Without JIT support in the library the interpreter gives the same matches, slower.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

// What one thread needs to run a pattern.
class Matcher {
 public:
  explicit Matcher(const pcre2_code* code)
      : code_(code),
        data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)) {
    AKV_CHECK(data_ != nullptr && context_ != nullptr);
    // The interpreter's guard against slow patterns counts steps; ours are linear, texts are long.
    pcre2_set_match_limit(context_.get(), UINT32_MAX);
  }

  // Finds the next match at or after `from`; {size, size} if there is none.
  std::pair<size_t, size_t> next(std::string_view text, size_t from) {
    int rc = run(text, from, PCRE2_NO_UTF_CHECK);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && stack_ == nullptr) {
      stack_.reset(pcre2_jit_stack_create(32 << 10, 4 << 20, nullptr));
      pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
      rc = run(text, from, PCRE2_NO_UTF_CHECK);
    }
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = run(text, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT);
    // No match, or (never seen) out of memory: the rest is one piece, no byte is lost.
    if (rc < 0) return {text.size(), text.size()};
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data_.get());
    return {range[0], range[1]};
  }

 private:
  int run(std::string_view text, size_t from, uint32_t options) {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, options,
                       data_.get(), context_.get());
  }

  const pcre2_code* code_;
  std::unique_ptr<pcre2_match_data, MatchDataFree> data_;
  std::unique_ptr<pcre2_match_context, MatchContextFree> context_;
  std::unique_ptr<pcre2_jit_stack, JitStackFree> stack_;
};

// A copy of `text` of the same length in which every byte that is not UTF-8 is U+0001, a character
// that is neither letter, number nor space: the patterns see valid text, offsets stay.
std::string mask_invalid(std::string_view text) {
  std::string masked(text);
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = utf8_step(text.substr(i));
    if (step.state != Utf8State::kValid) masked.replace(i, step.length, step.length, '\x01');
    i += step.length;
  }
  return masked;
}

// Cuts text[begin, end) by one pattern; what it does not match becomes pieces, too.
void split_range(Matcher& matcher, std::string_view text, size_t begin, size_t end,
                 std::vector<size_t>& ends) {
  const std::string_view piece = text.substr(begin, end - begin);
  for (size_t at = 0; at < piece.size();) {
    const auto [from, to] = matcher.next(piece, at);
    if (from > at) ends.push_back(begin + from);
    if (to > from) ends.push_back(begin + to);
    AKV_CHECK(to > at);
    at = to;
  }
}

}  // namespace

struct Pretokenizer::Impl {
  const Family* family;
  std::vector<Code2> codes;
};

Pretokenizer::Pretokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Pretokenizer::Pretokenizer(Pretokenizer&&) noexcept = default;
Pretokenizer& Pretokenizer::operator=(Pretokenizer&&) noexcept = default;
Pretokenizer::~Pretokenizer() = default;

bool Pretokenizer::ignore_merges() const { return impl_->family->ignore_merges; }
bool Pretokenizer::adds_bos_by_default() const { return impl_->family->adds_bos; }
std::string_view Pretokenizer::family() const { return impl_->family->name; }

Result<Pretokenizer> Pretokenizer::create(std::string_view pre) {
  const Family* family = find_family(pre);
  if (family == nullptr) {
    std::string message = "unknown pre-tokenizer \"" + std::string(pre) + "\"; implemented are";
    for (const Family& f : families()) message += std::string(" ") + f.name;
    return make_error(Code::kUnsupported, std::move(message), "tokenizer.ggml.pre");
  }
  auto impl = std::make_unique<Impl>();
  impl->family = family;
  for (const char* pattern : family->patterns) impl->codes.push_back(compile(pattern));
  return Pretokenizer(std::move(impl));
}

void Pretokenizer::split(std::string_view text, std::vector<size_t>& ends) const {
  if (text.empty()) return;
  const std::string masked = mask_invalid(text);
  std::vector<size_t> coarse;
  std::vector<size_t> fine = {masked.size()};
  for (const Code2& code : impl_->codes) {
    Matcher matcher(code.get());
    coarse.swap(fine);
    fine.clear();
    size_t begin = 0;
    for (const size_t end : coarse) {
      split_range(matcher, masked, begin, end, fine);
      begin = end;
    }
  }
  ends.insert(ends.end(), fine.begin(), fine.end());
}

}  // namespace akv::model
