#include "common/kv/options.h"

#include <charconv>
#include <cmath>
#include <optional>
#include <span>

namespace akv::kv {
namespace {

// One named value of an option that is an enumeration.
struct Choice {
  std::string_view name;
  uint8_t value;
};

constexpr Choice kLayouts[] = {{"paper", 0}, {"compact", 1}};
constexpr Choice kCoefficients[] = {{"bf16", 0}, {"log8", 1}};
constexpr Choice kScales[] = {{"absmax", 0}, {"lsq", 1}};
constexpr Choice kScaleTypes[] = {{"fp32", 0}, {"bf16", 1}};
constexpr Choice kDomains[] = {{"pre", 0}, {"post", 1}};
constexpr Choice kRankings[] = {{"eq6", 0}, {"pooled", 1}};
constexpr Choice kWidths[] = {{"2", 0}, {"2+4", 1}};
constexpr Choice kAnchorRules[] = {{"paper", 0}, {"pooled", 1}};

// An enumerated option: its name, its values and where it is kept.
struct EnumOption {
  std::string_view key;
  std::span<const Choice> choices;
  uint8_t (*get)(const CodecOptions&);
  void (*set)(CodecOptions&, uint8_t);
};

template <auto Member>
constexpr EnumOption enum_option(std::string_view key, std::span<const Choice> choices) {
  return {key, choices,
          [](const CodecOptions& o) -> uint8_t { return static_cast<uint8_t>(o.*Member); },
          [](CodecOptions& o, uint8_t v) {
            o.*Member = static_cast<std::remove_reference_t<decltype(o.*Member)>>(v);
          }};
}

constexpr EnumOption kEnumOptions[] = {
    enum_option<&CodecOptions::layout>("layout", kLayouts),
    enum_option<&CodecOptions::coefficient>("coefficient", kCoefficients),
    enum_option<&CodecOptions::scale>("scale", kScales),
    enum_option<&CodecOptions::scale_type>("scale_type", kScaleTypes),
    enum_option<&CodecOptions::domain>("domain", kDomains),
    enum_option<&CodecOptions::ranking>("ranking", kRankings),
    enum_option<&CodecOptions::widths>("widths", kWidths),
    enum_option<&CodecOptions::anchors>("k", kAnchorRules),
};

std::string takes(const EnumOption& option) {
  std::string text;
  for (const Choice& c : option.choices) {
    if (!text.empty()) text += "|";
    text += c.name;
  }
  return text;
}

Error bad_value(std::string_view key, std::string_view value, const std::string& expected) {
  return make_error(
      Code::kInvalidArgument,
      "codec option " + std::string(key) + " got \"" + std::string(value) + "\", takes " + expected,
      std::string(key));
}

template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Status set_int(int& field, std::string_view key, std::string_view value, int low, int high,
               bool odd) {
  const auto number = parse_number<int>(value);
  if (!number || *number < low || *number > high || (odd && *number % 2 == 0)) {
    return bad_value(key, value,
                     std::string(odd ? "an odd number " : "a number ") + std::to_string(low) +
                         ".." + std::to_string(high));
  }
  field = *number;
  return {};
}

int differing(const CodecOptions& a, const CodecOptions& b) {
  int n = 0;
  for (const EnumOption& option : kEnumOptions) n += option.get(a) != option.get(b);
  return n;
}

}  // namespace

CodecOptions paper_options() {
  CodecOptions o;
  o.layout = Layout::kPaper;
  o.coefficient = Coefficient::kBf16;
  o.scale = ScaleRule::kAbsmax;
  o.scale_type = ScaleType::kF32;
  o.domain = KeyDomain::kPre;
  o.ranking = Ranking::kEq6;
  o.widths = Widths::k2;
  o.anchors = AnchorRule::kPaper;
  return o;
}

CodecOptions pooled_options() { return CodecOptions{}; }

Result<CodecOptions> profile_options(std::string_view profile) {
  if (profile == "paper") return paper_options();
  if (profile == "pooled") return pooled_options();
  return make_error(Code::kInvalidArgument,
                    "profile got \"" + std::string(profile) + "\", takes paper|pooled", "profile");
}

Status set_option(CodecOptions& options, std::string_view key, std::string_view value) {
  for (const EnumOption& option : kEnumOptions) {
    if (option.key != key) continue;
    for (const Choice& c : option.choices) {
      if (c.name != value) continue;
      option.set(options, c.value);
      return {};
    }
    return bad_value(key, value, takes(option));
  }
  if (key == "window") return set_int(options.window, key, value, 1, 1024, false);
  if (key == "kernel") return set_int(options.kernel, key, value, 1, 255, true);
  if (key == "pool") return set_int(options.pool, key, value, 1, 255, true);
  if (key == "rho") {
    const auto number = parse_number<double>(value);
    if (!number || !(*number >= 0 && *number <= 1)) return bad_value(key, value, "0..1");
    options.rho_percent = static_cast<int>(std::lround(*number * 100));
    return {};
  }
  if (key == "seed") {
    const auto number = parse_number<uint64_t>(value);
    if (!number) return bad_value(key, value, "an unsigned number");
    options.seed = *number;
    return {};
  }
  return make_error(Code::kInvalidArgument,
                    "codec option \"" + std::string(key) +
                        "\" is unknown; takes layout, coefficient, scale, scale_type, domain, "
                        "ranking, widths, k, window, rho, kernel, pool, seed",
                    std::string(key));
}

Status validate(const CodecOptions& o) {
  for (const EnumOption& option : kEnumOptions) {
    if (option.get(o) >= option.choices.size()) {
      return bad_value(option.key, std::to_string(option.get(o)), takes(option));
    }
  }
  const auto odd_in = [](int x) { return x >= 1 && x <= 255 && x % 2 == 1; };
  if (o.window < 1 || o.window > 1024) {
    return bad_value("window", std::to_string(o.window), "1..1024");
  }
  if (o.rho_percent < 0 || o.rho_percent > 100) {
    return bad_value("rho", std::to_string(o.rho_percent) + "%", "0..100%");
  }
  if (!odd_in(o.kernel)) return bad_value("kernel", std::to_string(o.kernel), "odd 1..255");
  if (!odd_in(o.pool)) return bad_value("pool", std::to_string(o.pool), "odd 1..255");
  return {};
}

std::string describe(const CodecOptions& options) {
  const CodecOptions paper = paper_options();
  const CodecOptions pooled = pooled_options();
  const bool is_paper = differing(options, paper) < differing(options, pooled);
  const CodecOptions& base = is_paper ? paper : pooled;
  std::string text = is_paper ? "paper" : "pooled";
  const auto add = [&](std::string_view key, const std::string& value) {
    text.append("+").append(key).append("=").append(value);
  };
  for (const EnumOption& option : kEnumOptions) {
    const uint8_t value = option.get(options);
    if (value == option.get(base)) continue;
    add(option.key, std::string(option.choices[value].name));
  }
  if (options.window != base.window) add("window", std::to_string(options.window));
  if (options.rho_percent != base.rho_percent) {
    const std::string tens = (options.rho_percent % 100 < 10 ? "0" : "");
    add("rho",
        options.rho_percent == 100 ? "1" : "0." + tens + std::to_string(options.rho_percent));
  }
  if (options.kernel != base.kernel) add("kernel", std::to_string(options.kernel));
  if (options.pool != base.pool) add("pool", std::to_string(options.pool));
  if (options.seed != base.seed) add("seed", std::to_string(options.seed));
  return text;
}

}  // namespace akv::kv
