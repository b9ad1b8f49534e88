#include "common/model/jinja/parser.h"

#include <algorithm>

#include "common/model/jinja/expression_parser.h"

namespace akv::model::jinja {
namespace {

using StmtPtr = std::unique_ptr<Stmt>;

class TemplateParser {
 public:
  TemplateParser(std::vector<Token> tokens, int max_depth)
      : cursor_(std::move(tokens)), expressions_(cursor_, max_depth), max_depth_(max_depth) {}

  Result<Block> parse() {
    AKV_ASSIGN_OR_RETURN(Block block, parse_block({}));
    return block;
  }

 private:
  Result<Block> parse_block(std::vector<std::string_view> ends);
  Result<StmtPtr> parse_statement();
  Result<StmtPtr> parse_output();
  Result<StmtPtr> parse_if(StmtPtr stmt);
  Result<StmtPtr> parse_for(StmtPtr stmt);
  Result<StmtPtr> parse_set(StmtPtr stmt);
  Result<StmtPtr> parse_macro(StmtPtr stmt);
  Status parse_params(Stmt& macro);
  Status parse_targets(Stmt& stmt);
  Status end_tag() { return cursor_.expect(TokenKind::kBlockEnd, "%}"); }
  Status end_statement(std::string_view name) {
    AKV_RETURN_IF_ERROR(cursor_.expect_name(name));
    return end_tag();
  }

