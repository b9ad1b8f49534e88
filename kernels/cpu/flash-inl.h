// Prefill attention of one task (table.h) for the set that the including file is compiled for.
// Included after elementwise-inl.h, inside an unnamed namespace.
//
// Keys are walked in blocks of kBlock from position 0. A block's keys are rotated, transposed
// (lanes are keys) and packed once, its values expanded once; then groups of kRows query rows go
// through logits, softmax and values while the block is in L1:
//   S [kRows, keys] = Q [kRows, D] K^T;  p = 2^(S - m);  O [kRows, D] = 2^(m_old - m) O + p V.
// Q carries log2(e) / sqrt(D). Blocks start at multiples of kBlock whatever the task, a masked
// key adds exactly nothing, and a row's sums do not depend on its group: so its bits depend on its
// position alone.
//
// A Policy gives the operands' form: Cell is what one 32-bit lane of an operand holds (a float, or
// two bf16 along the summed dimension), kPack how many elements that is; kBlock the keys of a
// block; kRows the query rows of a group, kRowStep what the scratch's rows are padded to and
// kDimStep the summed dimension; attend(state, row, rows, first) the work of one group on one
// block.

constexpr int kMaxVectors = HWY_MAX_BYTES >= 64 ? 4 : 2;  // of a register tile
constexpr int kF32Lanes = static_cast<int>(hn::MaxLanes(DF()));
constexpr int kMaxCells = 128;                   // of a key of 256 dimensions as pairs
constexpr int kPanel = kMaxVectors * kF32Lanes;  // keys of a packed panel

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

template <class P>
struct FlashState;
template <class P>
void attend_group(const FlashState<P>& st, int64_t row, int64_t rows, int64_t first);

struct F32Policy {
  using Cell = float;
  static constexpr int kPack = 1, kBlock = 64, kRows = 6, kRowStep = 1, kDimStep = 1;
  static constexpr int kTurnedKeys = 0;  // keys that turn() transposes at once; 0: one by one
  static VF load(const Cell* p) { return hn::Load(DF(), p); }
  static VF broadcast(Cell a) { return hn::Set(DF(), a); }
  static VF multiply_add(VF a, VF b, VF sum) { return hn::MulAdd(a, b, sum); }
  static void from_floats(const float* x, int n, Cell* out) { __builtin_memcpy(out, x, n * 4ul); }
  // kPack rows of values, n dimensions, side by side.
  static void pack_values(const float* const rows[kPack], int n, Cell* out) {
    __builtin_memcpy(out, rows[0], n * 4ul);
  }
  static void attend(const FlashState<F32Policy>& st, int64_t row, int64_t rows, int64_t first) {
    attend_group(st, row, rows, first);
  }
};

// The pieces of a task's scratch, in floats from its start.
template <class P>
struct FlashLayout {
  // padded_dim: of a row of values or of the output; cells: of a row of queries or keys.
  int64_t rows, padded_dim, cells;
  int64_t q, out, max, sum, keys, values, logits, probs, rotated, total;

  FlashLayout(int positions, int group, int dim)
      : rows(int64_t{positions} * group),
        padded_dim(round_up(dim, kF32Lanes)),
        cells(round_up(dim, P::kDimStep) / P::kPack) {
    const int64_t padded_rows = round_up(rows, P::kRowStep);
    int64_t at = 0;
    const auto take = [&](int64_t n) {
      const int64_t begin = at;
      at += round_up(n, 16);
      return begin;
    };
    q = take(padded_rows * cells);
    out = take(padded_rows * padded_dim);
    max = take(padded_rows);
    sum = take(padded_rows * kF32Lanes);
    keys = take(P::kBlock * cells);
    values = take(P::kBlock * padded_dim / P::kPack);
    logits = take(P::kRows * P::kBlock);
    probs = take(P::kRows * P::kBlock / P::kPack);
    rotated = take(4 * round_up(dim, 32));
    total = at;
  }
};

template <class P>
struct FlashState {
  using Cell = typename P::Cell;
  const FlashTask& task;
  FlashLayout<P> at;
  float* base;

  explicit FlashState(const FlashTask& t)
      : task(t), at(t.positions, t.group, t.head_dim), base(reinterpret_cast<float*>(t.scratch)) {}
  float* floats(int64_t offset) const { return base + offset; }
  Cell* cells(int64_t offset) const { return reinterpret_cast<Cell*>(base + offset); }
  // The newest key that a row sees.
  int64_t limit(int64_t row) const { return task.pos0 + row / task.group; }
};

