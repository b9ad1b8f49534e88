// The parsed template. Built by the parser, immutable afterwards.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/model/jinja/value.h"

namespace akv::model::jinja {

struct Builtin;  // runtime.h

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind {
  kConstant,     // constant
  kName,         // name
  kList,         // operands; a tuple if name is "tuple"
  kDict,         // operands: key, value, key, value, ...
  kAttribute,    // operands[0].name
  kItem,         // operands[0][operands[1]]
  kSlice,        // operands[0][operands[1]:operands[2]:operands[3]], null where left out
  kCall,         // operands[0](operands[1]..., named...)
  kFilter,       // operands[0] | builtin(operands[1]..., named...)
  kTest,         // operands[0] is builtin(operands[1]..., named...)
  kNegate,       // -operands[0]
  kPlus,         // +operands[0]
  kNot,          // not operands[0]
  kAnd,          // operands[0] and operands[1] and ...
  kOr,           // operands[0] or operands[1] or ...
  kCompare,      // operands[0] ops[0] operands[1] ops[1] operands[2] ...
  kArithmetic,   // the same, folded from the left
  kConcat,       // operands[0] ~ operands[1] ~ ...
  kConditional,  // operands[1] if operands[0] else operands[2], which may be null
};

enum class Op {
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kIn,
  kNotIn,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow
};

struct Expr {
  ExprKind kind;
  int line;
  std::string name;
  Value constant;
  std::vector<ExprPtr> operands;
  std::vector<Op> ops;
  std::vector<std::pair<std::string, ExprPtr>> named;
  const Builtin* builtin = nullptr;
};

struct Stmt;
using Block = std::vector<std::unique_ptr<Stmt>>;

enum class StmtKind {
  kText,      // text
  kOutput,    // {{ expr }}
  kIf,        // branches, else_body
  kFor,       // for targets in expr [if condition]: body, else_body
  kSet,       // set targets = expr, or set name.attribute = expr
  kSetBlock,  // set targets[0]: body
  kMacro,     // macro name(params): body
  kScope,     // body without a meaning of its own (generation)
  kBreak,
  kContinue,
};

struct Branch {
  ExprPtr condition;
  Block body;
};

struct Param {
  std::string name;
  ExprPtr fallback;  // null: undefined if not given
};

struct Stmt {
  StmtKind kind;
  int line;
  Text text;
  ExprPtr expr;
  ExprPtr condition;
  std::string name;
  std::string attribute;
  std::vector<std::string> targets;
  std::vector<Param> params;
  std::vector<Branch> branches;
  Block body;
  Block else_body;
  bool uses_loop = false;  // the body reads the variable `loop`
};

}  // namespace akv::model::jinja
