#include "common/config/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/base/check.h"

namespace akv {
namespace {

// A setter's error without words of its own: the item's "takes" says it all.
Error refused() { return make_error(Code::kInvalidArgument, ""); }

bool is_valid_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
}

template <class N>
std::optional<N> parse_number(std::string_view text) {
  N value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<bool> parse_bool(std::string_view text) {
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  return std::nullopt;
}

std::vector<std::string_view> split_commas(std::string_view text) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    if (comma > 0) parts.push_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return parts;
}

std::string join(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : ",") + part;
  return out;
}

// A bound as a person would write it: 65536 rather than 6.5e+04.
std::string bound_text(double bound) {
  const bool whole = bound == std::floor(bound) && std::abs(bound) < 1e15;
  return whole ? fmt::format("{}", static_cast<int64_t>(bound)) : fmt::format("{}", bound);
}

// Byte counts of whole units get their suffix back.
std::string bytes_text(uint64_t bytes) {
  for (const auto& [shift, suffix] : {std::pair{30, "G"}, {20, "M"}, {10, "K"}}) {
    if (bytes != 0 && bytes % (uint64_t{1} << shift) == 0) {
      return fmt::format("{}{}", bytes >> shift, suffix);
    }
  }
  return fmt::format("{}", bytes);
}

// Edits between two words, for "did you mean".
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replace});
    }
  }
  return row[b.size()];
}

}  // namespace

// An item, or a section heading where item is null.
struct Schema::Entry {
  std::string heading;
  std::unique_ptr<ConfigItem> item;
};

ConfigItem& ConfigItem::doc(std::string text) {
  doc_ = std::move(text);
  return *this;
}
ConfigItem& ConfigItem::unit(std::string text) {
  unit_ = std::move(text);
  return *this;
}
ConfigItem& ConfigItem::default_note(std::string text) {
  default_note_ = std::move(text);
  return *this;
}
ConfigItem& ConfigItem::range(double low, double high) {
  has_range_ = true;
  low_ = low;
  high_ = high;
  return *this;
}
ConfigItem& ConfigItem::required() {
  required_ = true;
  return *this;
}
ConfigItem& ConfigItem::reloadable() {
  reloadable_ = true;
  return *this;
}

Schema::Schema() = default;
Schema::~Schema() = default;
Schema::Schema(Schema&&) noexcept = default;
Schema& Schema::operator=(Schema&&) noexcept = default;

void Schema::section(std::string title) { entries_.push_back(Entry{std::move(title), nullptr}); }

ConfigItem& Schema::add(std::string name, std::string placeholder, std::string takes,
                        std::function<Status(std::string_view)> set,
                        std::function<std::vector<std::string>()> get, ConfigItem::Kind kind) {
  AKV_CHECK(is_valid_name(name) && find(name) == nullptr);
  auto item = std::make_unique<ConfigItem>();
  item->name_ = std::move(name);
  item->placeholder_ = std::move(placeholder);
  item->takes_ = std::move(takes);
  item->set_ = std::move(set);
  item->get_ = std::move(get);
  item->kind_ = kind;
  item->default_text_ = join(item->get_());
  entries_.push_back(Entry{"", std::move(item)});
  return *entries_.back().item;
}

ConfigItem& Schema::text(std::string name, std::string& field, std::string placeholder) {
  const auto set = [&field](std::string_view text) -> Status {
    field = text;
    return {};
  };
  const auto get = [&field] { return std::vector<std::string>{field}; };
  return add(std::move(name), std::move(placeholder), "text", set, get, ConfigItem::Kind::kText);
}

namespace {

// Setter and getter of a number; the bounds are the item's, read when a value comes.
template <class N>
std::function<Status(std::string_view)> number_setter(N& field) {
  return [&field](std::string_view text) -> Status {
    const std::optional<N> value = parse_number<N>(text);
    if (!value) return refused();
    if constexpr (std::is_floating_point_v<N>) {
      if (!std::isfinite(*value)) return refused();
    }
    field = *value;
    return {};
  };
}

template <class N>
std::function<std::vector<std::string>()> number_getter(const N& field) {
  return [&field] { return std::vector<std::string>{fmt::format("{}", field)}; };
}

}  // namespace

ConfigItem& Schema::integer(std::string name, int64_t& field) {
  return add(std::move(name), "N", "an integer", number_setter(field), number_getter(field),
             ConfigItem::Kind::kNumber);
}
ConfigItem& Schema::integer(std::string name, int& field) {
  return add(std::move(name), "N", "an integer", number_setter(field), number_getter(field),
             ConfigItem::Kind::kNumber);
}
ConfigItem& Schema::real(std::string name, double& field) {
  return add(std::move(name), "X", "a number", number_setter(field), number_getter(field),
             ConfigItem::Kind::kNumber);
}

