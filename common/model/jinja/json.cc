// JSON text to values: nlohmann's SAX events onto a stack, so that depth is bounded while parsing.
#include <nlohmann/json.hpp>

#include "common/model/jinja/value.h"

namespace akv::model::jinja {
namespace {

constexpr size_t kMaxDepth = 64;

class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Value take() { return std::move(root_); }
  const std::string& error() const { return error_; }

  bool null() override { return add(Value::none()); }
  bool boolean(bool b) override { return add(Value::boolean(b)); }
  bool number_integer(number_integer_t i) override { return add(Value::integer(i)); }
  bool number_unsigned(number_unsigned_t i) override {
    if (i > INT64_MAX) return add(Value::real(static_cast<double>(i)));
    return add(Value::integer(static_cast<int64_t>(i)));
  }
  bool number_float(number_float_t d, const string_t&) override { return add(Value::real(d)); }
  bool string(string_t& s) override { return add(Value::foreign(s)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(true); }
  bool start_array(size_t) override { return open(false); }
  bool key(string_t& k) override {
    open_.back().key = Text::foreign(k);
    return true;
  }
  bool end_object() override {
    Value value = Value::dict(std::move(open_.back().dict));
    open_.pop_back();
    return add(std::move(value));
  }
  bool end_array() override {
    Value value = Value::list(std::move(open_.back().list));
    open_.pop_back();
    return add(std::move(value));
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) override {
    error_ = e.what();
    return false;
  }

 private:
  struct Open {
    bool is_dict = false;
    Dict dict;
    List list;
    Text key;
  };

  bool open(bool is_dict) {
    if (open_.size() == kMaxDepth) {
      error_ = "nested deeper than " + std::to_string(kMaxDepth);
      return false;
    }
    open_.emplace_back().is_dict = is_dict;
    return true;
  }
  bool add(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().is_dict) {
      // Linear look-up would be quadratic in a hostile object: a repeated key is kept behind the
      // first one, which find() returns.
      open_.back().dict.items.emplace_back(open_.back().key, std::move(value));
    } else {
      open_.back().list.push_back(std::move(value));
    }
    return true;
  }

  std::vector<Open> open_;
  Value root_;
  std::string error_;
};

}  // namespace

Result<Value> value_from_json(std::string_view json) {
  Builder builder;
  if (!nlohmann::json::sax_parse(json, &builder)) {
    return make_error(Code::kInvalidArgument, "bad JSON: " + builder.error());
  }
  return builder.take();
}

}  // namespace akv::model::jinja
