// decode_attention: cuts rows into tasks, runs them in one parallel region, merges the partials.
#include "kernels/compressed_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/attention_phases.h"

namespace akv::kernels {
namespace {

using attention::kGroupHeads;
using attention::kTile;

// Splits of a context. They follow from its length alone, so that a row's sums do not depend on
// what else is in the batch. More splits balance better, but each needs the table of W.
constexpr int64_t kSplitTiles = 8;
constexpr int64_t kMaxSplits = 8;
constexpr int64_t kDenseSplitTokens = 512;

// Above this many multiply-adds the merge is worth a parallel region of its own.
constexpr int64_t kParallelMerge = 1 << 17;

enum class TaskKind : uint8_t { kCompressed, kDensePrompt, kSuffix };

struct Task {
  TaskKind kind = TaskKind::kCompressed;
  int row = 0;
  int kv_head = 0;
  int first_head = 0;  // of the task's query heads, within the row
  int heads = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int window_tokens = 0;
  bool use_table = true;
  uint64_t table_key = 0;
};

// Tasks [first, last) hold the partials of the same query heads.
struct Merge {
  int row = 0;
  int first_head = 0;
  int heads = 0;
  int first = 0;
  int last = 0;
};

const attention::AttentionKernels& kernels_of(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx512Bf16:  // every CPU with AVX512_BF16 has VNNI
      return attention::avx512vnni_attention_kernels();
    case Isa::kAvx512:
      return attention::avx512_attention_kernels();
    case Isa::kAvx2:
      return attention::avx2_attention_kernels();
#endif
    default:
      return attention::portable_attention_kernels();
  }
}

int head_dim_of(const AttentionRow& row) {
  return row.prompt != nullptr ? row.prompt->head_dim : row.dense_prompt->head_dim;
}
int kv_heads_of(const AttentionRow& row) {
  return row.prompt != nullptr ? row.prompt->kv_heads : row.dense_prompt->kv_heads;
}

}  // namespace

struct DecodeAttentionScratch::Impl {
  int64_t max_table_bytes = 0;
  attention::PhaseTable phases;
  std::vector<attention::AlignedBuffer> arena_memory;
  std::vector<attention::WorkerArena> arenas;
  attention::AlignedBuffer partials;
  std::vector<Task> tasks;
  std::vector<Merge> merges;
  uint64_t last_key = 0;

  int64_t table_bytes(const AttentionRow& row, int heads) const;
  bool use_table(const AttentionRow& row, int heads) const;
  void reserve_arenas(int workers, int anchors, int64_t table);
  void plan(std::span<const AttentionRow> rows, int heads);
  void plan_heads(const AttentionRow& row, Task task);
  float* partial(int task, int stride) {
    return reinterpret_cast<float*>(partials.data()) + int64_t{task} * kGroupHeads * stride;
  }
};

DecodeAttentionScratch::DecodeAttentionScratch(int64_t max_table_bytes)
    : impl_(std::make_unique<Impl>()) {
  impl_->max_table_bytes = max_table_bytes;
}
DecodeAttentionScratch::~DecodeAttentionScratch() = default;
DecodeAttentionScratch::DecodeAttentionScratch(DecodeAttentionScratch&&) noexcept = default;
DecodeAttentionScratch& DecodeAttentionScratch::operator=(DecodeAttentionScratch&&) noexcept =
    default;

int64_t DecodeAttentionScratch::working_bytes() const {
  int64_t total = impl_->partials.bytes();
  for (const auto& arena : impl_->arena_memory) total += arena.bytes();
  total += static_cast<int64_t>(impl_->tasks.capacity() * sizeof(Task));
  total += static_cast<int64_t>(impl_->merges.capacity() * sizeof(Merge));
  return total;
}
int64_t DecodeAttentionScratch::phase_bytes() const { return impl_->phases.bytes(); }

// Bytes of W of one task of this row.
int64_t DecodeAttentionScratch::Impl::table_bytes(const AttentionRow& row, int heads) const {
  const int group = std::min(heads / row.prompt->kv_heads, kGroupHeads);
  return int64_t{row.prompt->anchors} * group * phases.stride() *
         static_cast<int64_t>(sizeof(int16_t));
}

