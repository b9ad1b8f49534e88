// A daemon's configuration, declared once: each item binds a name to a field of a plain struct,
// whose initialiser is the default. The one declaration serves --help, --dump-config, the JSON
// configuration file, AKV_<NAME> in the environment and the command line.
//
//   struct Config {
//     int64_t heartbeat_ms = 1000;
//     void declare(Schema& s) {
//       s.integer("heartbeat-ms", heartbeat_ms).unit("ms").range(10, 60'000)
//           .doc("interval of heartbeats; a peer is lost after 3");
//     }
//   };
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/base/units.h"

namespace akv {

// One item of a schema. The setters are for the declaration; they return *this.
class ConfigItem {
 public:
  // What it does, in one phrase without a full stop.
  ConfigItem& doc(std::string text);
  // Shown in --help beside the type ("ms", "tokens").
  ConfigItem& unit(std::string text);
  // Shown in --help in place of the default value, where that depends on the machine.
  ConfigItem& default_note(std::string text);
  // Inclusive bounds of an integer, byte count or real number.
  ConfigItem& range(double low, double high);
  // The item must be given. Its default is not checked.
  ConfigItem& required();
  // SIGHUP applies it; shown in --help.
  ConfigItem& reloadable();

 private:
  friend class Schema;
  enum class Kind : uint8_t { kText, kNumber, kFlag, kList };

  std::string name_;  // lower case and dashes
  std::string doc_;
  std::string unit_;
  std::string default_note_;
  std::string default_text_;                       // taken when declared
  std::string takes_;                              // "an integer", "one of json, text"
  std::string placeholder_;                        // "N", "HOST:PORT"
  std::function<Status(std::string_view)> set_;    // one value; for a list: appends
  std::function<void()> clear_;                    // lists
  std::function<std::vector<std::string>()> get_;  // current value(s)
  Kind kind_ = Kind::kText;
  bool has_range_ = false;
  double low_ = 0;
  double high_ = 0;
  bool required_ = false;
  bool reloadable_ = false;
  bool given_ = false;
};

// The items of one configuration object. Views of its fields: the object must outlive the schema.
// Not thread-safe.
class Schema {
 public:
  Schema();
  ~Schema();
  Schema(Schema&&) noexcept;
  Schema& operator=(Schema&&) noexcept;

  // A heading of --help for the items that follow.
  void section(std::string title);

  // Names are unique (AKV_CHECK). A returned reference lives as long as the schema.
  ConfigItem& text(std::string name, std::string& field, std::string placeholder = "TEXT");
  ConfigItem& integer(std::string name, int64_t& field);
  ConfigItem& integer(std::string name, int& field);
  ConfigItem& real(std::string name, double& field);
  // Suffixes K, M, G of 1024.
  ConfigItem& bytes(std::string name, uint64_t& field);
  // --name, --name=true|false, --no-name; "1", "0", "true", "false" in the environment.
  ConfigItem& flag(std::string name, bool& field);
  // HOST:PORT. The optional form is absent by default; an empty text makes it absent again.
  ConfigItem& address(std::string name, HostPort& field);
  ConfigItem& address(std::string name, std::optional<HostPort>& field);
  // A[,…]; a repeated flag appends, and a higher source replaces the whole list of a lower one.
  ConfigItem& addresses(std::string name, std::vector<HostPort>& field);
  ConfigItem& list(std::string name, std::vector<std::string>& field, std::string placeholder);

  // One of a fixed set of words.
  template <class E>
  ConfigItem& choice(std::string name, E& field, std::vector<std::pair<std::string, E>> words);

  // Anything else ("auto|X"): takes completes the sentence "NAME: got "…", takes …"; set's own
  // error message is appended to it.
  ConfigItem& custom(std::string name, std::string placeholder, std::string takes,
                     std::function<Status(std::string_view)> set, std::function<std::string()> get);

  // --help's table of items, by section.
  std::string help() const;
  // The current values as a JSON object that a --config file may hold. Secrets are files, so
  // nothing is hidden.
  std::string dump_json() const;

  // Sets one item from text. source names where it stood ("--threads", "AKV_THREADS"). kUnsupported
  // (param: name) where there is no such item; kInvalidArgument says the key, what it got and what
  // it takes. For a list, first clears it when replace is set.
  Status set(std::string_view name, std::string_view value, std::string_view source,
             bool replace = true);

  bool has(std::string_view name) const;
  bool is_flag(std::string_view name) const;
  bool is_list(std::string_view name) const;
  // True once set() gave the item a value.
  bool given(std::string_view name) const;
  std::vector<std::string> names() const;
  // The declared name most like text, or "" where none is near: for "did you mean".
  std::string nearest(std::string_view text) const;
  // kInvalidArgument that names the first required item without a value.
  Status check_required() const;

 private:
  ConfigItem& add(std::string name, std::string placeholder, std::string takes,
                  std::function<Status(std::string_view)> set,
                  std::function<std::vector<std::string>()> get, ConfigItem::Kind kind);
  const ConfigItem* find(std::string_view name) const;
  ConfigItem* find(std::string_view name);

  struct Entry;
  std::vector<Entry> entries_;
};

template <class E>
ConfigItem& Schema::choice(std::string name, E& field,
                           std::vector<std::pair<std::string, E>> words) {
  std::string joined;
  for (const auto& [word, value] : words) joined += (joined.empty() ? "" : "|") + word;
  auto set = [&field, words](std::string_view text) -> Status {
    for (const auto& [word, value] : words) {
      if (word == text) {
        field = value;
        return {};
      }
    }
    return make_error(Code::kInvalidArgument, "");
  };
  auto get = [&field, words]() -> std::vector<std::string> {
    for (const auto& [word, value] : words) {
      if (value == field) return {word};
    }
    return {""};
  };
  return add(std::move(name), joined, "one of " + joined, std::move(set), std::move(get),
             ConfigItem::Kind::kText);
}

}  // namespace akv
