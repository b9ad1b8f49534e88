// Numbers and slices, with Python's rounding and indices.
#include <cmath>

#include "common/model/jinja/builtin_args.h"
#include "common/model/jinja/evaluator.h"
#include "common/model/jinja/text_ops.h"

namespace akv::model::jinja {
namespace {

std::string_view spelling(Op op) {
  switch (op) {
    case Op::kSub:
      return "-";
    case Op::kMul:
      return "*";
    case Op::kDiv:
      return "/";
    case Op::kFloorDiv:
      return "//";
    case Op::kMod:
      return "%";
    case Op::kPow:
      return "**";
    default:
      return "+";
  }
}

Result<Value> real_arithmetic(Op op, double a, double b) {
  switch (op) {
    case Op::kSub:
      return Value::real(a - b);
    case Op::kMul:
      return Value::real(a * b);
    case Op::kPow:
      return Value::real(std::pow(a, b));
    default:
      break;
  }
  if (b == 0) return type_error("division by zero");
  if (op == Op::kDiv) return Value::real(a / b);
  const double quotient = std::floor(a / b);
  return Value::real(op == Op::kFloorDiv ? quotient : a - quotient * b);
}

Result<Value> integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) return real_arithmetic(Op::kPow, double(base), double(exponent));
  int64_t result = 1;
  for (int64_t i = 0; i < exponent; ++i) {
    if (i == 64 && base * base > 1) return type_error("integer overflow");
    if (i == 64) return Value::integer(exponent % 2 == 0 ? base * base : base);  // 0, 1 or -1
    if (__builtin_mul_overflow(result, base, &result)) return type_error("integer overflow");
  }
  return Value::integer(result);
}

Result<Value> integer_arithmetic(Op op, int64_t a, int64_t b) {
  int64_t result = 0;
  if (op == Op::kSub || op == Op::kMul) {
    const bool overflows = op == Op::kSub ? __builtin_sub_overflow(a, b, &result)
                                          : __builtin_mul_overflow(a, b, &result);
    if (overflows) return type_error("integer overflow");
    return Value::integer(result);
  }
  if (op == Op::kPow) return integer_power(a, b);
  if (b == 0) return type_error("division by zero");
  if (op == Op::kDiv) return Value::real(static_cast<double>(a) / static_cast<double>(b));
  if (a == INT64_MIN && b == -1) return type_error("integer overflow");
  int64_t quotient = a / b;
  if (a % b != 0 && (a % b < 0) != (b < 0)) --quotient;  // Python rounds down
  return Value::integer(op == Op::kFloorDiv ? quotient : a - quotient * b);
}

Result<Value> repeat(Runtime& runtime, const Value& what, int64_t times) {
  const auto n = static_cast<size_t>(std::max<int64_t>(times, 0));
  if (what.is_text()) {
    AKV_RETURN_IF_ERROR(runtime.reserve_text(n, what.as_text().size()));
    Text out;
    for (size_t i = 0; i < n && !what.as_text().empty(); ++i) out.append(what.as_text());
    return runtime.text(std::move(out));
  }
  const List& list = what.as_list();
  if (list.empty()) return what;
  AKV_RETURN_IF_ERROR(runtime.charge(n));
  AKV_RETURN_IF_ERROR(runtime.charge(n * list.size()));
  List out;
  for (size_t i = 0; i < n; ++i) out.insert(out.end(), list.begin(), list.end());
  return Value::list(std::move(out));
}

// The indices that a slice visits, as Python's slice.indices() does.
Result<std::vector<size_t>> slice_indices(Runtime& runtime, size_t size, const Value& begin,
                                          const Value& end, const Value& step) {
  const auto part = [](const Value& v, int64_t fallback) -> Result<int64_t> {
    return integer_arg(v.is_none() ? Value() : v, fallback, "slice");
  };
  const auto n = static_cast<int64_t>(size);
  AKV_ASSIGN_OR_RETURN(const int64_t stride, part(step, 1));
  if (stride == 0) return type_error("a slice with a step of 0");
  const bool forward = stride > 0;
  const int64_t low = forward ? 0 : -1, high = forward ? n : n - 1;
  AKV_ASSIGN_OR_RETURN(int64_t from, part(begin, forward ? 0 : INT64_MAX));
  AKV_ASSIGN_OR_RETURN(int64_t to, part(end, forward ? INT64_MAX : INT64_MIN));
  if (from < 0) from += n;
  if (to < 0 && to != INT64_MIN) to += n;
  from = std::clamp(from, low, high);
  to = std::clamp(to, low, high);
  std::vector<size_t> indices;
  // A stride beyond the size visits one element; clamping it keeps the sum from overflowing.
  const int64_t hop = std::clamp(stride, -n - 1, n + 1);
  for (int64_t i = from; forward ? i < to : i > to; i += hop) {
    indices.push_back(static_cast<size_t>(i));
  }
  AKV_RETURN_IF_ERROR(runtime.charge(indices.size() / 64));
  return indices;
}

}  // namespace

Result<Value> arithmetic(Runtime& runtime, Op op, const Value& a, const Value& b) {
  if (op == Op::kAdd) return add(runtime, a, b);
  const auto is_sequence = [](const Value& v) { return v.is_text() || v.is_list(); };
  if (op == Op::kMul && is_sequence(a) && b.is_int()) return repeat(runtime, a, b.as_int());
  if (op == Op::kMul && is_sequence(b) && a.is_int()) return repeat(runtime, b, a.as_int());
  if (op == Op::kMod && a.is_text()) {
    return make_error(Code::kUnsupported, "formatting a string with % is not implemented");
  }
  if (!a.is_number() || !b.is_number()) {
    return type_error("cannot compute " + std::string(a.kind()) + " " + std::string(spelling(op)) +
                      " " + std::string(b.kind()));
  }
  if (a.is_real() || b.is_real()) return real_arithmetic(op, a.as_real(), b.as_real());
  return integer_arithmetic(op, a.as_int(), b.as_int());
}

Result<Value> slice(Runtime& runtime, const Value& value, const Value& begin, const Value& end,
                    const Value& step) {
  if (value.is_list()) {
    AKV_ASSIGN_OR_RETURN(const auto indices,
                         slice_indices(runtime, value.as_list().size(), begin, end, step));
    List out;
    for (const size_t i : indices) out.push_back(value.as_list()[i]);
    return runtime.list(std::move(out));
  }
  if (!value.is_text()) return type_error("cannot slice " + std::string(value.kind()));
  const Text& text = value.as_text();
  const CharIndex chars(text.bytes());
  AKV_ASSIGN_OR_RETURN(const auto indices, slice_indices(runtime, chars.count(), begin, end, step));
  // In one piece where the characters follow each other, as they nearly always do.
  if (!indices.empty() && indices.back() - indices.front() + 1 == indices.size()) {
    return runtime.text(
        text.slice(chars.offset(indices.front()), chars.offset(indices.back() + 1)));
  }
  Text out;
  for (const size_t i : indices) out.append(text.slice(chars.offset(i), chars.offset(i + 1)));
  return runtime.text(std::move(out));
}

}  // namespace akv::model::jinja
