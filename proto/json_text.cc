#include "proto/json_text.h"

#include <utility>
#include <vector>

namespace akv::proto {
namespace {

// What a body may hold in all, so that its values stay near its own size and quick to build.
constexpr size_t kMaxValues = size_t{1} << 21;
constexpr size_t kMaxKeys = size_t{1} << 17;

// "[json.exception.parse_error.101] parse error at line 1, ..." without its tag.
std::string without_tag(const char* what) {
  std::string_view text = what;
  if (const size_t end = text.find("] "); text.starts_with("[") && end != text.npos)
    text.remove_prefix(end + 2);
  std::string shown(text.substr(0, 300));
  // The parser quotes what it last read, which may hold broken UTF-8.
  for (char& c : shown)
    if (static_cast<unsigned char>(c) >= 0x80 || static_cast<unsigned char>(c) < 0x20) c = '?';
  return shown;
}

// Builds the value from the parser's events. Not the library's own builder with a callback: that
// one looks through the whole array at the end of each object in it.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(int max_depth) : max_depth_(max_depth) {}

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t&) override { return refuse("holds binary values"); }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& key) override {
    if (++keys_ > kMaxKeys) return refuse("more than " + std::to_string(kMaxKeys) + " keys");
    auto& object = open_.back()->get_ref<Json::object_t&>();
    const auto [at, fresh] = object.emplace(std::move(key), nullptr);
    if (!fresh) return refuse("the key '" + at->first.substr(0, 64) + "' occurs twice");
    member_ = &at->second;
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    return refuse(without_tag(error.what()));
  }

  Json take() { return std::move(root_); }
  const std::string& error() const { return error_; }

 private:
  bool refuse(std::string reason) {
    error_ = std::move(reason);
    return false;
  }

  // Where the next value goes.
  Json* slot() {
    if (open_.empty()) return &root_;
    if (member_ != nullptr) return std::exchange(member_, nullptr);
    auto& array = open_.back()->get_ref<Json::array_t&>();
    array.emplace_back();
    return &array.back();
  }

  template <class T>
  bool put(T&& value) {
    if (++values_ > kMaxValues)
      return refuse("more than " + std::to_string(kMaxValues) + " values");
    *slot() = std::forward<T>(value);
    return true;
  }

  bool open(Json&& empty) {
    if (open_.size() >= static_cast<size_t>(max_depth_))
      return refuse("nested deeper than " + std::to_string(max_depth_) + " levels");
    if (++values_ > kMaxValues)
      return refuse("more than " + std::to_string(kMaxValues) + " values");
    Json* at = slot();
    *at = std::move(empty);
    open_.push_back(at);
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  const int max_depth_;
  size_t values_ = 0;
  size_t keys_ = 0;
  Json root_;
  // Objects and arrays that are not complete, outermost first: only the last one grows, so that the
  // places of the others stay.
  std::vector<Json*> open_;
  Json* member_ = nullptr;  // of the last object: its key was read, its value comes
  std::string error_;
};

}  // namespace

std::optional<Json> parse_json(std::string_view text, int max_depth, std::string* error) {
  Builder builder(max_depth);
  if (Json::sax_parse(text.begin(), text.end(), &builder)) return builder.take();
  *error = builder.error();
  return std::nullopt;
}

std::string fitted_text(const std::string& text, size_t max_bytes) {
  // A byte that is no UTF-8 takes three in its place.
  if (text.size() <= max_bytes / 3) return text;
  std::string fitted = Json::parse(dump_json(text)).get<std::string>();
  if (fitted.size() <= max_bytes) return fitted;
  size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(fitted[end]) & 0xc0) == 0x80) --end;
  fitted.resize(end);
  return fitted;
}

std::string dump_json(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace akv::proto
