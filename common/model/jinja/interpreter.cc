#include "common/model/jinja/interpreter.h"

#include "common/model/jinja/evaluator.h"
#include "common/model/jinja/lexer.h"

namespace akv::model::jinja {
namespace {

// What a statement does to the loop around it.
enum class Flow { kNext, kBreak, kContinue };

class Interpreter {
 public:
  explicit Interpreter(Runtime& runtime) : runtime_(runtime), evaluator_(runtime) {}

  Result<Text> run(const Block& block, const Variables& variables);

 private:
  Result<Flow> exec_block(const Block& block);
  Result<Flow> exec(const Stmt& stmt);
  Status output(const Stmt& stmt);
  Result<Flow> exec_if(const Stmt& stmt);
  Result<Flow> exec_for(const Stmt& stmt);
  Result<List> loop_items(const Stmt& stmt);
  Status bind_targets(const Stmt& stmt, const Value& value);
  Status set(const Stmt& stmt);
  Status set_attribute(const Stmt& stmt, Value value);
  Result<Value> capture(const Block& block);
  void define_macro(const Stmt& stmt);
  Result<Value> call_macro(const Stmt& macro, const Args& args);
  Status bind_params(const Stmt& macro, const Args& args);
  Status write(const Text& text);
  Error located(Error error) const;