ConfigItem& Schema::bytes(std::string name, uint64_t& field) {
  const auto set = [&field](std::string_view text) -> Status {
    const Result<uint64_t> value = parse_bytes(text);
    if (!value.ok()) return refused();
    field = *value;
    return {};
  };
  const auto get = [&field] { return std::vector<std::string>{bytes_text(field)}; };
  return add(std::move(name), "BYTES", "bytes with K, M or G of 1024 (\"512M\")", set, get,
             ConfigItem::Kind::kText);
}

ConfigItem& Schema::flag(std::string name, bool& field) {
  const auto set = [&field](std::string_view text) -> Status {
    const std::optional<bool> value = parse_bool(text);
    if (!value) return refused();
    field = *value;
    return {};
  };
  const auto get = [&field] { return std::vector<std::string>{field ? "true" : "false"}; };
  return add(std::move(name), "", "true or false", set, get, ConfigItem::Kind::kFlag);
}

ConfigItem& Schema::address(std::string name, HostPort& field) {
  const auto set = [&field](std::string_view text) -> Status {
    AKV_ASSIGN_OR_RETURN(field, parse_host_port(text));
    return {};
  };
  const auto get = [&field] { return std::vector<std::string>{field.str()}; };
  return add(std::move(name), "HOST:PORT", "HOST:PORT (port 0 picks a free one)", set, get,
             ConfigItem::Kind::kText);
}

ConfigItem& Schema::address(std::string name, std::optional<HostPort>& field) {
  const auto set = [&field](std::string_view text) -> Status {
    if (text.empty()) {
      field.reset();
      return {};
    }
    AKV_ASSIGN_OR_RETURN(field, parse_host_port(text));
    return {};
  };
  const auto get = [&field] {
    return std::vector<std::string>{field ? field->str() : std::string()};
  };
  return add(std::move(name), "HOST:PORT", "HOST:PORT, or nothing", set, get,
             ConfigItem::Kind::kText);
}

ConfigItem& Schema::addresses(std::string name, std::vector<HostPort>& field) {
  const auto set = [&field](std::string_view text) -> Status {
    for (const std::string_view part : split_commas(text)) {
      AKV_ASSIGN_OR_RETURN(HostPort address, parse_host_port(part));
      field.push_back(std::move(address));
    }
    return {};
  };
  const auto get = [&field] {
    std::vector<std::string> out;
    for (const HostPort& address : field) out.push_back(address.str());
    return out;
  };
  ConfigItem& item = add(std::move(name), "HOST:PORT[,…]", "HOST:PORT[,HOST:PORT…]", set, get,
                         ConfigItem::Kind::kList);
  item.clear_ = [&field] { field.clear(); };
  return item;
}

ConfigItem& Schema::list(std::string name, std::vector<std::string>& field,
                         std::string placeholder) {
  const auto set = [&field](std::string_view text) -> Status {
    for (const std::string_view part : split_commas(text)) field.emplace_back(part);
    return {};
  };
  const auto get = [&field] { return field; };
  ConfigItem& item = add(std::move(name), placeholder + "[,…]", "a list of " + placeholder, set,
                         get, ConfigItem::Kind::kList);
  item.clear_ = [&field] { field.clear(); };
  return item;
}

ConfigItem& Schema::custom(std::string name, std::string placeholder, std::string takes,
                           std::function<Status(std::string_view)> set,
                           std::function<std::string()> get) {
  auto get_one = [get = std::move(get)] { return std::vector<std::string>{get()}; };
  return add(std::move(name), std::move(placeholder), std::move(takes), std::move(set),
             std::move(get_one), ConfigItem::Kind::kText);
}

const ConfigItem* Schema::find(std::string_view name) const {
  for (const Entry& entry : entries_) {
    if (entry.item && entry.item->name_ == name) return entry.item.get();
  }
  return nullptr;
}
ConfigItem* Schema::find(std::string_view name) {
  return const_cast<ConfigItem*>(std::as_const(*this).find(name));
}

