#include "common/log/format.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <ctime>
#include <iterator>

namespace akv::log_format {
namespace {

// Length of the well-formed UTF-8 sequence at the front of text, or 0.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const auto tail = [&](size_t i) { return i < text.size() && (byte(i) & 0xc0) == 0x80; };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return tail(1) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    if (!tail(1) || !tail(2)) return 0;
    const bool overlong = lead == 0xe0 && byte(1) < 0xa0;
    const bool surrogate = lead == 0xed && byte(1) >= 0xa0;
    return overlong || surrogate ? 0 : 3;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    if (!tail(1) || !tail(2) || !tail(3)) return 0;
    const bool out_of_range = (lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) >= 0x90);
    return out_of_range ? 0 : 4;
  }
  return 0;
}

void append_escaped(std::string& out, char c) {
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      if (static_cast<uint8_t>(c) < 0x20 || c == 0x7f) {
        fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<uint8_t>(c));
      } else {
        out += c;
      }
  }
}

bool is_plain_word(std::string_view text) {
  if (text.empty() || text.size() > Logger::kMaxValueBytes) return false;
  for (const char c : text) {
    if (static_cast<uint8_t>(c) <= 0x20 || static_cast<uint8_t>(c) >= 0x7f || c == '"' ||
        c == '=' || c == '\\') {
      return false;
    }
  }
  return true;
}

struct AppendValue {
  std::string& out;
  LogFormat format;

  void operator()(std::string_view v) const {
    if (format == LogFormat::kText && is_plain_word(v)) {
      out += v;
    } else {
      append_json_string(out, v, Logger::kMaxValueBytes);
    }
  }
  void operator()(int64_t v) const { fmt::format_to(std::back_inserter(out), "{}", v); }
  void operator()(uint64_t v) const { fmt::format_to(std::back_inserter(out), "{}", v); }
  // JSON has no NaN or infinity: null says that there was no number.
  void operator()(double v) const {
    if (std::isfinite(v)) {
      fmt::format_to(std::back_inserter(out), "{:.6g}", v);
    } else {
      out += "null";
    }
  }
  void operator()(bool v) const { out += v ? "true" : "false"; }
};

}  // namespace

void append_json_string(std::string& out, std::string_view text, size_t max_bytes) {
  const bool cut = text.size() > max_bytes;
  if (cut) text = text.substr(0, max_bytes);
  out += '"';
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0) {
      // A character that the cut went through is not an error of the text.
      if (!(cut && text.size() < 4)) out += "\xef\xbf\xbd";
      text.remove_prefix(1);
    } else if (length == 1) {
      append_escaped(out, text[0]);
      text.remove_prefix(1);
    } else {
      out += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  if (cut) out += "\xe2\x80\xa6";
  out += '"';
}

void append_field(std::string& out, const LogField& field, LogFormat format) {
  if (format == LogFormat::kJson) {
    out += ',';
    append_json_string(out, field.key, Logger::kMaxValueBytes);
    out += ':';
  } else {
    out += ' ';
    out += field.key;
    out += '=';
  }
  std::visit(AppendValue{out, format}, field.value);
}

void append_timestamp(std::string& out) {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  fmt::format_to(std::back_inserter(out), "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
                 utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min,
                 utc.tm_sec, ms);
}

}  // namespace akv::log_format
