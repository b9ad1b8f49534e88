// Byte plans: how many bytes a state takes, to the byte, before any work is done (anchorkv.md 5).
// plan bytes == record bytes on the wire == bytes held == bytes reported.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/kv/options.h"

namespace akv::kv {

// What the plan needs to know of a model.
struct KvShape {
  int layers = 0;
  int heads = 0;     // Hq
  int kv_heads = 0;  // H
  int head_dim = 0;  // D
  int group() const { return heads / kv_heads; }
  bool operator==(const KvShape&) const = default;
};

// Mfull = 4 S H D: bytes of one layer's bf16 keys and values.
uint64_t dense_layer_bytes(const KvShape& shape, int64_t tokens);
// The same, summed over layers: what theta and every ratio refer to.
uint64_t dense_bytes(const KvShape& shape, int64_t tokens);

// Mbase of section 5 and 9 for k anchors: all of a layer but its residuals.
uint64_t base_bytes(const KvShape& shape, int64_t tokens, int k, const CodecOptions& options);
// Bytes of one residual of 2 bits (4 bits: D/4 more), scale and the paper's chunk byte included.
int residual_cost(int head_dim, const CodecOptions& options, bool value_side);

// One compressed layer.
struct LayerPlan {
  int k = 0;           // anchors per KV head, window included
  uint64_t full = 0;   // Mfull
  uint64_t base = 0;   // Mbase
  uint64_t spare = 0;  // floor(theta Mfull) - overhead - Mbase, or 0: what residuals may take
  bool fits = false;   // Mbase is within the budget
  // Bytes set aside for the residuals of keys and values. Never more than all residuals need; what
  // the greedy choice leaves is zero in the record. Their sum is <= spare.
  uint64_t key_bytes = 0;
  uint64_t value_bytes = 0;
  uint64_t payload_bytes() const { return base + key_bytes + value_bytes; }
  bool operator==(const LayerPlan&) const = default;
};

// The plan of one layer whose budget is floor(theta Mfull) - overhead_bytes. With no overhead it is
// the plan of golden/codec/plans.json. REQUIRES: tokens > window, a valid shape and options.
LayerPlan plan_layer(const KvShape& shape, int64_t tokens, double theta,
                     const CodecOptions& options, uint64_t overhead_bytes = 0);

enum class OnUnreachable : uint8_t { kBest, kDense, kError };
Result<OnUnreachable> parse_on_unreachable(std::string_view text);

struct PlanRequest {
  Codec codec = Codec::kAnchorKv;
  CodecOptions options;
  double theta = 0.05;  // retained fraction, (0, 1]
  int min_compress_tokens = 512;
  OnUnreachable on_unreachable = OnUnreachable::kBest;
};

// max(0.05, 200 / tokens): the daemon's default theta.
double auto_theta(int64_t tokens);

// A whole state. Byte 0 is the state header; layer l's record is [record_offset(l),
// +record_bytes[l]).
struct StatePlan {
  KvShape shape;
  int64_t tokens = 0;  // S
  Codec codec = Codec::kNone;
  CodecOptions options;          // of an anchorkv state
  double theta_requested = 1.0;  // as asked for
  double theta = 1.0;            // total_bytes / dense_bytes: what is achieved
  bool reachable = true;         // false: `best` or `dense` stepped in for the theta asked for
  double smallest_theta = 1.0;   // what compression without any residual would achieve
  LayerPlan layer;               // the same for every layer
  uint64_t header_bytes = 0;
  std::vector<uint64_t> record_offset;  // 8-byte aligned
  std::vector<uint64_t> record_bytes;   // headers and padding included
  uint64_t dense_bytes = 0;
  uint64_t total_bytes = 0;  // state_bytes of the API; the last record ends here
  double ratio() const {
    return static_cast<double>(dense_bytes) / static_cast<double>(total_bytes);
  }
};

// Plans a state. A prompt below max(min_compress_tokens, W + 80) tokens, and codec kNone, give a
// dense state. An anchorkv state that is `reachable` has total_bytes <= theta * dense_bytes.
// Errors: kInvalidArgument (theta, tokens, shape, options), kUnsupported (head_dim), and with
// on_unreachable kError kInvalidArgument with param "theta" that names the smallest theta.
Result<StatePlan> plan_state(const KvShape& shape, int64_t tokens, const PlanRequest& request);

// The least tokens from which theta is reachable for a shape, up to `limit`; 0 if it never is.
int64_t first_reachable_tokens(const KvShape& shape, const PlanRequest& request, int64_t limit);

}  // namespace akv::kv
