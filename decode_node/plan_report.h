// --plan: what a deployment needs, from the model, a prompt length and a few figures of a load,
// before any machine is rented. The formulas stand in deploy/README.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/base/result.h"
#include "common/kv/plan.h"

namespace akv::decode {

// One kind of request and what serves it. Rates of 0 are unknown: what depends on them is left out.
struct PlanLoad {
  int64_t prompt_tokens = 7500;
  int64_t answer_tokens = 256;
  double link_gbit_per_s = 1;        // between a prefill and a decode node, 10^9 bits
  double requests_per_s = 0;         // over the whole deployment
  double prefill_tokens_per_s = 0;   // of one prefill node
  double decode_tokens_per_s = 0;    // of one decode node, all its sessions together
  double session_tokens_per_s = 20;  // of one stream: how long a session lives
};

// What one decode node gives and how it shares it.
struct PlanNode {
  uint64_t capacity_bytes = 0;  // --max-state-bytes
  double page_share = 0;        // of it, never given to states
  uint64_t page_bytes = 0;      // of a suffix page, all layers
  int64_t max_sessions = 0;
};

struct Sizing {
  int64_t suffix_pages = 0;      // of a whole answer
  int64_t sessions = 0;          // at once on one decode node, each with its whole answer
  int64_t dense_sessions = 0;    // the same if states were dense
  double transfer_ms = 0;        // of the whole state over the link
  double dense_transfer_ms = 0;  // of a dense one
  double exposed_ms = 0;         // what of it comes after the first token
  double prefill_nodes = 0;      // for requests_per_s; not rounded; 0: unknown
  double decode_nodes = 0;       // the larger of what rate and memory ask for
};

// REQUIRES: a plan of load.prompt_tokens, link_gbit_per_s > 0.
Sizing size_deployment(const kv::StatePlan& plan, const PlanLoad& load, const PlanNode& node);

// True if the arguments (without the program's name) ask for a plan.
bool wants_plan(std::span<const char* const> args);
// Prints the plan as JSON on stdout. Exit status for main(): 0, or 2 with a line on stderr.
int print_plan(std::span<const char* const> args);

}  // namespace akv::decode