bool DecodeAttentionScratch::Impl::use_table(const AttentionRow& row, int heads) const {
  return table_bytes(row, heads) <= max_table_bytes || phases.view().half % 16 != 0;
}

void DecodeAttentionScratch::Impl::reserve_arenas(int workers, int anchors, int64_t table) {
  const int64_t bins = int64_t{anchors} * 2 * kGroupHeads;
  const int64_t units = 16;  // floats: kGroupHeads, up to a cache line
  const int64_t queries = kGroupHeads * attention::kMaxHeadDim;
  const auto count = static_cast<size_t>(workers);
  if (arenas.size() < count) {
    arenas.resize(count);
    arena_memory.resize(count);
  }
  for (size_t i = 0; i < count; ++i) {
    // The table's size is a multiple of 64 bytes, so that what follows stays aligned.
    const int64_t bytes = table + (bins + units + queries) * static_cast<int64_t>(sizeof(float));
    if (arena_memory[i].reserve(bytes)) arenas[i].table_key = 0;
    std::byte* base = arena_memory[i].data();
    attention::WorkerArena& arena = arenas[i];
    const auto* old_table = arena.table;
    arena.table_unit = reinterpret_cast<float*>(base);
    arena.code_query = arena.table_unit + units;
    arena.table = reinterpret_cast<int16_t*>(arena.code_query + queries);
    arena.histogram = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(arena.table) + table);
    if (arena.table != old_table) arena.table_key = 0;
  }
}

void DecodeAttentionScratch::Impl::plan_heads(const AttentionRow& row, Task task) {
  Merge merge{task.row, task.first_head, task.heads, static_cast<int>(tasks.size()), 0};
  task.table_key = ++last_key;
  if (row.prompt != nullptr) {
    const int64_t prefix = row.prompt->prefix, tiles = (prefix + kTile - 1) / kTile;
    const int64_t splits = std::clamp(tiles / kSplitTiles, int64_t{1}, kMaxSplits);
    task.kind = TaskKind::kCompressed;
    for (int64_t i = 0; i < splits; ++i) {
      task.begin = tiles * i / splits * kTile;
      task.end = std::min(tiles * (i + 1) / splits * kTile, prefix);
      task.window_tokens = i + 1 == splits ? row.prompt->window - row.window_drop : 0;
      tasks.push_back(task);
    }
  }
  const auto add_dense = [&](TaskKind kind, int64_t tokens) {
    task.kind = kind;
    for (int64_t begin = 0; begin < tokens; begin += kDenseSplitTokens) {
      task.begin = begin;
      task.end = std::min(begin + kDenseSplitTokens, tokens);
      tasks.push_back(task);
    }
  };
  if (row.dense_prompt != nullptr) {
    add_dense(TaskKind::kDensePrompt, row.dense_prompt->tokens - row.window_drop);
  }
  add_dense(TaskKind::kSuffix, row.suffix.tokens);
  merge.last = static_cast<int>(tasks.size());
  merges.push_back(merge);
}

void DecodeAttentionScratch::Impl::plan(std::span<const AttentionRow> rows, int heads) {
  tasks.clear();
  merges.clear();
  for (size_t r = 0; r < rows.size(); ++r) {
    const int kv_heads = kv_heads_of(rows[r]), group = heads / kv_heads;
    const int parts = (group + kGroupHeads - 1) / kGroupHeads;
    for (int kv_head = 0; kv_head < kv_heads; ++kv_head) {
      for (int part = 0; part < parts; ++part) {
        Task task;
        task.row = static_cast<int>(r);
        task.use_table = rows[r].prompt == nullptr || use_table(rows[r], heads);
        task.kv_head = kv_head;
        task.first_head = kv_head * group + group * part / parts;
        task.heads = kv_head * group + group * (part + 1) / parts - task.first_head;
        plan_heads(rows[r], task);
      }
    }
  }
}

