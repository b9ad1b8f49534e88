#include "kernels/reference/model_ops.h"

#include <algorithm>
#include <cmath>

namespace akv::kernels::reference {
namespace {

double kv_at(const float* f32, const bf16* b16, int64_t index) {
  return f32 != nullptr ? static_cast<double>(f32[index])
                        : static_cast<double>(to_float(b16[index]));
}

}  // namespace

void matmul(const float* x, int64_t m, const Matrix& w, double* y) {
  for (int64_t n = 0; n < w.rows; ++n) {
    for (int64_t i = 0; i < m; ++i) y[i * w.rows + n] = 0.0;
    for (int64_t k = 0; k < w.cols; ++k) {
      const double value = weight(w, n, k);
      for (int64_t i = 0; i < m; ++i) {
        y[i * w.rows + n] += value * static_cast<double>(x[i * w.cols + k]);
      }
    }
  }
}

void rmsnorm(const float* x, int64_t rows, int64_t dim, const float* weights, double eps,
             double* out) {
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0.0;
    for (int64_t i = 0; i < dim; ++i) sum += std::pow(static_cast<double>(x[r * dim + i]), 2);
    const double scale = 1.0 / std::sqrt(sum / static_cast<double>(dim) + eps);
    for (int64_t i = 0; i < dim; ++i) {
      out[r * dim + i] =
          static_cast<double>(x[r * dim + i]) * scale * static_cast<double>(weights[i]);
    }
  }
}

void silu_mul(const float* gate, const float* up, int64_t n, double* out) {
  for (int64_t i = 0; i < n; ++i) {
    const double g = gate[i];
    out[i] = g / (1.0 + std::exp(-g)) * static_cast<double>(up[i]);
  }
}

void rope(const RopeParams& params, const double* x, int64_t position, double* out) {
  const int half = (params.rope_dim > 0 ? params.rope_dim : params.head_dim) / 2;
  std::copy_n(x, params.head_dim, out);
  for (int j = 0; j < half; ++j) {
    double frequency = params.freq_scale * std::pow(params.base, -static_cast<double>(j) / half);
    if (!params.freq_factors.empty()) {
      frequency /= static_cast<double>(params.freq_factors[static_cast<size_t>(j)]);
    }
    const double angle = static_cast<double>(position) * frequency;
    const bool halves = params.pairs == RopePairs::kHalf;
    const int a = halves ? j : 2 * j, b = halves ? j + half : 2 * j + 1;
    const double xa = x[a], xb = x[b];
    out[a] = xa * std::cos(angle) - xb * std::sin(angle);
    out[b] = xb * std::cos(angle) + xa * std::sin(angle);
  }
}

void attention(const FlashPrefillParams& p, double* out) {
  const int dim = p.head_dim, group = p.q_heads / p.kv_heads;
  const int64_t keys = p.pos0 + p.rows;
  std::vector<double> rotated(static_cast<size_t>(keys * dim)), raw(static_cast<size_t>(dim));
  std::vector<double> logits(static_cast<size_t>(keys));
  for (int h = 0; h < p.kv_heads; ++h) {
    for (int64_t t = 0; t < keys; ++t) {
      for (int d = 0; d < dim; ++d) {
        raw[static_cast<size_t>(d)] = kv_at(p.k_f32, p.k, (t * p.kv_heads + h) * dim + d);
      }
      rope(p.rope->params(), raw.data(), t, rotated.data() + t * dim);
    }
    for (int64_t row = 0; row < p.rows; ++row) {
      for (int g = 0; g < group; ++g) {
        const int64_t at = (row * p.q_heads + h * group + g) * dim;
        const int64_t seen = p.pos0 + row + 1;
        double max = -INFINITY;
        for (int64_t t = 0; t < seen; ++t) {
          double dot = 0.0;
          for (int d = 0; d < dim; ++d) {
            dot += static_cast<double>(p.q[at + d]) * rotated[static_cast<size_t>(t * dim + d)];
          }
          logits[static_cast<size_t>(t)] = dot / std::sqrt(static_cast<double>(dim));
          max = std::max(max, logits[static_cast<size_t>(t)]);
        }
        double sum = 0.0;
        std::fill_n(out + at, dim, 0.0);
        for (int64_t t = 0; t < seen; ++t) {
          const double p_t = std::exp(logits[static_cast<size_t>(t)] - max);
          sum += p_t;
          for (int d = 0; d < dim; ++d) {
            out[at + d] += p_t * kv_at(p.v_f32, p.v, (t * p.kv_heads + h) * dim + d);
          }
        }
        for (int d = 0; d < dim; ++d) out[at + d] /= sum;
      }
    }
  }
}

}  // namespace akv::kernels::reference
