#include "kernels/window_attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/codec_simd.h"

namespace akv::kernels {
namespace {

constexpr int64_t kMaxSpans = 32;
constexpr float kMasked = -3e38f;

struct Spans {
  int64_t chunks = 0;
  int64_t count = 0;
  int64_t begin(int64_t span) const { return span * chunks / count; }
};

void load_queries(const ObservedHead& h, Observation& o) {
  const int d = h.head_dim;
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));
  o.q_t.assign(static_cast<size_t>(d) * o.lanes, 0.0f);
  o.q2.assign(o.lanes, 0.0f);
  for (int w = 0; w < h.queries(); ++w) {
    const bf16* q = h.q + w / h.group * h.q_stride + static_cast<int64_t>(w % h.group) * d;
    double square = 0;
    for (int i = 0; i < d; ++i) {
      const float x = to_float(q[i]);
      o.q_t[static_cast<size_t>(i) * o.lanes + w] = x * scale;
      square += static_cast<double>(x) * x;
    }
    o.q2[w] = static_cast<float>(square / d);
  }
}

// Window keys are visible to the queries at and after their own position only.
void mask_window(const ObservedHead& h, int64_t first, int rows, int lanes, float* logits) {
  for (int r = 0; r < rows; ++r) {
    const int64_t ahead = first + r - h.prefix();
    if (ahead <= 0) continue;
    float* row = logits + static_cast<int64_t>(r) * lanes;
    std::fill(row, row + std::min<int64_t>(ahead * h.group, lanes), kMasked);
  }
}

// Logits, running softmax and running output of one span of chunks.
void observe_span(const ObservedHead& h, const Spans& spans, int64_t span, Observation& o,
                  float* scratch, const CodecSimd& simd) {
  const int d = h.head_dim, lanes = o.lanes, m = h.queries();
  float* tile = scratch;
  float* scale = tile + static_cast<int64_t>(kCodecChunk) * d;
  float* max = o.span_max.data() + span * lanes;
  float* sum = o.span_sum.data() + span * lanes;
  float* y = o.span_y.data() + span * lanes * d;
  std::fill(max, max + lanes, kMasked);
  std::fill(sum, sum + lanes, 0.0f);
  std::fill(y, y + static_cast<int64_t>(lanes) * d, 0.0f);
  for (int64_t chunk = spans.begin(span); chunk < spans.begin(span + 1); ++chunk) {
    const int64_t first = chunk * kCodecChunk;
    const int rows = static_cast<int>(std::min<int64_t>(kCodecChunk, h.tokens - first));
    float* logits = o.alpha.data() + first * lanes;
    simd.expand_rows(h.k + first * h.stride, h.stride, rows, d, tile);
    simd.rope_rows(tile, rows, d, h.rope->cos_row(first), h.rope->half(),
                   h.rope->pairs() == RopePairs::kInterleaved);
    simd.gemm(tile, d, 1, rows, o.q_t.data(), lanes, lanes, d, logits, lanes, false);
    mask_window(h, first, rows, lanes, logits);
    simd.softmax_rows(logits, rows, lanes, max, sum, scale);
    std::copy(max, max + lanes, o.chunk_max.data() + chunk * lanes);
    for (int w = 0; w < m; ++w) {
      if (scale[w] == 1.0f) continue;
      for (int i = 0; i < d; ++i) y[static_cast<int64_t>(w) * d + i] *= scale[w];
    }
    simd.expand_rows(h.v + first * h.stride, h.stride, rows, d, tile);
    simd.gemm(logits, 1, lanes, m, tile, d, d, rows, y, d, true);
  }
}

// Joins the spans in order: outputs, and for every chunk the factor that turns its exponentials
// into weights. Padded lanes get factor 0.
void join_spans(const ObservedHead& h, const Spans& spans, Observation& o) {
  const int d = h.head_dim, lanes = o.lanes;
  o.factor.assign(spans.chunks * lanes, 0.0f);
  o.y.assign(static_cast<size_t>(lanes) * d, 0.0f);
  o.y_t.assign(static_cast<size_t>(lanes) * d, 0.0f);
  o.y2.assign(lanes, 0.0f);
  std::vector<double> row(d);
  for (int w = 0; w < h.queries(); ++w) {
    double top = kMasked, total = 0, square = 0;
    for (int64_t s = 0; s < spans.count; ++s) {
      top = std::max<double>(top, o.span_max[s * lanes + w]);
    }
    std::fill(row.begin(), row.end(), 0.0);
    for (int64_t s = 0; s < spans.count; ++s) {
      const double weight = std::exp(o.span_max[s * lanes + w] - top);
      total += weight * o.span_sum[s * lanes + w];
      const float* y = o.span_y.data() + (s * lanes + w) * d;
      for (int i = 0; i < d; ++i) row[i] += weight * y[i];
    }
    for (int64_t c = 0; c < spans.chunks; ++c) {
      o.factor[c * lanes + w] =
          static_cast<float>(std::exp(o.chunk_max[c * lanes + w] - top) / total);
    }
    for (int i = 0; i < d; ++i) {
      const float y = static_cast<float>(row[i] / total);
      o.y[static_cast<size_t>(w) * d + i] = y;
      o.y_t[static_cast<size_t>(i) * lanes + w] = y;
      square += static_cast<double>(y) * y;
    }
    o.y2[w] = static_cast<float>(square);
  }
}

}  // namespace

size_t Observation::bytes() const {
  size_t total = 0;
  for (const auto* v : {&alpha, &mean_alpha, &q_t, &y, &y_t, &q2, &y2, &chunk_max, &span_max,
                        &span_sum, &span_y, &factor}) {
    total += v->capacity() * sizeof(float);
  }
  return total;
}

void observe_head(const ObservedHead& h, Observation& o, CodecScratch& scratch,
                  const Parallel& parallel) {
  const CodecSimd& simd = codec_simd(active_isa());
  o.lanes = (h.queries() + 15) / 16 * 16;
  const int d = h.head_dim, lanes = o.lanes;
  Spans spans;
  spans.chunks = codec_chunks(h.tokens);
  spans.count = std::min(spans.chunks, kMaxSpans);
  load_queries(h, o);
  o.alpha.resize(static_cast<size_t>(h.tokens) * lanes);
  o.mean_alpha.resize(h.prefix());
  o.chunk_max.resize(spans.chunks * lanes);
  o.span_max.resize(spans.count * lanes);
  o.span_sum.resize(spans.count * lanes);
  o.span_y.resize(spans.count * lanes * d);
  scratch.prepare(parallel.workers, static_cast<size_t>(kCodecChunk) * d + lanes);
  parallel.run(static_cast<int>(spans.count), [&](int span, int worker) {
    observe_span(h, spans, span, o, scratch.worker(worker), simd);
  });
  join_spans(h, spans, o);
  const float inv = 1.0f / static_cast<float>(h.queries());
  parallel.run(static_cast<int>(codec_chunks(h.prefix())), [&](int chunk, int) {
    const int64_t first = static_cast<int64_t>(chunk) * kCodecChunk;
    const int rows = static_cast<int>(std::min<int64_t>(kCodecChunk, h.prefix() - first));
    simd.mean_rows(o.alpha.data() + first * lanes, rows, lanes,
                   o.factor.data() + static_cast<int64_t>(chunk) * lanes, inv,
                   o.mean_alpha.data() + first);
  });
}

}  // namespace akv::kernels