namespace {

void run_task(const attention::AttentionKernels& kernels, const AttentionRow& row, const Task& task,
              const attention::PhaseView& phases, attention::WorkerArena& arena, float* partial) {
  const int head_dim = head_dim_of(row);
  const float* q = row.q + int64_t{task.first_head} * head_dim;
  if (task.kind == TaskKind::kCompressed) {
    attention::CompressedTask work;
    work.layer = row.prompt;
    work.head = &row.prompt->heads[task.kv_head];
    work.q = q;
    work.heads = task.heads;
    work.begin = task.begin;
    work.end = task.end;
    work.window_tokens = task.window_tokens;
    work.phases = phases;
    work.use_table = task.use_table;
    work.table_key = task.table_key;
    work.arena = &arena;
    work.partial = partial;
    kernels.compressed(work);
    return;
  }
  attention::DenseTask work;
  if (task.kind == TaskKind::kDensePrompt) {
    const int64_t offset = int64_t{task.kv_head} * row.dense_prompt->tokens * head_dim;
    work.k = row.dense_prompt->k + offset;
    work.v = row.dense_prompt->v + offset;
  }
  work.suffix = row.suffix;
  work.kv_head = task.kv_head;
  work.kv_heads = kv_heads_of(row);
  work.head_dim = head_dim;
  work.begin = task.begin;
  work.end = task.end;
  work.q = q;
  work.heads = task.heads;
  work.partial = partial;
  kernels.dense(work);
}

// out = sum of 2^(max_i - max) out_i / sum of 2^(max_i - max) total_i, in the order of the splits.
void merge_head(const float* first, int parts, int64_t step, int head_dim, float* out) {
  std::fill(out, out + head_dim, 0.0f);
  float peak = -INFINITY, total = 0;
  for (int i = 0; i < parts; ++i) peak = std::max(peak, first[i * step]);
  for (int i = 0; i < parts; ++i) {
    const float* partial = first + i * step;
    const float weight = std::exp2(partial[0] - peak);
    total += weight * partial[1];
    for (int d = 0; d < head_dim; ++d) out[d] += weight * partial[2 + d];
  }
  const float norm = parts == 0 ? 0.0f : 1.0f / total;
  for (int d = 0; d < head_dim; ++d) out[d] *= norm;
}

}  // namespace

void decode_attention(std::span<const AttentionRow> rows, int heads, const RopeTable& rope,
                      DecodeAttentionScratch& scratch, const Parallel& parallel) {
  if (rows.empty()) return;
  auto& impl = scratch.impl();
  const int head_dim = head_dim_of(rows[0]), stride = head_dim + 2;
  int64_t positions = 0;
  int anchors = 0;
  for (const AttentionRow& row : rows) {
    if (row.prompt == nullptr) continue;
    positions = std::max<int64_t>(positions, row.prompt->tokens);
    anchors = std::max(anchors, row.prompt->anchors);
  }
  impl.phases.reserve(rope, positions);
  const attention::PhaseView phases = impl.phases.view();
  int64_t table_bytes = 0;
  for (const AttentionRow& row : rows) {
    if (row.prompt == nullptr || !impl.use_table(row, heads)) continue;
    table_bytes = std::max(table_bytes, impl.table_bytes(row, heads));
  }
  impl.reserve_arenas(parallel.workers, anchors, table_bytes);
  impl.plan(rows, heads);
  const int tasks = static_cast<int>(impl.tasks.size());
  impl.partials.reserve(int64_t{tasks} * kGroupHeads * stride *
                        static_cast<int64_t>(sizeof(float)));
  const attention::AttentionKernels& kernels = kernels_of(active_isa());
  parallel.run(tasks, [&](int i, int worker) {
    const Task& task = impl.tasks[static_cast<size_t>(i)];
    run_task(kernels, rows[static_cast<size_t>(task.row)], task, phases,
             impl.arenas[static_cast<size_t>(worker)], impl.partial(i, stride));
  });
  const auto merge = [&](int i, int) {
    const Merge& m = impl.merges[static_cast<size_t>(i)];
    float* out = rows[static_cast<size_t>(m.row)].out;
    for (int h = 0; h < m.heads; ++h) {
      merge_head(impl.partial(m.first, stride) + h * stride, m.last - m.first,
                 int64_t{kGroupHeads} * stride, head_dim, out + (m.first_head + h) * head_dim);
    }
  };
  const int merges = static_cast<int>(impl.merges.size());
  if (int64_t{tasks} * kGroupHeads * stride > kParallelMerge) {
    parallel.run(merges, merge);
  } else {
    for (int i = 0; i < merges; ++i) merge(i, 0);
  }
}

}  // namespace akv::kernels
