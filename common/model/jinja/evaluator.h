// Evaluates expressions in nested scopes.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/model/jinja/ast.h"
#include "common/model/jinja/runtime.h"

namespace akv::model::jinja {

// After an error nothing is unwound: the rendering is over.
class Evaluator {
 public:
  explicit Evaluator(Runtime& runtime) : runtime_(runtime) {}

  Result<Value> eval(const Expr& expr);

  // Scopes: 0 holds the inputs, 1 what the template sets at its top, the others nest inside.
  void push_scope() { scopes_.emplace_back(); }
  void pop_scope() { scopes_.pop_back(); }
  // A macro's body sees its own scopes and the first two; returns what leave_frame needs.
  size_t enter_frame();
  void leave_frame(size_t outer);
  void set(std::string_view name, Value value);  // in the innermost scope
  Value lookup(const std::string& name) const;

  // The line being worked on, for messages.
  int line() const { return line_; }
  void set_line(int line) { line_ = line; }

 private:
  Result<Value> eval_node(const Expr& expr);
  Result<Value> eval_list(const Expr& expr);
  Result<Value> eval_dict(const Expr& expr);
  Result<Value> eval_attribute(const Expr& expr);
  Result<Value> eval_item(const Expr& expr);
  Result<Value> eval_slice(const Expr& expr);
  Result<Value> eval_call(const Expr& expr);
  Result<Value> eval_builtin(const Expr& expr);
  Result<Value> eval_sign(const Expr& expr);
  Result<Value> eval_logic(const Expr& expr);
  Result<Value> eval_compare(const Expr& expr);
  Result<Value> eval_arithmetic(const Expr& expr);
  Result<Value> eval_concat(const Expr& expr);
  Result<Value> eval_conditional(const Expr& expr);
  // The operands from `first` on and the named ones.
  Result<Args> eval_args(const Expr& expr, size_t first);

  using Scope = std::vector<std::pair<std::string, Value>>;
  const Value* find_in(const Scope& scope, const std::string& name) const;

  Runtime& runtime_;
  std::vector<Scope> scopes_;
  size_t frame_ = 0;  // the first scope of the macro that runs
  int line_ = 0;
  int depth_ = 0;
};

// a op b for numbers, and string or list times integer.
Result<Value> arithmetic(Runtime& runtime, Op op, const Value& a, const Value& b);
// Python's value[begin:end:step]; the parts may be undefined or none.
Result<Value> slice(Runtime& runtime, const Value& value, const Value& begin, const Value& end,
                    const Value& step);

}  // namespace akv::model::jinja
