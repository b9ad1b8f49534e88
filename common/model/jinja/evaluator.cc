#include "common/model/jinja/evaluator.h"

#include <algorithm>

namespace akv::model::jinja {
namespace {

constexpr size_t kSharedScopes = 2;

Result<bool> compare(Runtime& runtime, Op op, const Value& a, const Value& b) {
  switch (op) {
    case Op::kEq:
      return a == b;
    case Op::kNe:
      return !(a == b);
    case Op::kLt:
      return less(a, b);
    case Op::kGt:
      return less(b, a);
    case Op::kLe: {
      AKV_ASSIGN_OR_RETURN(const bool greater, less(b, a));
      return !greater;
    }
    case Op::kGe: {
      AKV_ASSIGN_OR_RETURN(const bool smaller, less(a, b));
      return !smaller;
    }
    default:
      break;
  }
  AKV_RETURN_IF_ERROR(runtime.charge(b.is_list() ? b.as_list().size() : 1));
  AKV_ASSIGN_OR_RETURN(const bool inside, contains(b, a));
  return inside == (op == Op::kIn);
}

}  // namespace

const Value* Evaluator::find_in(const Scope& scope, const std::string& name) const {
  for (auto it = scope.rbegin(); it != scope.rend(); ++it) {
    if (it->first == name) return &it->second;
  }
  return nullptr;
}

void Evaluator::set(std::string_view name, Value value) {
  for (auto& [known, old] : scopes_.back()) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  scopes_.back().emplace_back(std::string(name), std::move(value));
}

Value Evaluator::lookup(const std::string& name) const {
  for (size_t i = scopes_.size(); i-- > 0;) {
    if (i < frame_ && i >= kSharedScopes) continue;  // the caller's, while a macro runs
    const Value* found = find_in(scopes_[i], name);
    if (found != nullptr) return *found;
  }
  return Value::undefined(name);
}

size_t Evaluator::enter_frame() {
  const size_t outer = frame_;
  frame_ = scopes_.size();
  push_scope();
  return outer;
}

void Evaluator::leave_frame(size_t outer) {
  scopes_.resize(frame_);
  frame_ = outer;
}

Result<Value> Evaluator::eval(const Expr& expr) {
  line_ = expr.line;
  AKV_RETURN_IF_ERROR(runtime_.charge(1));
  // Macros make the nesting of calls deeper than that of the source.
  if (++depth_ > 4 * runtime_.limits().max_depth) {
    return make_error(Code::kResourceExhausted, "expressions and macros are nested too deep");
  }
  auto value = eval_node(expr);
  --depth_;
  return value;
}

Result<Value> Evaluator::eval_node(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.constant;
    case ExprKind::kName:
      return lookup(expr.name);
    case ExprKind::kList:
      return eval_list(expr);
    case ExprKind::kDict:
      return eval_dict(expr);
    case ExprKind::kAttribute:
      return eval_attribute(expr);
    case ExprKind::kItem:
      return eval_item(expr);
    case ExprKind::kSlice:
      return eval_slice(expr);
    case ExprKind::kCall:
      return eval_call(expr);
    case ExprKind::kFilter:
    case ExprKind::kTest:
      return eval_builtin(expr);
    case ExprKind::kNegate:
    case ExprKind::kPlus:
      return eval_sign(expr);
    case ExprKind::kNot:
    case ExprKind::kAnd:
    case ExprKind::kOr:
      return eval_logic(expr);
    case ExprKind::kCompare:
      return eval_compare(expr);
    case ExprKind::kArithmetic:
      return eval_arithmetic(expr);
    case ExprKind::kConcat:
      return eval_concat(expr);
    case ExprKind::kConditional:
      return eval_conditional(expr);
  }
  return Value();
}

Result<Value> Evaluator::eval_list(const Expr& expr) {
  List list;
  for (const auto& operand : expr.operands) {
    AKV_ASSIGN_OR_RETURN(Value value, eval(*operand));
    list.push_back(std::move(value));
  }
  AKV_ASSIGN_OR_RETURN(const Value value, runtime_.list(std::move(list)));
  return expr.name.empty() ? value : value.as_tuple();
}

Result<Value> Evaluator::eval_dict(const Expr& expr) {
  Dict dict;
  for (size_t i = 0; i < expr.operands.size(); i += 2) {
    AKV_ASSIGN_OR_RETURN(const Value key, eval(*expr.operands[i]));
    AKV_ASSIGN_OR_RETURN(Value value, eval(*expr.operands[i + 1]));
    if (!key.is_text()) {
      return make_error(Code::kUnsupported,
                        "a key must be a string, not " + std::string(key.kind()));
    }
    dict.set(key.as_text(), std::move(value));
  }
  return runtime_.dict(std::move(dict));
}

Result<Value> Evaluator::eval_attribute(const Expr& expr) {
  AKV_ASSIGN_OR_RETURN(const Value object, eval(*expr.operands[0]));
  return get_attribute(object, expr.name);
}

Result<Value> Evaluator::eval_item(const Expr& expr) {
  AKV_ASSIGN_OR_RETURN(const Value object, eval(*expr.operands[0]));
  AKV_ASSIGN_OR_RETURN(const Value key, eval(*expr.operands[1]));
  return get_item(object, key);
}