bool Schema::has(std::string_view name) const { return find(name) != nullptr; }
bool Schema::is_flag(std::string_view name) const {
  const ConfigItem* item = find(name);
  return item != nullptr && item->kind_ == ConfigItem::Kind::kFlag;
}
bool Schema::is_list(std::string_view name) const {
  const ConfigItem* item = find(name);
  return item != nullptr && item->kind_ == ConfigItem::Kind::kList;
}
bool Schema::given(std::string_view name) const {
  const ConfigItem* item = find(name);
  return item != nullptr && item->given_;
}

std::vector<std::string> Schema::names() const {
  std::vector<std::string> out;
  for (const Entry& entry : entries_) {
    if (entry.item) out.push_back(entry.item->name_);
  }
  return out;
}

std::string Schema::nearest(std::string_view text) const {
  std::string best;
  size_t best_distance = 1 + text.size() / 3;  // farther than this is no likely slip
  for (const std::string& name : names()) {
    const size_t distance = edit_distance(text, name);
    if (distance < best_distance || (best.empty() && distance == best_distance)) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

Status Schema::check_required() const {
  for (const Entry& entry : entries_) {
    if (!entry.item || !entry.item->required_ || entry.item->given_) continue;
    return make_error(Code::kInvalidArgument,
                      fmt::format("--{}: got nothing, takes {} ({})", entry.item->name_,
                                  entry.item->placeholder_, entry.item->doc_),
                      entry.item->name_);
  }
  return {};
}

namespace {

// "--threads: got "x", takes an integer in [1, 1024]", and the setter's own words where it has
// some.
Error wrong_value(std::string_view name, std::string_view source, std::string_view value,
                  const std::string& takes, const std::string& detail) {
  std::string message = fmt::format("{}: got \"{}\", takes {}", source, value, takes);
  if (!detail.empty()) message += ": " + detail;
  return make_error(Code::kInvalidArgument, std::move(message), std::string(name));
}

}  // namespace

Status Schema::set(std::string_view name, std::string_view value, std::string_view source,
                   bool replace) {
  ConfigItem* item = find(name);
  if (item == nullptr) {
    return make_error(Code::kUnsupported, fmt::format("{}: no such setting", source),
                      std::string(name));
  }
  std::string takes = item->takes_;
  if (item->has_range_) {
    takes += fmt::format(" in [{}, {}]", bound_text(item->low_), bound_text(item->high_));
  }
  if (!item->unit_.empty()) takes += " (" + item->unit_ + ")";
  if (item->has_range_) {
    const std::optional<double> number = parse_number<double>(value);
    const Result<uint64_t> bytes = parse_bytes(value);
    const double given = number ? *number : bytes.ok() ? static_cast<double>(*bytes) : NAN;
    if (!(given >= item->low_ && given <= item->high_)) {
      return wrong_value(name, source, value, takes, "");
    }
  }
  if (replace && item->clear_) item->clear_();
  const Status status = item->set_(value);
  if (!status.ok()) return wrong_value(name, source, value, takes, status.error().message);
  item->given_ = true;
  return {};
}

std::string Schema::help() const {
  std::string out;
  for (const Entry& entry : entries_) {
    if (!entry.item) {
      out += fmt::format("\n{}\n", entry.heading);
      continue;
    }
    const ConfigItem& item = *entry.item;
    std::string left = "  --" + item.name_;
    if (!item.placeholder_.empty()) left += " " + item.placeholder_;
    std::string right = item.doc_;
    if (!item.unit_.empty()) right += ", " + item.unit_;
    const std::string& shown = item.default_note_.empty() ? item.default_text_ : item.default_note_;
    if (item.required_) {
      right += " (required)";
    } else if (!shown.empty() && item.kind_ != ConfigItem::Kind::kFlag) {
      right += " [" + shown + "]";
    }
    if (item.reloadable_) right += " (SIGHUP)";
    // A long left side takes a line of its own.
    out += left.size() > 32 ? left + "\n" + std::string(34, ' ') : fmt::format("{:<34}", left);
    out += right + "\n";
  }
  return out;
}

std::string Schema::dump_json() const {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const Entry& entry : entries_) {
    if (!entry.item) continue;
    const ConfigItem& item = *entry.item;
    const std::vector<std::string> values = item.get_();
    nlohmann::ordered_json& slot = out[item.name_];
    switch (item.kind_) {
      case ConfigItem::Kind::kList:
        slot = values;
        break;
      case ConfigItem::Kind::kFlag:
        slot = values[0] == "true";
        break;
      case ConfigItem::Kind::kNumber:
        slot = nlohmann::ordered_json::parse(values[0]);
        break;
      case ConfigItem::Kind::kText:
        slot = values[0];
        break;
    }
  }
  return out.dump(2) + "\n";
}

}  // namespace akv
