// The typed items of a schema: how each type is read from text and written back. What get returns,
// set takes, so that --dump-config is a file to start from.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "common/config/schema.h"

namespace akv {
namespace {

// A setter's error without words of its own: the item's "takes" says it all.
Error refused() { return make_error(Code::kInvalidArgument, ""); }

// All of text, or nothing.
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

// The parts between commas; empty parts are left out, so a trailing comma is no item.
std::vector<std::string_view> split_commas(std::string_view text) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    if (comma > 0) parts.push_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return parts;
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

ConfigItem& Schema::text(std::string name, std::string& field, std::string placeholder) {
  const auto set = [&field](std::string_view text) -> Status {
    field = text;
    return {};
  };
  const auto get = [&field] { return std::vector<std::string>{field}; };
  return add(std::move(name), std::move(placeholder), "text", set, get, ConfigItem::Kind::kText);
}

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

}  // namespace akv
