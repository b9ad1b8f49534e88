#include "common/config/load.h"

#include <fmt/format.h>

#include <cctype>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

namespace akv {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxFileBytes = 1 << 20;

std::string did_you_mean(const Schema& schema, std::string_view name) {
  const std::string near = schema.nearest(name);
  return near.empty() ? "" : fmt::format("; did you mean {}?", near);
}

Error bad_flag(const Schema& schema, std::string_view name) {
  return make_error(
      Code::kInvalidArgument,
      fmt::format("--{}: no such flag{}; --help lists them", name, did_you_mean(schema, name)),
      std::string(name));
}

// One of --help, --version, --dump-config, --check; null for any other name.
const Action* action_of(std::string_view name) {
  static constexpr std::pair<std::string_view, Action> kActions[] = {
      {"help", Action::kHelp},
      {"version", Action::kVersion},
      {"dump-config", Action::kDumpConfig},
      {"check", Action::kCheck}};
  for (const auto& [text, action] : kActions) {
    if (text == name) return &action;
  }
  return nullptr;
}

// The words of a command line, taken one by one.
class FlagReader {
 public:
  FlagReader(const Schema& schema, std::span<const char* const> args)
      : schema_(schema), args_(args) {}

  bool done() const { return next_ == args_.size(); }

  Status read(CommandLine& out) {
    std::string_view word = args_[next_++];
    if (word == "-h") word = "--help";
    if (!word.starts_with("--") || word.size() == 2) {
      return make_error(Code::kInvalidArgument,
                        fmt::format("\"{}\": not a flag; --help lists them", word));
    }
    word.remove_prefix(2);
    const size_t equals = word.find('=');
    const std::string name(word.substr(0, equals));
    std::optional<std::string> value;
    if (equals != std::string_view::npos) value = word.substr(equals + 1);
    if (const Action* action = action_of(name); action != nullptr && !value) {
      out.action = *action;
      return {};
    }
    if (name == "config") {
      AKV_ASSIGN_OR_RETURN(out.config_file, take_value(name, value, "FILE"));
      return {};
    }
    return read_item(name, std::move(value), out);
  }

 private:
  Status read_item(const std::string& name, std::optional<std::string> value, CommandLine& out) {
    if (schema_.is_flag(name)) {
      out.items.emplace_back(name, value.value_or("true"));
      return {};
    }
    if (!schema_.has(name)) {
      const bool negated = name.starts_with("no-") && schema_.is_flag(name.substr(3)) && !value;
      if (!negated) return bad_flag(schema_, name);
      out.items.emplace_back(name.substr(3), "false");
      return {};
    }
    AKV_ASSIGN_OR_RETURN(std::string text, take_value(name, value, "a value"));
    out.items.emplace_back(name, std::move(text));
    return {};
  }

  Result<std::string> take_value(const std::string& name, const std::optional<std::string>& value,
                                 std::string_view what) {
    if (value) return *value;
    if (done()) {
      return make_error(Code::kInvalidArgument,
                        fmt::format("--{}: got nothing, takes {}", name, what), name);
    }
    return std::string(args_[next_++]);
  }

  const Schema& schema_;
  const std::span<const char* const> args_;
  size_t next_ = 0;
};

Result<std::string> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return make_error(Code::kNotFound, fmt::format("--config: cannot read \"{}\"", path), "config");
  }
  std::string text;
  text.resize(kMaxFileBytes + 1);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kMaxFileBytes) {
    return make_error(Code::kInvalidArgument,
                      fmt::format("--config: \"{}\" is larger than {} bytes", path, kMaxFileBytes),
                      "config");
  }
  return text;
}

// Parses the file's text; a key that comes twice is an error, since one of the two would be lost.
Result<Json> parse_file(const std::string& path, const std::string& text) {
  std::set<std::string> keys;
  std::string repeated;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth == 1 && event == Json::parse_event_t::key &&
        !keys.insert(parsed.get<std::string>()).second) {
      repeated = parsed.get<std::string>();
    }
    return true;
  };
  Json json;
  try {
    json = Json::parse(text, watch);
  } catch (const Json::parse_error& error) {
    return make_error(Code::kInvalidArgument,
                      fmt::format("{}: not JSON at byte {}", path, error.byte), "config");
  }
  if (!repeated.empty()) {
    return make_error(Code::kInvalidArgument,
                      fmt::format("{}: key \"{}\" stands there twice", path, repeated), repeated);
  }
  if (!json.is_object()) {
    return make_error(Code::kInvalidArgument, fmt::format("{}: takes a JSON object", path),
                      "config");
  }
  return json;
}

std::string scalar_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

Status apply_value(Schema& schema, const std::string& name, const Json& value,
                   const std::string& source) {
  if (value.is_array() && schema.is_list(name)) {
    AKV_RETURN_IF_ERROR(schema.set(name, "", source));
    for (const Json& element : value) {
      AKV_RETURN_IF_ERROR(schema.set(name, scalar_text(element), source, /*replace=*/false));
    }
    return {};
  }
  return schema.set(name, scalar_text(value), source);
}

Status apply_file(Schema& schema, const std::string& path) {
  AKV_ASSIGN_OR_RETURN(std::string text, read_file(path));
  AKV_ASSIGN_OR_RETURN(Json json, parse_file(path, text));
  for (const auto& [key, value] : json.items()) {
    if (!schema.has(key)) {
      return make_error(
          Code::kInvalidArgument,
          fmt::format("{}: no such key \"{}\"{}", path, key, did_you_mean(schema, key)), key);
    }
    AKV_RETURN_IF_ERROR(apply_value(schema, key, value, fmt::format("{}: key \"{}\"", path, key)));
  }
  return {};
}

}  // namespace

Result<CommandLine> parse_command_line(const Schema& schema, std::span<const char* const> args) {
  CommandLine out;
  FlagReader reader(schema, args);
  while (!reader.done()) AKV_RETURN_IF_ERROR(reader.read(out));
  return out;
}

std::string environment_name(std::string_view item) {
  std::string out = "AKV_";
  for (const char c : item) {
    out += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return out;
}

Status apply_configuration(Schema& schema, const CommandLine& command_line,
                           const Environment& environment) {
  std::string file = command_line.config_file;
  if (const char* named = environment("AKV_CONFIG"); file.empty() && named != nullptr) file = named;
  if (!file.empty()) AKV_RETURN_IF_ERROR(apply_file(schema, file));
  for (const std::string& name : schema.names()) {
    const std::string variable = environment_name(name);
    if (const char* value = environment(variable.c_str()); value != nullptr) {
      AKV_RETURN_IF_ERROR(schema.set(name, value, variable));
    }
  }
  std::set<std::string> seen;  // a repeated list flag appends to itself, not to a lower source
  for (const auto& [name, value] : command_line.items) {
    AKV_RETURN_IF_ERROR(schema.set(name, value, "--" + name, seen.insert(name).second));
  }
  return {};
}

}  // namespace akv