Result<Value> Evaluator::eval_slice(const Expr& expr) {
  AKV_ASSIGN_OR_RETURN(const Value object, eval(*expr.operands[0]));
  Value parts[3];
  for (size_t i = 0; i < 3; ++i) {
    if (expr.operands[i + 1] == nullptr) continue;
    AKV_ASSIGN_OR_RETURN(parts[i], eval(*expr.operands[i + 1]));
  }
  return slice(runtime_, object, parts[0], parts[1], parts[2]);
}

Result<Args> Evaluator::eval_args(const Expr& expr, size_t first) {
  Args args;
  for (size_t i = first; i < expr.operands.size(); ++i) {
    AKV_ASSIGN_OR_RETURN(Value value, eval(*expr.operands[i]));
    args.positional.push_back(std::move(value));
  }
  for (const auto& [name, operand] : expr.named) {
    AKV_ASSIGN_OR_RETURN(Value value, eval(*operand));
    args.named.emplace_back(name, std::move(value));
  }
  line_ = expr.line;
  return args;
}

Result<Value> Evaluator::eval_call(const Expr& expr) {
  const Expr& callee = *expr.operands[0];
  if (callee.kind == ExprKind::kAttribute) {
    // A method: its object is the first argument, no bound function is made.
    AKV_ASSIGN_OR_RETURN(const Value object, eval(*callee.operands[0]));
    const Builtin* method = find_method(object, callee.name);
    if (method != nullptr) {
      AKV_ASSIGN_OR_RETURN(Args args, eval_args(expr, 1));
      args.positional.insert(args.positional.begin(), object);
      return call_builtin(runtime_, *method, args);
    }
    AKV_ASSIGN_OR_RETURN(const Value member, get_attribute(object, callee.name));
    if (!member.is_function()) {
      return make_error(Code::kUnsupported,
                        std::string(object.kind()) + " has no method \"" + callee.name + "\" here");
    }
    AKV_ASSIGN_OR_RETURN(const Args args, eval_args(expr, 1));
    return member.as_function().call(runtime_, args);
  }
  AKV_ASSIGN_OR_RETURN(const Value function, eval(callee));
  if (function.is_undefined()) {
    return make_error(Code::kUnsupported,
                      "there is no function \"" + function.undefined_name() + "\"");
  }
  if (!function.is_function()) {
    return type_error(std::string(function.kind()) + " cannot be called");
  }
  AKV_ASSIGN_OR_RETURN(const Args args, eval_args(expr, 1));
  return function.as_function().call(runtime_, args);
}

Result<Value> Evaluator::eval_builtin(const Expr& expr) {
  AKV_ASSIGN_OR_RETURN(const Args args, eval_args(expr, 0));
  return call_builtin(runtime_, *expr.builtin, args);
}

Result<Value> Evaluator::eval_sign(const Expr& expr) {
  AKV_ASSIGN_OR_RETURN(const Value value, eval(*expr.operands[0]));
  if (expr.kind == ExprKind::kNegate) {
    return arithmetic(runtime_, Op::kSub, Value::integer(0), value);
  }
  return arithmetic(runtime_, Op::kAdd, Value::integer(0), value);
}

// Python's `and` and `or` give the operand that decided.
Result<Value> Evaluator::eval_logic(const Expr& expr) {
  Value value;
  for (const auto& operand : expr.operands) {
    AKV_ASSIGN_OR_RETURN(value, eval(*operand));
    if (expr.kind == ExprKind::kNot) return Value::boolean(!value.truthy());
    if (value.truthy() == (expr.kind == ExprKind::kOr)) return value;
  }
  return value;
}

// a < b < c is a < b and b < c, each operand evaluated once.
Result<Value> Evaluator::eval_compare(const Expr& expr) {
  AKV_ASSIGN_OR_RETURN(Value left, eval(*expr.operands[0]));
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    AKV_ASSIGN_OR_RETURN(Value right, eval(*expr.operands[i + 1]));
    AKV_ASSIGN_OR_RETURN(const bool holds, compare(runtime_, expr.ops[i], left, right));
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Result<Value> Evaluator::eval_arithmetic(const Expr& expr) {
  AKV_ASSIGN_OR_RETURN(Value total, eval(*expr.operands[0]));
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    AKV_ASSIGN_OR_RETURN(const Value next, eval(*expr.operands[i + 1]));
    AKV_ASSIGN_OR_RETURN(total, arithmetic(runtime_, expr.ops[i], total, next));
  }
  return total;
}

Result<Value> Evaluator::eval_concat(const Expr& expr) {
  Text joined;
  for (const auto& operand : expr.operands) {
    AKV_ASSIGN_OR_RETURN(const Value value, eval(*operand));
    AKV_ASSIGN_OR_RETURN(const Text text, to_text(value));
    joined.append(text);
    AKV_RETURN_IF_ERROR(runtime_.reserve_text(1, joined.size()));
  }
  return runtime_.text(std::move(joined));
}

Result<Value> Evaluator::eval_conditional(const Expr& expr) {
  AKV_ASSIGN_OR_RETURN(const Value condition, eval(*expr.operands[0]));
  if (condition.truthy()) return eval(*expr.operands[1]);
  if (expr.operands[2] == nullptr) return Value::undefined("the missing else");
  return eval(*expr.operands[2]);
}

}  // namespace akv::model::jinja
