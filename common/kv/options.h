// The options of the AnchorKV codec and its two named profiles. A point in this space is all that
// decides how bytes are spent and coded; a state's header repeats it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace akv::kv {

enum class Codec : uint8_t { kNone = 0, kAnchorKv = 1 };

// How a layer is laid out and charged: Eq. 13 byte for byte, or the same information in less.
enum class Layout : uint8_t { kPaper = 0, kCompact = 1 };
// How gamma is stored: 2 bytes, or 1 (kernels::log8_table).
enum class Coefficient : uint8_t { kBf16 = 0, kLog8 = 1 };
// How a residual's scale is chosen: max|Ur| / 1.5104, or least squares.
enum class ScaleRule : uint8_t { kAbsmax = 0, kLsq = 1 };
enum class ScaleType : uint8_t { kF32 = 0, kBf16 = 1 };
// Whether a key residual is coded before or after RoPE.
enum class KeyDomain : uint8_t { kPre = 0, kPost = 1 };
// Utility that ranks residuals: the paper's Eq. 6, or the pooled one.
enum class Ranking : uint8_t { kEq6 = 0, kPooled = 1 };
// Residual widths: 2 bits for the top N, or none / 2 / 4 bits by greedy marginal return.
enum class Widths : uint8_t { k2 = 0, k2And4 = 1 };
// How far k is lowered: to W + 16 while the base alone exceeds the budget, or to W + 8 while it
// exceeds 0.6 of it.
enum class AnchorRule : uint8_t { kPaper = 0, kPooled = 1 };

struct CodecOptions {
  Layout layout = Layout::kCompact;
  Coefficient coefficient = Coefficient::kLog8;
  ScaleRule scale = ScaleRule::kLsq;
  ScaleType scale_type = ScaleType::kBf16;
  KeyDomain domain = KeyDomain::kPost;
  Ranking ranking = Ranking::kPooled;
  Widths widths = Widths::k2And4;
  AnchorRule anchors = AnchorRule::kPooled;
  int window = 32;       // W, positions
  int rho_percent = 70;  // share of the k - W anchors that is chosen by score
  int kernel = 7;        // kappa, width of the score's average pooling, odd
  int pool = 31;         // width of the pooled utility's mean, odd
  uint64_t seed = 42;

  bool operator==(const CodecOptions&) const = default;
};

// The two profiles of anchorkv.md section 9.
CodecOptions paper_options();
CodecOptions pooled_options();
// "paper" or "pooled"; kInvalidArgument otherwise.
Result<CodecOptions> profile_options(std::string_view profile);

// Sets one option by name: layout=paper|compact, coefficient=bf16|log8, scale=absmax|lsq,
// scale_type=fp32|bf16, domain=pre|post, ranking=eq6|pooled, widths=2|2+4, k=paper|pooled,
// window, rho (0..1), kernel, pool, seed. kInvalidArgument names the key and what it takes.
Status set_option(CodecOptions& options, std::string_view key, std::string_view value);

// Whether the combination can be used at all (window >= 1, odd kernels, ...).
Status validate(const CodecOptions& options);

// "paper", "pooled", or for another point "pooled+widths=2" (the nearer profile and what differs).
std::string describe(const CodecOptions& options);

}  // namespace akv::kv
