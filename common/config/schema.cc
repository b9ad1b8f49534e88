#include "common/config/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/base/check.h"

namespace akv {
namespace {

bool is_valid_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
}

// The number that a range is checked against: plain, or bytes with their suffix. NaN for other
// text.
double range_value(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  const Result<uint64_t> bytes = parse_bytes(text);
  return bytes.ok() ? static_cast<double>(*bytes) : NAN;
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
    const double given = range_value(value);
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