  Cursor cursor_;
  ExpressionParser expressions_;
  int max_depth_;
  int depth_ = 0;
  int loops_ = 0;
  int macros_ = 0;
};

StmtPtr make_stmt(StmtKind kind, int line) {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = kind;
  stmt->line = line;
  return stmt;
}

// Statements up to a tag whose name is in `ends`; that tag's "{%" is consumed, its name is next.
// Without `ends`: up to the end of the source.
Result<Block> TemplateParser::parse_block(std::vector<std::string_view> ends) {
  Block block;
  const int begin_line = cursor_.line();
  if (++depth_ > max_depth_) return cursor_.fail("statements are nested too deep");
  while (!cursor_.at(TokenKind::kEnd)) {
    if (cursor_.at(TokenKind::kData)) {
      auto stmt = make_stmt(StmtKind::kText, cursor_.line());
      stmt->text = Text::literal(cursor_.take().text);
      block.push_back(std::move(stmt));
    } else if (cursor_.at(TokenKind::kVariableBegin)) {
      AKV_ASSIGN_OR_RETURN(auto stmt, parse_output());
      block.push_back(std::move(stmt));
    } else {
      AKV_RETURN_IF_ERROR(cursor_.expect(TokenKind::kBlockBegin, "{%"));
      const bool ended = std::any_of(ends.begin(), ends.end(),
                                     [&](std::string_view e) { return cursor_.at_name(e); });
      if (ended) {
        --depth_;
        return block;
      }
      AKV_ASSIGN_OR_RETURN(auto stmt, parse_statement());
      block.push_back(std::move(stmt));
    }
  }
  if (!ends.empty()) {
    return template_error(Code::kInvalidArgument, begin_line,
                          "no {% " + std::string(ends.back()) + " %} follows");
  }
  --depth_;
  return block;
}

Result<StmtPtr> TemplateParser::parse_output() {
  auto stmt = make_stmt(StmtKind::kOutput, cursor_.line());
  cursor_.take();
  AKV_ASSIGN_OR_RETURN(stmt->expr, expressions_.parse_tuple());
  AKV_RETURN_IF_ERROR(cursor_.expect(TokenKind::kVariableEnd, "}}"));
  return stmt;
}

Result<StmtPtr> TemplateParser::parse_statement() {
  if (!cursor_.at(TokenKind::kName)) return cursor_.fail("a statement's name must follow \"{%\"");
  const int line = cursor_.line();
  const std::string name = cursor_.take().text;
  if (name == "if") return parse_if(make_stmt(StmtKind::kIf, line));
  if (name == "for") return parse_for(make_stmt(StmtKind::kFor, line));
  if (name == "set") return parse_set(make_stmt(StmtKind::kSet, line));
  if (name == "macro") return parse_macro(make_stmt(StmtKind::kMacro, line));
  if (name == "break" || name == "continue") {
    if (loops_ == 0) return cursor_.fail("\"" + name + "\" outside of a loop");
    AKV_RETURN_IF_ERROR(end_tag());
    return make_stmt(name == "break" ? StmtKind::kBreak : StmtKind::kContinue, line);
  }
  if (name == "generation") {  // marks the assistant's words for training; prints them as they are
    AKV_RETURN_IF_ERROR(end_tag());
    auto stmt = make_stmt(StmtKind::kScope, line);
    AKV_ASSIGN_OR_RETURN(stmt->body, parse_block({"endgeneration"}));
    AKV_RETURN_IF_ERROR(end_statement("endgeneration"));
    return stmt;
  }
  constexpr std::string_view kJinja[] = {"block",      "extends", "include", "import",
                                         "from",       "filter",  "call",    "with",
                                         "autoescape", "do",      "trans",   "debug"};
  if (std::find(std::begin(kJinja), std::end(kJinja), name) != std::end(kJinja)) {
    return template_error(Code::kUnsupported, line,
                          "the statement {% " + name + " %} is not implemented");
  }
  return template_error(Code::kInvalidArgument, line, "unexpected {% " + name + " %}");
}

Result<StmtPtr> TemplateParser::parse_if(StmtPtr stmt) {
  while (true) {
    Branch branch;
    AKV_ASSIGN_OR_RETURN(branch.condition, expressions_.parse_tuple());
    AKV_RETURN_IF_ERROR(end_tag());
    AKV_ASSIGN_OR_RETURN(branch.body, parse_block({"elif", "else", "endif"}));
    stmt->branches.push_back(std::move(branch));
    if (!cursor_.at_name("elif")) break;
    cursor_.take();
  }
  if (cursor_.at_name("else")) {
    cursor_.take();
    AKV_RETURN_IF_ERROR(end_tag());
    AKV_ASSIGN_OR_RETURN(stmt->else_body, parse_block({"endif"}));
  }
  AKV_RETURN_IF_ERROR(end_statement("endif"));
  return stmt;
}

// name [, name]... or (name, name)
Status TemplateParser::parse_targets(Stmt& stmt) {
  const bool parenthesised = cursor_.take_operator("(");
  do {
    if (!cursor_.at(TokenKind::kName)) return cursor_.fail("a variable's name is missing");
    stmt.targets.push_back(cursor_.take().text);
  } while (cursor_.take_operator(","));
  if (parenthesised && !cursor_.take_operator(")")) return cursor_.fail("\")\" is missing");
  return {};
}

Result<StmtPtr> TemplateParser::parse_for(StmtPtr stmt) {
  AKV_RETURN_IF_ERROR(parse_targets(*stmt));
  AKV_RETURN_IF_ERROR(cursor_.expect_name("in"));
  AKV_ASSIGN_OR_RETURN(stmt->expr, expressions_.parse_iterable());
  if (cursor_.at_name("if")) {
    cursor_.take();
    AKV_ASSIGN_OR_RETURN(stmt->condition, expressions_.parse());
  }
  if (cursor_.at_name("recursive")) {
    return template_error(Code::kUnsupported, stmt->line, "recursive loops are not implemented");
  }
  AKV_RETURN_IF_ERROR(end_tag());
  expressions_.enter_loop();
  ++loops_;
  auto body = parse_block({"else", "endfor"});
  --loops_;
  stmt->uses_loop = expressions_.leave_loop();
  if (!body.ok()) return std::move(body).error();
  stmt->body = std::move(body).value();
  if (cursor_.at_name("else")) {
    cursor_.take();
    AKV_RETURN_IF_ERROR(end_tag());
    AKV_ASSIGN_OR_RETURN(stmt->else_body, parse_block({"endfor"}));
  }
  AKV_RETURN_IF_ERROR(end_statement("endfor"));
  return stmt;
}

Result<StmtPtr> TemplateParser::parse_set(StmtPtr stmt) {
  AKV_RETURN_IF_ERROR(parse_targets(*stmt));
  if (stmt->targets.size() == 1 && cursor_.take_operator(".")) {
    if (!cursor_.at(TokenKind::kName)) return cursor_.fail("an attribute's name is missing");
    stmt->attribute = cursor_.take().text;
  }
  if (cursor_.take_operator("=")) {
    AKV_ASSIGN_OR_RETURN(stmt->expr, expressions_.parse_tuple());
    AKV_RETURN_IF_ERROR(end_tag());
    return stmt;
  }
  stmt->kind = StmtKind::kSetBlock;
  if (cursor_.at_operator("|")) {
    return template_error(Code::kUnsupported, stmt->line,
                          "a filter on a {% set %} block is not implemented");
  }
  if (stmt->targets.size() != 1) return cursor_.fail("\"=\" is missing");
  AKV_RETURN_IF_ERROR(end_tag());
  AKV_ASSIGN_OR_RETURN(stmt->body, parse_block({"endset"}));
  AKV_RETURN_IF_ERROR(end_statement("endset"));
  return stmt;
}

Status TemplateParser::parse_params(Stmt& macro) {
  if (!cursor_.take_operator("(")) return cursor_.fail("\"(\" is missing");
  while (!cursor_.take_operator(")")) {
    if (!macro.params.empty() && !cursor_.take_operator(",")) {
      return cursor_.fail("\",\" or \")\" is missing");
    }
    if (!cursor_.at(TokenKind::kName)) return cursor_.fail("a parameter's name is missing");
    Param param;
    param.name = cursor_.take().text;
    if (cursor_.take_operator("=")) {
      AKV_ASSIGN_OR_RETURN(param.fallback, expressions_.parse());
    }
    macro.params.push_back(std::move(param));
  }
  return {};
}

Result<StmtPtr> TemplateParser::parse_macro(StmtPtr stmt) {
  // A macro sees the template's own variables; one that would have to remember a loop's or
  // another macro's variables is refused rather than done almost right.
  if (loops_ > 0 || macros_ > 0) {
    return template_error(Code::kUnsupported, stmt->line,
                          "a {% macro %} inside a loop or a macro is not implemented");
  }
  if (!cursor_.at(TokenKind::kName)) return cursor_.fail("the macro's name is missing");
  stmt->name = cursor_.take().text;
  AKV_RETURN_IF_ERROR(parse_params(*stmt));
  AKV_RETURN_IF_ERROR(end_tag());
  ++macros_;
  auto body = parse_block({"endmacro"});
  --macros_;
  if (!body.ok()) return std::move(body).error();
  stmt->body = std::move(body).value();
  AKV_RETURN_IF_ERROR(cursor_.expect_name("endmacro"));
  if (cursor_.at_name(stmt->name)) cursor_.take();
  AKV_RETURN_IF_ERROR(end_tag());
  return stmt;
}

}  // namespace

Result<Block> parse_template(std::string_view source, int max_depth) {
  AKV_ASSIGN_OR_RETURN(auto tokens, tokenize(source));
  return TemplateParser(std::move(tokens), max_depth).parse();
}

}  // namespace akv::model::jinja