  Runtime& runtime_;
  Evaluator evaluator_;
  Text* out_ = nullptr;
  int macro_depth_ = 0;
};

Error Interpreter::located(Error error) const {
  if (error.param == kRaised) {
    error.param = "messages";
    return error;
  }
  return template_error(error.code, evaluator_.line(), error.message);
}

Result<Text> Interpreter::run(const Block& block, const Variables& variables) {
  Text text;
  out_ = &text;
  evaluator_.push_scope();
  for (const auto& [name, value] : variables) evaluator_.set(name, value);
  evaluator_.push_scope();
  const auto flow = exec_block(block);
  if (!flow.ok()) return located(flow.error());
  return text;
}

Status Interpreter::write(const Text& text) {
  AKV_RETURN_IF_ERROR(runtime_.reserve_text(1, out_->size() + text.size()));
  out_->append(text);
  return {};
}

Result<Flow> Interpreter::exec_block(const Block& block) {
  for (const auto& stmt : block) {
    AKV_ASSIGN_OR_RETURN(const Flow flow, exec(*stmt));
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Result<Flow> Interpreter::exec(const Stmt& stmt) {
  evaluator_.set_line(stmt.line);
  AKV_RETURN_IF_ERROR(runtime_.charge(1));
  switch (stmt.kind) {
    case StmtKind::kText:
      AKV_RETURN_IF_ERROR(write(stmt.text));
      return Flow::kNext;
    case StmtKind::kOutput:
      AKV_RETURN_IF_ERROR(output(stmt));
      return Flow::kNext;
    case StmtKind::kIf:
      return exec_if(stmt);
    case StmtKind::kFor:
      return exec_for(stmt);
    case StmtKind::kSet:
    case StmtKind::kSetBlock:
      AKV_RETURN_IF_ERROR(set(stmt));
      return Flow::kNext;
    case StmtKind::kMacro:
      define_macro(stmt);
      return Flow::kNext;
    case StmtKind::kScope:
      return exec_block(stmt.body);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Status Interpreter::output(const Stmt& stmt) {
  AKV_ASSIGN_OR_RETURN(const Value value, evaluator_.eval(*stmt.expr));
  AKV_ASSIGN_OR_RETURN(const Text text, to_text(value));
  return write(text);
}

Result<Flow> Interpreter::exec_if(const Stmt& stmt) {
  for (const Branch& branch : stmt.branches) {
    AKV_ASSIGN_OR_RETURN(const Value condition, evaluator_.eval(*branch.condition));
    if (condition.truthy()) return exec_block(branch.body);
  }
  return exec_block(stmt.else_body);
}

Status Interpreter::bind_targets(const Stmt& stmt, const Value& value) {
  if (stmt.targets.size() == 1) {
    evaluator_.set(stmt.targets[0], value);
    return {};
  }
  AKV_ASSIGN_OR_RETURN(const List parts, iterate(runtime_, value));
  if (parts.size() != stmt.targets.size()) {
    return type_error("cannot unpack " + std::to_string(parts.size()) + " values into " +
                      std::to_string(stmt.targets.size()) + " names");
  }
  for (size_t i = 0; i < parts.size(); ++i) evaluator_.set(stmt.targets[i], parts[i]);
  return {};
}

// The elements that the loop visits: its `if` filters before the loop counts.
Result<List> Interpreter::loop_items(const Stmt& stmt) {
  AKV_ASSIGN_OR_RETURN(const Value value, evaluator_.eval(*stmt.expr));
  AKV_ASSIGN_OR_RETURN(List items, iterate(runtime_, value));
  if (stmt.condition == nullptr) return items;
  List kept;
  evaluator_.push_scope();
  for (const Value& item : items) {
    AKV_RETURN_IF_ERROR(bind_targets(stmt, item));
    AKV_ASSIGN_OR_RETURN(const Value passes, evaluator_.eval(*stmt.condition));
    if (passes.truthy()) kept.push_back(item);
  }
  evaluator_.pop_scope();
  return kept;
}

Value cycle_function(size_t index) {
  auto cycle = [index](Runtime&, const Args& args) -> Result<Value> {
    if (args.positional.empty()) return type_error("loop.cycle() needs values");
    return args.positional[index % args.positional.size()];
  };
  return Value::function(std::make_shared<Function>(Function{"cycle", cycle}));
}

Value loop_variable(const List& items, size_t i, int64_t depth) {
  const auto n = static_cast<int64_t>(items.size());
  const auto at = static_cast<int64_t>(i);
  Dict loop;
  const auto add = [&](std::string_view name, Value value) {
    loop.items.emplace_back(Text::literal(name), std::move(value));
  };
  add("index", Value::integer(at + 1));
  add("index0", Value::integer(at));
  add("revindex", Value::integer(n - at));
  add("revindex0", Value::integer(n - at - 1));
  add("first", Value::boolean(i == 0));
  add("last", Value::boolean(at + 1 == n));
  add("length", Value::integer(n));
  add("depth", Value::integer(depth));
  add("depth0", Value::integer(depth - 1));
  add("previtem", i > 0 ? items[i - 1] : Value::undefined("loop.previtem"));
  add("nextitem", at + 1 < n ? items[i + 1] : Value::undefined("loop.nextitem"));
  add("cycle", cycle_function(i));
  return Value::dict(std::move(loop));
}

Result<Flow> Interpreter::exec_for(const Stmt& stmt) {
  AKV_ASSIGN_OR_RETURN(const List items, loop_items(stmt));
  if (items.empty()) return exec_block(stmt.else_body);
  for (size_t i = 0; i < items.size(); ++i) {
    AKV_RETURN_IF_ERROR(runtime_.charge(1));
    evaluator_.push_scope();
    AKV_RETURN_IF_ERROR(bind_targets(stmt, items[i]));
    if (stmt.uses_loop) evaluator_.set("loop", loop_variable(items, i, 1));
    AKV_ASSIGN_OR_RETURN(const Flow flow, exec_block(stmt.body));
    evaluator_.pop_scope();
    if (flow == Flow::kBreak) break;
  }
  return Flow::kNext;
}

Result<Value> Interpreter::capture(const Block& block) {
  Text text;
  Text* outer = std::exchange(out_, &text);
  evaluator_.push_scope();
  const auto flow = exec_block(block);
  out_ = outer;
  if (!flow.ok()) return flow.error();
  evaluator_.pop_scope();
  return runtime_.text(std::move(text));
}

Status Interpreter::set(const Stmt& stmt) {
  auto value = stmt.kind == StmtKind::kSet ? evaluator_.eval(*stmt.expr) : capture(stmt.body);
  if (!value.ok()) return std::move(value).error();
  if (!stmt.attribute.empty()) return set_attribute(stmt, std::move(value).value());
  return bind_targets(stmt, value.value());
}

Status Interpreter::set_attribute(const Stmt& stmt, Value value) {
  const Value object = evaluator_.lookup(stmt.targets[0]);
  if (!object.is_namespace()) {
    return type_error("\"" + stmt.targets[0] + "\" is " + std::string(object.kind()) +
                      "; only attributes of a namespace can be set");
  }
  if (value.is_namespace() || value.is_function()) {
    return type_error(std::string(value.kind()) + " cannot be put into a namespace");
  }
  object.as_mutable_dict().set(Text::literal(stmt.attribute), std::move(value));
  return {};
}

void Interpreter::define_macro(const Stmt& stmt) {
  auto function = std::make_shared<Function>();
  function->name = stmt.name;
  function->call = [this, &stmt](Runtime&, const Args& args) { return call_macro(stmt, args); };
  evaluator_.set(stmt.name, Value::function(std::move(function)));
}

Status Interpreter::bind_params(const Stmt& macro, const Args& args) {
  if (args.positional.size() > macro.params.size()) {
    return type_error("macro \"" + macro.name + "\" takes " + std::to_string(macro.params.size()) +
                      " arguments at most");
  }
  for (size_t i = 0; i < macro.params.size(); ++i) {
    const Param& param = macro.params[i];
    Value value = Value::undefined(param.name);
    if (i < args.positional.size()) {
      value = args.positional[i];
    } else if (param.fallback != nullptr) {
      AKV_ASSIGN_OR_RETURN(value, evaluator_.eval(*param.fallback));
    }
    evaluator_.set(param.name, std::move(value));
  }
  for (const auto& [name, value] : args.named) {
    const bool known = std::any_of(macro.params.begin(), macro.params.end(),
                                   [&wanted = name](const Param& p) { return p.name == wanted; });
    if (!known) return type_error("macro \"" + macro.name + "\" has no argument \"" + name + "\"");
    evaluator_.set(name, value);
  }
  return {};
}

Result<Value> Interpreter::call_macro(const Stmt& macro, const Args& args) {
  if (++macro_depth_ > runtime_.limits().max_depth) {
    return make_error(Code::kResourceExhausted, "macros call each other too deep");
  }
  Text text;
  Text* outer = std::exchange(out_, &text);
  const size_t frame = evaluator_.enter_frame();
  AKV_RETURN_IF_ERROR(bind_params(macro, args));
  AKV_RETURN_IF_ERROR(exec_block(macro.body));
  evaluator_.leave_frame(frame);
  out_ = outer;
  --macro_depth_;
  return runtime_.text(std::move(text));
}

}  // namespace

Result<Text> render(const Block& block, const Variables& variables, Runtime& runtime) {
  return Interpreter(runtime).run(block, variables);
}

}  // namespace akv::model::jinja
