#include "proto/json_text.h"

#include <stdexcept>
#include <unordered_set>
#include <vector>

namespace akv::proto {
namespace {

// Thrown out of the parser's callback, caught in parse_json.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Watches the parser: it knows depth and keys before values are built.
class Guard {
 public:
  explicit Guard(int max_depth) : max_depth_(max_depth) {}

  void see(int depth, Json::parse_event_t event, const Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
        enter(depth);
        keys_.emplace_back();
        break;
      case Json::parse_event_t::array_start:
        enter(depth);
        break;
      case Json::parse_event_t::object_end:
        keys_.pop_back();
        break;
      case Json::parse_event_t::key:
        if (!keys_.back().insert(parsed.get_ref<const std::string&>()).second)
          throw Refused("the key '" + parsed.get<std::string>().substr(0, 64) + "' occurs twice");
        break;
      default:
        break;
    }
  }

 private:
  void enter(int depth) const {
    if (depth >= max_depth_)
      throw Refused("nested deeper than " + std::to_string(max_depth_) + " levels");
  }

  int max_depth_;
  std::vector<std::unordered_set<std::string>> keys_;  // of the objects that are open
};

// "[json.exception.parse_error.101] parse error at line 1, ..." without its tag.
std::string without_tag(const char* what) {
  std::string_view text = what;
  if (const size_t end = text.find("] "); text.starts_with("[") && end != text.npos)
    text.remove_prefix(end + 2);
  return std::string(text.substr(0, 300));
}

}  // namespace

std::optional<Json> parse_json(std::string_view text, int max_depth, std::string* error) {
  Guard guard(max_depth);
  const auto callback = [&guard](int depth, Json::parse_event_t event, Json& parsed) {
    guard.see(depth, event, parsed);
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), callback);
  } catch (const Refused& refused) {
    *error = refused.what();
  } catch (const Json::exception& exception) {
    *error = without_tag(exception.what());
    // The parser quotes what it last read, which may hold broken UTF-8.
    for (char& c : *error)
      if (static_cast<unsigned char>(c) >= 0x80 || static_cast<unsigned char>(c) < 0x20) c = '?';
  }
  return std::nullopt;
}

std::string dump_json(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace akv::proto