// c [M, N vectors] = a [M, k] b [k, N vectors], or += with Add.
template <class P, int M, int N, bool Add>
inline void tile_product(const typename P::Cell* a, int64_t a_stride, const typename P::Cell* b,
                         int64_t b_stride, int64_t k, float* c, int64_t c_stride) {
  const DF d;
  VF sum[M][N];
#pragma GCC unroll 16
  for (int r = 0; r < M; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < N; ++v) {
      sum[r][v] = Add ? hn::Load(d, c + r * c_stride + v * kF32Lanes) : hn::Zero(d);
    }
  }
  for (int64_t i = 0; i < k; ++i) {
    VF column[N];
#pragma GCC unroll 16
    for (int v = 0; v < N; ++v) column[v] = P::load(b + i * b_stride + v * kF32Lanes);
#pragma GCC unroll 16
    for (int r = 0; r < M; ++r) {
      const VF x = P::broadcast(a[r * a_stride + i]);
#pragma GCC unroll 16
      for (int v = 0; v < N; ++v) sum[r][v] = P::multiply_add(x, column[v], sum[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < M; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < N; ++v) hn::Store(sum[r][v], d, c + r * c_stride + v * kF32Lanes);
  }
}

// O += P V for M rows: all vectors of the dimension, in even shares of at most kMaxVectors.
template <class P, int M>
inline void add_values(const typename P::Cell* probs, const typename P::Cell* values,
                       int64_t padded_dim, float* out) {
  constexpr int64_t kStride = P::kBlock / P::kPack;
  int left = static_cast<int>(padded_dim / kF32Lanes);
  while (left > 0) {
    const int shares = (left + kMaxVectors - 1) / kMaxVectors;
    const int n = (left + shares - 1) / shares;
    if (n == 1) {
      tile_product<P, M, 1, true>(probs, kStride, values, padded_dim, kStride, out, padded_dim);
    } else if (n == 2) {
      tile_product<P, M, 2, true>(probs, kStride, values, padded_dim, kStride, out, padded_dim);
    } else if constexpr (kMaxVectors > 2) {
      if (n == 3) {
        tile_product<P, M, 3, true>(probs, kStride, values, padded_dim, kStride, out, padded_dim);
      } else {
        tile_product<P, M, 4, true>(probs, kStride, values, padded_dim, kStride, out, padded_dim);
      }
    }
    values += n * kF32Lanes;
    out += n * kF32Lanes;
    left -= n;
  }
}

// One row of logits to probabilities; returns the factor that the row's earlier sums take.
template <int kKeys>
inline float softmax_row(float* logits, float* max, float* sum) {
  const DF d;
  constexpr int kCount = kKeys / kF32Lanes;
  VF s[kCount];
  VF top = hn::Set(d, *max);
#pragma GCC unroll 16
  for (int v = 0; v < kCount; ++v) {
    s[v] = hn::Load(d, logits + v * kF32Lanes);
    top = hn::Max(top, s[v]);
  }
  top = hn::MaxOfLanes(d, top);
  const VF factor = exp2_fast(d, hn::Sub(hn::Set(d, *max), top));
  VF total = hn::Mul(hn::Load(d, sum), factor);
#pragma GCC unroll 16
  for (int v = 0; v < kCount; ++v) {
    const VF p = exp2_fast(d, hn::Sub(s[v], top));
    total = hn::Add(total, p);
    hn::Store(p, d, logits + v * kF32Lanes);
  }
  hn::Store(total, d, sum);
  *max = hn::GetLane(top);
  return hn::GetLane(factor);
}

// Hides the keys of the block that row `row` does not see.
template <class P>
inline void mask_row(const FlashState<P>& st, int64_t row, int64_t first, float* logits) {
  const int64_t seen = st.limit(row) - first + 1;
  for (int64_t key = seen < 0 ? 0 : seen; key < P::kBlock; ++key) logits[key] = -__builtin_inff();
}

template <class P>
inline void scale_row(const FlashState<P>& st, int64_t row, float factor) {
  if (factor == 1.0f) return;
  const DF d;
  const VF f = hn::Set(d, factor);
  float* out = st.floats(st.at.out) + row * st.at.padded_dim;
  for (int64_t i = 0; i < st.at.padded_dim; i += kF32Lanes) {
    hn::Store(hn::Mul(f, hn::Load(d, out + i)), d, out + i);
  }
}

// M rows from `row` on against the packed block of keys from `first` on.
template <class P, int M>
inline void attend_rows(const FlashState<P>& st, int64_t row, int64_t first) {
  if (first > st.limit(row + M - 1)) return;  // all masked, as are all rows before
  static_assert(P::kBlock % kPanel == 0);
  const int64_t cells = st.at.cells;
  float* logits = st.floats(st.at.logits);
  for (int panel = 0; panel < P::kBlock / kPanel; ++panel) {
    tile_product<P, M, kMaxVectors, false>(st.cells(st.at.q) + row * cells, cells,
                                           st.cells(st.at.keys) + panel * cells * kPanel, kPanel,
                                           cells, logits + panel * kPanel, P::kBlock);
  }
  for (int r = 0; r < M; ++r) {
    float* s = logits + r * P::kBlock;
    mask_row(st, row + r, first, s);
    const float factor = softmax_row<P::kBlock>(s, st.floats(st.at.max) + row + r,
                                                st.floats(st.at.sum) + (row + r) * kF32Lanes);
    if (P::kPack > 1) {
      P::from_floats(s, P::kBlock, st.cells(st.at.probs) + r * P::kBlock / P::kPack);
    }
    scale_row(st, row + r, factor);
  }
  const auto* probs =
      P::kPack > 1 ? st.cells(st.at.probs) : reinterpret_cast<const typename P::Cell*>(logits);
  add_values<P, M>(probs, st.cells(st.at.values), st.at.padded_dim,
                   st.floats(st.at.out) + row * st.at.padded_dim);
}

template <class P>
void attend_group(const FlashState<P>& st, int64_t row, int64_t rows, int64_t first) {
  static_assert(P::kRows == 6);
  switch (rows) {
    case 1:
      return attend_rows<P, 1>(st, row, first);
    case 2:
      return attend_rows<P, 2>(st, row, first);
    case 3:
      return attend_rows<P, 3>(st, row, first);
    case 4:
      return attend_rows<P, 4>(st, row, first);
    case 5:
      return attend_rows<P, 5>(st, row, first);
    default:
      return attend_rows<P, 6>(st, row, first);
  }
}

// Row t of keys or values as floats: itself, or expanded into `out`.
inline const float* kv_row(const FlashTask& t, const float* f32, const uint16_t* bf16,
                           int64_t position, float* out) {
  if (f32 != nullptr) return f32 + position * t.kv_stride;
  to_float(bf16 + position * t.kv_stride, t.head_dim, out);
  return out;
}

inline void rotate_key(const FlashTask& t, const float* key, int64_t position, float* out) {
  const float* cos = t.cos_row(t.rope, position);
  if (t.interleaved) {
    rotate_interleaved(key, cos, cos + t.half, 1.0f, t.half, out);
  } else {
    rotate_half(key, cos, cos + t.half, 1.0f, t.half, out);
  }
  for (int i = 2 * t.half; i < t.head_dim; ++i) out[i] = key[i];
}

// Keys [first, first + count) rotated into panels [cells][kPanel]; absent keys and padded
// dimensions are zero (and absent keys masked).
template <class P>
inline void pack_keys(const FlashState<P>& st, int64_t first, int count) {
  using Cell = typename P::Cell;
  const FlashTask& t = st.task;
  const int64_t cells = st.at.cells;
  const int64_t padded = round_up(t.head_dim, 32);
  float* expanded = st.floats(st.at.rotated);
  float* rotated = expanded + padded;
  Cell* row = reinterpret_cast<Cell*>(rotated + padded);
  [[maybe_unused]] alignas(64)
      Cell turned[P::kTurnedKeys > 0 ? P::kTurnedKeys * kMaxCells : 1] = {};
  for (int64_t i = 0; i < cells; ++i) row[i] = Cell{};
  for (int key = 0; key < P::kBlock; ++key) {
    if (key < count) {
      rotate_key(t, kv_row(t, t.k_f32, t.k, first + key, expanded), first + key, rotated);
      P::from_floats(rotated, t.head_dim, row);
    } else if (key == count) {
      for (int64_t i = 0; i < cells; ++i) row[i] = Cell{};
    }
    if constexpr (P::kTurnedKeys > 0) {  // gathered, then turned as a square of registers
      Cell* own = turned + key % P::kTurnedKeys * kMaxCells;
      for (int64_t i = 0; i < cells; ++i) own[i] = row[i];
      if ((key + 1) % P::kTurnedKeys != 0) continue;
      const int begin = key + 1 - P::kTurnedKeys;
      P::turn(turned, kMaxCells, cells,
              st.cells(st.at.keys) + begin / kPanel * cells * kPanel + begin % kPanel, kPanel);
    } else {
      Cell* to = st.cells(st.at.keys) + key / kPanel * cells * kPanel + key % kPanel;
      for (int64_t i = 0; i < cells; ++i) to[i * kPanel] = row[i];
    }
  }
}

// Values [first, first + count) as rows [padded dim] of cells; absent ones are zero.
template <class P>
inline void pack_values(const FlashState<P>& st, int64_t first, int count) {
  const FlashTask& t = st.task;
  float* expanded = st.floats(st.at.rotated);
  for (int key = 0; key < P::kBlock; key += P::kPack) {
    const float* rows[P::kPack];
    for (int i = 0; i < P::kPack; ++i) {
      float* own = expanded + i * round_up(t.head_dim, 32);
      if (key + i < count) {
        rows[i] = kv_row(t, t.v_f32, t.v, first + key + i, own);
      } else {
        __builtin_memset(own, 0, static_cast<size_t>(t.head_dim) * 4);
        rows[i] = own;
      }
    }
    auto* to = st.cells(st.at.values) + key / P::kPack * st.at.padded_dim;
    P::pack_values(rows, t.head_dim, to);
    for (int64_t i = t.head_dim; i < st.at.padded_dim; ++i) to[i] = typename P::Cell{};
  }
}

template <class P>
inline void begin_rows(const FlashState<P>& st) {
  const FlashTask& t = st.task;
  const DF d;
  const float scale = 1.44269504088896341f / __builtin_sqrtf(static_cast<float>(t.head_dim));
  float* scaled = st.floats(st.at.rotated);
  const int64_t rows = round_up(st.at.rows, P::kRowStep);
  __builtin_memset(st.cells(st.at.q), 0, static_cast<size_t>(rows * st.at.cells) * 4);
  __builtin_memset(st.floats(st.at.out), 0, static_cast<size_t>(rows * st.at.padded_dim) * 4);
  for (int64_t row = 0; row < rows; ++row) {
    st.floats(st.at.max)[row] = -__builtin_inff();
    hn::Store(hn::Zero(d), d, st.floats(st.at.sum) + row * kF32Lanes);
    if (row >= st.at.rows) continue;
    const float* q = t.q + row / t.group * t.q_stride + row % t.group * t.head_dim;
    for (int i = 0; i < t.head_dim; ++i) scaled[i] = q[i] * scale;
    P::from_floats(scaled, t.head_dim, st.cells(st.at.q) + row * st.at.cells);
  }
}

template <class P>
inline void finish_rows(const FlashState<P>& st) {
  const FlashTask& t = st.task;
  const DF d;
  for (int64_t row = 0; row < st.at.rows; ++row) {
    float* out = t.out + row / t.group * t.q_stride + row % t.group * t.head_dim;
    const float* from = st.floats(st.at.out) + row * st.at.padded_dim;
    const VF sum = hn::Load(d, st.floats(st.at.sum) + row * kF32Lanes);
    const float scale = 1.0f / hn::GetLane(hn::SumOfLanes(d, sum));
    for (int i = 0; i < t.head_dim; ++i) out[i] = from[i] * scale;
  }
}

template <class P>
void flash_run(const FlashTask& task) {
  const FlashState<P> st(task);
  begin_rows(st);
  const int64_t keys = task.pos0 + task.positions;
  for (int64_t first = 0; first < keys; first += P::kBlock) {
    const int64_t left = keys - first;
    const int count = static_cast<int>(left < P::kBlock ? left : P::kBlock);
    pack_keys(st, first, count);
    pack_values(st, first, count);
    for (int64_t row = 0; row < st.at.rows; row += P::kRows) {
      const int64_t rows = st.at.rows - row;
      P::attend(st, row, rows < P::kRows ? rows : P::kRows, first);
    }
  }
  finish_rows(st);
}

template <class P>
int64_t flash_bytes(int positions, int group, int head_dim) {
  return FlashLayout<P>(positions, group, head_dim).total * 4;
}
