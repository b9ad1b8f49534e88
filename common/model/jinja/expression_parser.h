// The expression half of the parser: Jinja's precedence, from "x if y else z" down to literals.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/model/jinja/ast.h"
#include "common/model/jinja/lexer.h"

namespace akv::model::jinja {

// A position in the tokens; the last one, kEnd, is never passed.
class Cursor {
 public:
  explicit Cursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& peek(size_t ahead = 0) const;
  const Token& take();
  int line() const { return peek().line; }
  bool at(TokenKind kind) const { return peek().kind == kind; }
  bool at_name(std::string_view name) const;
  bool at_operator(std::string_view op) const;
  // Takes the token if it is this operator / name.
  bool take_operator(std::string_view op);
  bool take_name(std::string_view name);
  Status expect(TokenKind kind, std::string_view spelling);
  Status expect_name(std::string_view name);
  // An error at the current token, which it quotes.
  Error fail(std::string_view message) const;

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

class ExpressionParser {
 public:
  ExpressionParser(Cursor& cursor, int max_depth) : cursor_(cursor), max_depth_(max_depth) {}

  Result<ExprPtr> parse();           // one expression
  Result<ExprPtr> parse_tuple();     // one, or several with commas between: a tuple
  Result<ExprPtr> parse_iterable();  // without "x if y": the `if` of a for belongs to the loop

  // Tells, between the two, whether an expression read the variable `loop`.
  void enter_loop() { reads_loop_.push_back(false); }
  bool leave_loop();

 private:
  Result<ExprPtr> parse_or();
  Result<ExprPtr> parse_and();
  Result<ExprPtr> parse_not();
  Result<ExprPtr> parse_compare();
  Result<ExprPtr> parse_sum();
  Result<ExprPtr> parse_concat();
  Result<ExprPtr> parse_product();
  Result<ExprPtr> parse_power();
  Result<ExprPtr> parse_unary(bool with_filter);
  Result<ExprPtr> parse_primary();
  Result<ExprPtr> parse_name();
  Result<ExprPtr> parse_strings();
  Result<ExprPtr> parse_parentheses();
  Result<ExprPtr> parse_list();
  Result<ExprPtr> parse_dict();
  Result<ExprPtr> parse_postfix(ExprPtr expr);
  Result<ExprPtr> parse_filters(ExprPtr expr);
  Result<ExprPtr> parse_attribute(ExprPtr object);
  Result<ExprPtr> parse_subscript(ExprPtr object);
  Result<ExprPtr> parse_filter(ExprPtr input);
  Result<ExprPtr> parse_test(ExprPtr input);
  Status parse_call_args(Expr& call);

  using Level = Result<ExprPtr> (ExpressionParser::*)();
  struct Spelling {
    std::string_view text;
    Op op;
  };
  // operand (op operand)..., folded into one n-ary node so that long chains do not nest.
  Result<ExprPtr> parse_chain(Level operand, ExprKind kind, std::initializer_list<Spelling> ops);
  // Counts a level of nesting for as long as it lives.
  struct Nesting {
    explicit Nesting(int& depth) : depth_(++depth) {}
    ~Nesting() { --depth_; }
    int& depth_;
  };
  Status check_depth() const;

  Cursor& cursor_;
  int max_depth_;
  int depth_ = 0;
  std::vector<bool> reads_loop_;
};

}  // namespace akv::model::jinja
