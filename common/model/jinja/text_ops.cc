#include "common/model/jinja/text_ops.h"

#include <algorithm>

#include "common/base/utf8.h"

namespace akv::model::jinja {
namespace {

char to_upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; }
char to_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }
bool is_letter(char c) { return to_lower(c) >= 'a' && to_lower(c) <= 'z'; }

// Maps bytes one to one, so that the runs stay.
template <class F>
Text map_bytes(const Text& text, F f) {
  std::string bytes = text.bytes();
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = f(bytes[i], i);
  Text out;
  size_t begin = 0;
  for (const Text::Run run : text.runs()) {
    out.append(std::string_view(bytes).substr(begin, run.end - begin), run.literal);
    begin = run.end;
  }
  return out;
}

// The character that begins at byte `at`, with its length.
struct Character {
  char32_t code;
  size_t length;
};
Character character_at(std::string_view bytes, size_t at) {
  const Utf8Step step = utf8_step(bytes.substr(at));
  const auto length = static_cast<size_t>(step.length);
  if (step.state != Utf8State::kValid) return {0xFFFD, length};
  return {utf8_decode(bytes.substr(at, length)), length};
}

// Byte offset where the last character before `end` begins.
size_t previous(std::string_view bytes, size_t end) {
  size_t at = end - 1;
  while (at > 0 && end - at < 4 && (static_cast<uint8_t>(bytes[at]) & 0xC0) == 0x80) --at;
  return at + character_at(bytes, at).length == end ? at : end - 1;
}

}  // namespace

CharIndex::CharIndex(std::string_view bytes) {
  ascii_count_ = bytes.size();
  if (std::all_of(bytes.begin(), bytes.end(), [](char c) { return c >= 0; })) return;
  for (size_t at = 0; at < bytes.size(); at += character_at(bytes, at).length) {
    offsets_.push_back(at);
  }
  offsets_.push_back(bytes.size());
}

bool is_python_space(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

Text strip(const Text& text, Sides sides, const std::string_view* chars) {
  const std::string_view bytes = text.bytes();
  const auto goes = [&](size_t at, size_t length) {
    if (chars == nullptr) return is_python_space(character_at(bytes, at).code);
    return chars->find(bytes.substr(at, length)) != std::string_view::npos;
  };
  size_t begin = 0, end = bytes.size();
  while ((static_cast<int>(sides) & 1) != 0 && begin < end) {
    const size_t length = character_at(bytes, begin).length;
    if (!goes(begin, length)) break;
    begin += length;
  }
  while ((static_cast<int>(sides) & 2) != 0 && begin < end) {
    const size_t at = previous(bytes, end);
    if (!goes(at, end - at)) break;
    end = at;
  }
  return text.slice(begin, end);
}

std::vector<Text> split(const Text& text, const std::string_view* separator, int64_t max_splits) {
  std::vector<Text> parts;
  const std::string_view bytes = text.bytes();
  const auto may_split = [&] {
    return max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits;
  };
  size_t at = 0;
  if (separator != nullptr) {
    while (may_split()) {
      const size_t found = bytes.find(*separator, at);
      if (found == std::string_view::npos) break;
      parts.push_back(text.slice(at, found));
      at = found + separator->size();
    }
    parts.push_back(text.slice(at, bytes.size()));
    return parts;
  }
  const auto skip = [&](bool spaces) {
    while (at < bytes.size()) {
      const Character c = character_at(bytes, at);
      if (is_python_space(c.code) != spaces) break;
      at += c.length;
    }
  };
  for (skip(true); at < bytes.size(); skip(true)) {
    const size_t begin = at;
    if (!may_split()) {
      parts.push_back(text.slice(begin, bytes.size()));
      break;
    }
    skip(false);
    parts.push_back(text.slice(begin, at));
  }
  return parts;
}

std::vector<Text> split_lines(const Text& text) {
  std::vector<Text> lines;
  const std::string_view bytes = text.bytes();
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const Character c = character_at(bytes, at);
    const bool breaks = (c.code >= 0xA && c.code <= 0xD) || (c.code >= 0x1C && c.code <= 0x1E) ||
                        c.code == 0x85 || c.code == 0x2028 || c.code == 0x2029;
    size_t next = at + c.length;
    if (breaks) {
      lines.push_back(text.slice(begin, at));
      if (c.code == '\r' && next < bytes.size() && bytes[next] == '\n') ++next;
      begin = next;
    }
    at = next;
  }
  if (begin < bytes.size()) lines.push_back(text.slice(begin, bytes.size()));
  return lines;
}

Text replace(const Text& text, std::string_view old, const Text& fresh, int64_t count) {
  const std::string_view bytes = text.bytes();
  Text out;
  size_t at = 0;
  for (int64_t n = 0; count < 0 || n < count; ++n) {
    if (old.empty()) {  // between all characters and at both ends
      out.append(fresh);
      if (at == bytes.size()) return out;
      const size_t length = character_at(bytes, at).length;
      out.append(text.slice(at, at + length));
      at += length;
      continue;
    }
    const size_t found = bytes.find(old, at);
    if (found == std::string_view::npos) break;
    out.append(text.slice(at, found));
    out.append(fresh);
    at = found + old.size();
  }
  out.append(text.slice(at, bytes.size()));
  return out;
}

Text upper(const Text& text) {
  return map_bytes(text, [](char c, size_t) { return to_upper(c); });
}

Text lower(const Text& text) {
  return map_bytes(text, [](char c, size_t) { return to_lower(c); });
}

Text capitalize(const Text& text) {
  return map_bytes(text, [](char c, size_t i) { return i == 0 ? to_upper(c) : to_lower(c); });
}

Text title(const Text& text) {
  bool in_word = false;
  return map_bytes(text, [&](char c, size_t) {
    const char mapped = in_word ? to_lower(c) : to_upper(c);
    in_word = is_letter(c) || c < 0;  // bytes beyond ASCII count as letters
    return mapped;
  });
}

Text title_words(const Text& text) {
  bool in_word = false;
  return map_bytes(text, [&](char c, size_t) {
    const char mapped = in_word ? to_lower(c) : to_upper(c);
    in_word = std::string_view("-({[< \t\n\v\f\r").find(c) == std::string_view::npos;
    return mapped;
  });
}

}  // namespace akv::model::jinja
