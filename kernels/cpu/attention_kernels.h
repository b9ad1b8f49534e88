// The inner loops of decode_attention, one table of functions per instruction set. A task is one
// row x KV head x group of up to four query heads x split of the context; it leaves a partial
// softmax that compressed_attention.cc merges. Raw pointers only: these translation units are
// compiled with the instruction set's flags and must not share inline code with others.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/compressed_view.h"
#include "kernels/isa.h"

namespace akv::kernels::attention {

inline constexpr int kGroupHeads = 4;  // query heads of one task, at most
inline constexpr int kTile = 256;      // positions whose logits are held at once
inline constexpr int kMaxHeadDim = 256;
inline constexpr int kDenseChunk = 64;  // dense tokens between two looks at the maximum

// Fixed point of the angle term. phi = round(kPhaseOne * cos), W = round(scale * (A, B)) with
// scale <= kTableBound / (|q| max|k_a|) keeps every product sum inside 32 bits: the sum is at most
// kPhaseOne * scale * sum_j |q_j||k_j| <= kPhaseOne * kTableBound = 2^31 less the rounding's share.
inline constexpr float kPhaseOne = 8192.0f;
inline constexpr float kTableBound = 258000.0f;
inline constexpr float kTableMax = 32700.0f;

// Angles in fixed point: row t holds [cos half | sin half | 1 if dimensions stay unrotated | 0...],
// `stride` int16 (a multiple of 32). Blocks of kTile rows, each followed by 16 rows of zeros so
// that a vector of tokens may read past its end.
struct PhaseView {
  const int16_t* const* blocks = nullptr;
  int stride = 0;
  int half = 0;
  bool interleaved = false;  // pair j is (2j, 2j+1), else (j, j + half)
};

// Memory of one worker. `table_key` says whose query the first three parts hold, so that a worker
// that goes on to the next split of the same heads does not build them again.
struct WorkerArena {
  uint64_t table_key = 0;
  int16_t* table = nullptr;     // W: [k][heads][stride]
  float* table_unit = nullptr;  // [kGroupHeads]: base-2 logit per fixed-point unit
  float* code_query = nullptr;  // [kGroupHeads][head_dim]: U q (post) or q (pre), base-2 units
  float* histogram = nullptr;   // [k][2][kGroupHeads]: two copies break store-to-load chains
};

// A partial softmax of one query head: `max` in base-2 units, sum of 2^(logit - max), and the sum
// of 2^(logit - max) v_t, not divided, follow each other: stride D + 2 floats.
struct CompressedTask {
  const CompressedLayerView* layer = nullptr;
  const CompressedHeadView* head = nullptr;
  const float* q = nullptr;  // [heads][D]
  int heads = 0;             // 1..kGroupHeads
  int64_t begin = 0;         // tokens [begin, end) of [0, P); begin is a multiple of kTile
  int64_t end = 0;
  int window_tokens = 0;  // window entries that this task adds, oldest first
  PhaseView phases;
  // Logits from the table W, else by turning each token's anchor; false needs half % 16 == 0.
  bool use_table = true;
  uint64_t table_key = 0;  // unique per (call, row, KV head, group), never 0
  WorkerArena* arena = nullptr;
  float* partial = nullptr;  // [heads][D + 2]
};

// Dense tokens: rows of K (post-RoPE) and V `stride` elements apart, `count` <= kDenseChunk.
struct DenseChunk {
  const bf16* k = nullptr;
  const bf16* v = nullptr;
  int64_t stride = 0;
  int count = 0;
};

// Tokens [begin, end) of a dense prompt head ([S][D] each) or of a suffix's pages.
struct DenseTask {
  const bf16* k = nullptr;  // of a dense prompt, at token 0 of this KV head; null for a suffix
  const bf16* v = nullptr;
  SuffixView suffix;
  int kv_head = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int64_t begin = 0;
  int64_t end = 0;
  const float* q = nullptr;  // [heads][D]
  int heads = 0;
  float* partial = nullptr;  // [heads][D + 2]
};

struct AttentionKernels {
  void (*compressed)(const CompressedTask& task) = nullptr;
  void (*dense)(const DenseTask& task) = nullptr;
};

const AttentionKernels& portable_attention_kernels();
#if defined(__x86_64__)
const AttentionKernels& avx2_attention_kernels();
const AttentionKernels& avx512_attention_kernels();
const AttentionKernels& avx512vnni_attention_kernels();
#endif

}  // namespace akv::kernels::attention
