#include "common/model/jinja/expression_parser.h"

#include "common/model/jinja/runtime.h"

namespace akv::model::jinja {
namespace {

ExprPtr make_expr(ExprKind kind, int line) {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  return expr;
}

ExprPtr make_expr(ExprKind kind, ExprPtr operand) {
  auto expr = make_expr(kind, operand->line);
  expr->operands.push_back(std::move(operand));
  return expr;
}

ExprPtr make_constant(int line, Value value) {
  auto expr = make_expr(ExprKind::kConstant, line);
  expr->constant = std::move(value);
  return expr;
}

}  // namespace

const Token& Cursor::peek(size_t ahead) const {
  return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
}

const Token& Cursor::take() {
  const Token& token = peek();
  if (token.kind != TokenKind::kEnd) ++at_;
  return token;
}

bool Cursor::at_name(std::string_view name) const {
  return at(TokenKind::kName) && peek().text == name;
}

bool Cursor::at_operator(std::string_view op) const {
  return at(TokenKind::kOperator) && peek().text == op;
}

bool Cursor::take_operator(std::string_view op) {
  if (!at_operator(op)) return false;
  take();
  return true;
}

bool Cursor::take_name(std::string_view name) {
  if (!at_name(name)) return false;
  take();
  return true;
}

Status Cursor::expect(TokenKind kind, std::string_view spelling) {
  if (!at(kind)) return fail("\"" + std::string(spelling) + "\" is missing");
  take();
  return {};
}

Status Cursor::expect_name(std::string_view name) {
  if (!at_name(name)) return fail("\"" + std::string(name) + "\" is missing");
  take();
  return {};
}

Error Cursor::fail(std::string_view message) const {
  std::string where;
  switch (peek().kind) {
    case TokenKind::kEnd:
      where = " at the end of the template";
      break;
    case TokenKind::kVariableEnd:
      where = " before \"}}\"";
      break;
    case TokenKind::kBlockEnd:
      where = " before \"%}\"";
      break;
    default:
      where = " before \"" + peek().text.substr(0, 40) + "\"";
  }
  return template_error(Code::kInvalidArgument, line(), std::string(message) + where);
}

Status ExpressionParser::check_depth() const {
  if (depth_ > max_depth_) return cursor_.fail("an expression is nested too deep");
  return {};
}

bool ExpressionParser::leave_loop() {
  const bool reads = reads_loop_.back();
  reads_loop_.pop_back();
  return reads;
}

// Jinja's "a if b else c", chained from the left, "else" being optional.
Result<ExprPtr> ExpressionParser::parse() {
  const Nesting nesting(depth_);
  AKV_RETURN_IF_ERROR(check_depth());
  AKV_ASSIGN_OR_RETURN(ExprPtr expr, parse_or());
  for (int links = 0; cursor_.take_name("if"); ++links) {
    if (links > max_depth_) return cursor_.fail("an expression is nested too deep");
    auto conditional = make_expr(ExprKind::kConditional, cursor_.line());
    conditional->operands.resize(3);
    conditional->operands[1] = std::move(expr);
    AKV_ASSIGN_OR_RETURN(conditional->operands[0], parse_or());
    if (cursor_.take_name("else")) {
      AKV_ASSIGN_OR_RETURN(conditional->operands[2], parse());
    }
    expr = std::move(conditional);
  }
  return expr;
}

Result<ExprPtr> ExpressionParser::parse_tuple() {
  AKV_ASSIGN_OR_RETURN(ExprPtr expr, parse());
  if (!cursor_.at_operator(",")) return expr;
  auto tuple = make_expr(ExprKind::kList, std::move(expr));
  tuple->name = "tuple";
  while (cursor_.take_operator(",")) {
    const bool ends = cursor_.at_operator(")") || cursor_.at(TokenKind::kBlockEnd) ||
                      cursor_.at(TokenKind::kVariableEnd);
    if (ends) break;
    AKV_ASSIGN_OR_RETURN(ExprPtr next, parse());
    tuple->operands.push_back(std::move(next));
  }
  return tuple;
}

Result<ExprPtr> ExpressionParser::parse_iterable() {
  AKV_ASSIGN_OR_RETURN(ExprPtr expr, parse_or());
  if (!cursor_.at_operator(",")) return expr;
  auto tuple = make_expr(ExprKind::kList, std::move(expr));
  tuple->name = "tuple";
  while (cursor_.take_operator(",")) {
    AKV_ASSIGN_OR_RETURN(ExprPtr next, parse_or());
    tuple->operands.push_back(std::move(next));
  }
  return tuple;
}

Result<ExprPtr> ExpressionParser::parse_or() {
  AKV_ASSIGN_OR_RETURN(ExprPtr first, parse_and());
  if (!cursor_.at_name("or")) return first;
  auto chain = make_expr(ExprKind::kOr, std::move(first));
  while (cursor_.take_name("or")) {
    AKV_ASSIGN_OR_RETURN(ExprPtr next, parse_and());
    chain->operands.push_back(std::move(next));
  }
  return chain;
}

Result<ExprPtr> ExpressionParser::parse_and() {
  AKV_ASSIGN_OR_RETURN(ExprPtr first, parse_not());
  if (!cursor_.at_name("and")) return first;
  auto chain = make_expr(ExprKind::kAnd, std::move(first));
  while (cursor_.take_name("and")) {
    AKV_ASSIGN_OR_RETURN(ExprPtr next, parse_not());
    chain->operands.push_back(std::move(next));
  }
  return chain;
}

Result<ExprPtr> ExpressionParser::parse_not() {
  if (!cursor_.take_name("not")) return parse_compare();
  const Nesting nesting(depth_);
  AKV_RETURN_IF_ERROR(check_depth());
  AKV_ASSIGN_OR_RETURN(ExprPtr operand, parse_not());
  return make_expr(ExprKind::kNot, std::move(operand));
}

Result<ExprPtr> ExpressionParser::parse_chain(Level operand, ExprKind kind,
                                              std::initializer_list<Spelling> ops) {
  AKV_ASSIGN_OR_RETURN(ExprPtr first, (this->*operand)());
  ExprPtr chain;
  while (true) {
    const Spelling* found = nullptr;
    for (const Spelling& s : ops) {
      if (cursor_.take_operator(s.text)) {
        found = &s;
        break;
      }
    }
    if (found == nullptr) return chain != nullptr ? std::move(chain) : std::move(first);
    if (chain == nullptr) chain = make_expr(kind, std::move(first));
    AKV_ASSIGN_OR_RETURN(ExprPtr next, (this->*operand)());
    chain->operands.push_back(std::move(next));
    chain->ops.push_back(found->op);
  }
}

Result<ExprPtr> ExpressionParser::parse_compare() {
  AKV_ASSIGN_OR_RETURN(ExprPtr first, parse_sum());
  auto chain = make_expr(ExprKind::kCompare, std::move(first));
  constexpr Spelling kOps[] = {{"==", Op::kEq}, {"!=", Op::kNe}, {"<=", Op::kLe},
                               {">=", Op::kGe}, {"<", Op::kLt},  {">", Op::kGt}};
  while (true) {
    const size_t ops = chain->ops.size();
    for (const Spelling& s : kOps) {
      if (chain->ops.size() == ops && cursor_.take_operator(s.text)) chain->ops.push_back(s.op);
    }
    if (chain->ops.size() == ops && cursor_.take_name("in")) chain->ops.push_back(Op::kIn);
    const Token& next = cursor_.peek(1);
    if (chain->ops.size() == ops && cursor_.at_name("not") && next.kind == TokenKind::kName &&
        next.text == "in") {
      cursor_.take();
      cursor_.take();
      chain->ops.push_back(Op::kNotIn);
    }
    if (chain->ops.size() == ops) break;
    AKV_ASSIGN_OR_RETURN(ExprPtr operand, parse_sum());
    chain->operands.push_back(std::move(operand));
  }
  if (chain->ops.empty()) return std::move(chain->operands[0]);
  return chain;
}

Result<ExprPtr> ExpressionParser::parse_sum() {
  return parse_chain(&ExpressionParser::parse_concat, ExprKind::kArithmetic,
                     {{"+", Op::kAdd}, {"-", Op::kSub}});
}

Result<ExprPtr> ExpressionParser::parse_concat() {
  return parse_chain(&ExpressionParser::parse_product, ExprKind::kConcat, {{"~", Op::kAdd}});
}

Result<ExprPtr> ExpressionParser::parse_product() {
  return parse_chain(&ExpressionParser::parse_power, ExprKind::kArithmetic,
                     {{"*", Op::kMul}, {"//", Op::kFloorDiv}, {"/", Op::kDiv}, {"%", Op::kMod}});
}

Result<ExprPtr> ExpressionParser::parse_power() {
  AKV_ASSIGN_OR_RETURN(ExprPtr first, parse_unary(true));
  if (!cursor_.at_operator("**")) return first;
  auto chain = make_expr(ExprKind::kArithmetic, std::move(first));
  while (cursor_.take_operator("**")) {
    AKV_ASSIGN_OR_RETURN(ExprPtr next, parse_unary(true));
    chain->operands.push_back(std::move(next));
    chain->ops.push_back(Op::kPow);
  }
  return chain;
}

Result<ExprPtr> ExpressionParser::parse_unary(bool with_filter) {
  const Nesting nesting(depth_);
  AKV_RETURN_IF_ERROR(check_depth());
  ExprPtr expr;
  const bool negates = cursor_.at_operator("-");
  if (negates || cursor_.at_operator("+")) {
    cursor_.take();
    AKV_ASSIGN_OR_RETURN(ExprPtr operand, parse_unary(false));
    expr = make_expr(negates ? ExprKind::kNegate : ExprKind::kPlus, std::move(operand));
  } else {
    AKV_ASSIGN_OR_RETURN(expr, parse_primary());
  }
  AKV_ASSIGN_OR_RETURN(expr, parse_postfix(std::move(expr)));
  if (!with_filter) return expr;
  return parse_filters(std::move(expr));
}

Result<ExprPtr> ExpressionParser::parse_primary() {
  const int line = cursor_.line();
  switch (cursor_.peek().kind) {
    case TokenKind::kName:
      return parse_name();
    case TokenKind::kString:
      return parse_strings();
    case TokenKind::kInteger:
      return make_constant(line, Value::integer(cursor_.take().integer));
    case TokenKind::kReal:
      return make_constant(line, Value::real(cursor_.take().real));
    default:
      break;
  }
  if (cursor_.at_operator("(")) return parse_parentheses();
  if (cursor_.at_operator("[")) return parse_list();
  if (cursor_.at_operator("{")) return parse_dict();
  return cursor_.fail("an expression is missing");
}

Result<ExprPtr> ExpressionParser::parse_name() {
  const Token& token = cursor_.take();
  const std::string& s = token.text;
  if (s == "true" || s == "True") return make_constant(token.line, Value::boolean(true));
  if (s == "false" || s == "False") return make_constant(token.line, Value::boolean(false));
  if (s == "none" || s == "None") return make_constant(token.line, Value::none());
  if (s == "loop" && !reads_loop_.empty()) reads_loop_.back() = true;
  auto expr = make_expr(ExprKind::kName, token.line);
  expr->name = s;
  return expr;
}

Result<ExprPtr> ExpressionParser::parse_strings() {
  const int line = cursor_.line();
  std::string joined;
  while (cursor_.at(TokenKind::kString)) joined += cursor_.take().text;
  return make_constant(line, Value::literal(joined));
}

Result<ExprPtr> ExpressionParser::parse_parentheses() {
  const int line = cursor_.line();
  cursor_.take();
  if (cursor_.take_operator(")")) {
    auto empty = make_expr(ExprKind::kList, line);
    empty->name = "tuple";
    return empty;
  }
  AKV_ASSIGN_OR_RETURN(ExprPtr expr, parse_tuple());
  if (!cursor_.take_operator(")")) return cursor_.fail("\")\" is missing");
  return expr;
}

Result<ExprPtr> ExpressionParser::parse_list() {
  auto list = make_expr(ExprKind::kList, cursor_.line());
  cursor_.take();
  while (!cursor_.take_operator("]")) {
    if (!list->operands.empty() && !cursor_.take_operator(",")) {
      return cursor_.fail("\",\" or \"]\" is missing");
    }
    if (cursor_.take_operator("]")) break;
    AKV_ASSIGN_OR_RETURN(ExprPtr item, parse());
    list->operands.push_back(std::move(item));
  }
  return list;
}

Result<ExprPtr> ExpressionParser::parse_dict() {
  auto dict = make_expr(ExprKind::kDict, cursor_.line());
  cursor_.take();
  while (!cursor_.take_operator("}")) {
    if (!dict->operands.empty() && !cursor_.take_operator(",")) {
      return cursor_.fail("\",\" or \"}\" is missing");
    }
    if (cursor_.take_operator("}")) break;
    AKV_ASSIGN_OR_RETURN(ExprPtr key, parse());
    if (!cursor_.take_operator(":")) return cursor_.fail("\":\" is missing");
    AKV_ASSIGN_OR_RETURN(ExprPtr value, parse());
    dict->operands.push_back(std::move(key));
    dict->operands.push_back(std::move(value));
  }
  return dict;
}

Result<ExprPtr> ExpressionParser::parse_postfix(ExprPtr expr) {
  for (int links = 0;; ++links) {
    if (links > max_depth_) return cursor_.fail("an expression is nested too deep");
    if (cursor_.at_operator(".")) {
      AKV_ASSIGN_OR_RETURN(expr, parse_attribute(std::move(expr)));
    } else if (cursor_.at_operator("[")) {
      AKV_ASSIGN_OR_RETURN(expr, parse_subscript(std::move(expr)));
    } else if (cursor_.at_operator("(")) {
      auto call = make_expr(ExprKind::kCall, std::move(expr));
      AKV_RETURN_IF_ERROR(parse_call_args(*call));
      expr = std::move(call);
    } else {
      return expr;
    }
  }
}

Result<ExprPtr> ExpressionParser::parse_attribute(ExprPtr object) {
  cursor_.take();
  if (cursor_.at(TokenKind::kInteger)) {
    auto item = make_expr(ExprKind::kItem, std::move(object));
    item->operands.push_back(make_constant(item->line, Value::integer(cursor_.take().integer)));
    return item;
  }
  if (!cursor_.at(TokenKind::kName)) return cursor_.fail("an attribute's name is missing");
  auto attribute = make_expr(ExprKind::kAttribute, std::move(object));
  attribute->name = cursor_.take().text;
  return attribute;
}

// [expr] or [begin:end:step], each part of a slice being optional.
Result<ExprPtr> ExpressionParser::parse_subscript(ExprPtr object) {
  cursor_.take();
  ExprPtr parts[3];
  int part = 0;
  bool is_slice = false;
  while (!cursor_.at_operator("]")) {
    if (cursor_.take_operator(":")) {
      is_slice = true;
      if (++part == 3) return cursor_.fail("a slice has three parts at most");
      continue;
    }
    if (parts[part] != nullptr) return cursor_.fail("\"]\" is missing");
    AKV_ASSIGN_OR_RETURN(parts[part], parse());
  }
  cursor_.take();
  if (!is_slice && parts[0] == nullptr) return cursor_.fail("an index is missing");
  auto expr = make_expr(is_slice ? ExprKind::kSlice : ExprKind::kItem, std::move(object));
  for (int i = 0; i < (is_slice ? 3 : 1); ++i) expr->operands.push_back(std::move(parts[i]));
  return expr;
}

Status ExpressionParser::parse_call_args(Expr& call) {
  cursor_.take();
  for (bool first = true; !cursor_.take_operator(")"); first = false) {
    if (!first && !cursor_.take_operator(",")) return cursor_.fail("\",\" or \")\" is missing");
    if (cursor_.take_operator(")")) break;
    if (cursor_.at_operator("*") || cursor_.at_operator("**")) {
      return template_error(Code::kUnsupported, cursor_.line(),
                            "unpacking arguments with * or ** is not implemented");
    }
    const Token& next = cursor_.peek(1);
    std::string name;
    if (cursor_.at(TokenKind::kName) && next.kind == TokenKind::kOperator && next.text == "=") {
      name = cursor_.take().text;
      cursor_.take();
    }
    AKV_ASSIGN_OR_RETURN(ExprPtr value, parse());
    if (!name.empty()) {
      call.named.emplace_back(std::move(name), std::move(value));
    } else if (!call.named.empty()) {
      return cursor_.fail("a positional argument follows a named one");
    } else {
      call.operands.push_back(std::move(value));
    }
  }
  return {};
}

Result<ExprPtr> ExpressionParser::parse_filters(ExprPtr expr) {
  for (int links = 0;; ++links) {
    if (links > max_depth_) return cursor_.fail("an expression is nested too deep");
    if (cursor_.at_operator("|")) {
      AKV_ASSIGN_OR_RETURN(expr, parse_filter(std::move(expr)));
    } else if (cursor_.at_name("is")) {
      AKV_ASSIGN_OR_RETURN(expr, parse_test(std::move(expr)));
    } else if (cursor_.at_operator("(")) {
      auto call = make_expr(ExprKind::kCall, std::move(expr));
      AKV_RETURN_IF_ERROR(parse_call_args(*call));
      expr = std::move(call);
    } else {
      return expr;
    }
  }
}

Result<ExprPtr> ExpressionParser::parse_filter(ExprPtr input) {
  cursor_.take();
  if (!cursor_.at(TokenKind::kName)) return cursor_.fail("a filter's name is missing");
  auto filter = make_expr(ExprKind::kFilter, std::move(input));
  filter->line = cursor_.line();
  filter->name = cursor_.take().text;
  filter->builtin = find_filter(filter->name);
  if (filter->builtin == nullptr) {
    return template_error(Code::kUnsupported, filter->line,
                          "the filter \"" + filter->name + "\" is not implemented");
  }
  if (cursor_.at_operator("(")) AKV_RETURN_IF_ERROR(parse_call_args(*filter));
  return filter;
}

Result<ExprPtr> ExpressionParser::parse_test(ExprPtr input) {
  cursor_.take();
  const bool negated = cursor_.take_name("not");
  if (!cursor_.at(TokenKind::kName)) return cursor_.fail("a test's name is missing");
  auto test = make_expr(ExprKind::kTest, std::move(input));
  test->line = cursor_.line();
  test->name = cursor_.take().text;
  test->builtin = find_test(test->name);
  if (test->builtin == nullptr) {
    return template_error(Code::kUnsupported, test->line,
                          "the test \"" + test->name + "\" is not implemented");
  }
  // One argument may stand without parentheses: "x is divisibleby 3".
  const bool bare = cursor_.at(TokenKind::kString) || cursor_.at(TokenKind::kInteger) ||
                    cursor_.at(TokenKind::kReal) || cursor_.at_operator("[") ||
                    cursor_.at_operator("{") ||
                    (cursor_.at(TokenKind::kName) && !cursor_.at_name("else") &&
                     !cursor_.at_name("or") && !cursor_.at_name("and") && !cursor_.at_name("is") &&
                     !cursor_.at_name("if") && !cursor_.at_name("in") && !cursor_.at_name("not"));
  if (cursor_.at_operator("(")) {
    AKV_RETURN_IF_ERROR(parse_call_args(*test));
  } else if (bare) {
    AKV_ASSIGN_OR_RETURN(ExprPtr argument, parse_primary());
    AKV_ASSIGN_OR_RETURN(argument, parse_postfix(std::move(argument)));
    test->operands.push_back(std::move(argument));
  }
  if (!negated) return test;
  return make_expr(ExprKind::kNot, std::move(test));
}

}  // namespace akv::model::jinja
