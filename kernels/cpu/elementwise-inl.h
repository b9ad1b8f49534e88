// Norm, activation, rotation and conversions in Highway's terms, for the set that the including
// file is compiled for. Included once per instruction set, inside an unnamed namespace.

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;
using VF = hn::Vec<DF>;

// Scalar loops at the ends keep to one rule: the same operations as a lane, through a padded load.
inline VF load_n(DF d, const float* p, size_t n) {
  HWY_ALIGN float padded[hn::MaxLanes(DF())] = {};
  for (size_t i = 0; i < n; ++i) padded[i] = p[i];
  return hn::Load(d, padded);
}
inline void store_n(DF d, VF v, float* p, size_t n) {
  HWY_ALIGN float padded[hn::MaxLanes(DF())];
  hn::Store(v, d, padded);
  for (size_t i = 0; i < n; ++i) p[i] = padded[i];
}

// 2^x for x in [-126, 127]; below, 0 (the caller's masked lanes are -infinity). Relative error
// below 2e-7: minimax polynomial of 2^f on |f| <= 1/2, exact at 0.
inline VF exp2_fast(DF d, VF x) {
  const DI di;
  const VF n = hn::Round(hn::Max(x, hn::Set(d, -127.0f)));
  const VF f = hn::Sub(hn::Max(x, hn::Set(d, -127.0f)), n);
  VF p = hn::Set(d, 1.3264727187e-3f);
  p = hn::MulAdd(p, f, hn::Set(d, 9.6715126404e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.5507337433e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.4022242085e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.9314697760e-01f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  return hn::Mul(p, hn::BitCast(d, exponent));  // n = -127 gives a scale of 0
}

inline void rmsnorm_row(const float* x, int64_t dim, const float* weight, float eps, float* out) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  VF sum0 = hn::Zero(d), sum1 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= dim; i += 2 * lanes) {
    const VF a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + i + lanes);
    sum0 = hn::MulAdd(a, a, sum0);
    sum1 = hn::MulAdd(b, b, sum1);
  }
  for (; i < dim; i += lanes) {
    const size_t n = static_cast<size_t>(dim - i < lanes ? dim - i : lanes);
    const VF a = load_n(d, x + i, n);
    sum0 = hn::MulAdd(a, a, sum0);
  }
  const float total = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
  const float scale = 1.0f / __builtin_sqrtf(total / static_cast<float>(dim) + eps);
  const VF s = hn::Set(d, scale);
  for (i = 0; i + lanes <= dim; i += lanes) {
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), s), hn::LoadU(d, weight + i)), d, out + i);
  }
  for (; i < dim; ++i) out[i] = x[i] * scale * weight[i];
}

inline void silu_mul(const float* gate, const float* up, int64_t n, float* out) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto one = [&](VF g, VF u) {
    const VF x = hn::Mul(g, hn::Set(d, -1.44269504088896341f));
    const VF e = exp2_fast(d, hn::Min(x, hn::Set(d, 126.0f)));
    return hn::Mul(hn::Div(g, hn::Add(hn::Set(d, 1.0f), e)), u);
  };
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(one(hn::LoadU(d, gate + i), hn::LoadU(d, up + i)), d, out + i);
  }
  if (i < n) {
    const size_t left = static_cast<size_t>(n - i);
    store_n(d, one(load_n(d, gate + i, left), load_n(d, up + i, left)), out + i, left);
  }
}

inline void add(float* x, const float* y, int64_t n) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, x + i);
  }
  for (; i < n; ++i) x[i] += y[i];
}

inline void rotate_half(const float* x, const float* cos, const float* sin, float s, int half,
                        float* out) {
  const DF d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const VF sign = hn::Set(d, s);
  int j = 0;
  for (; j + lanes <= half; j += lanes) {
    const VF a = hn::LoadU(d, x + j), b = hn::LoadU(d, x + j + half);
    const VF c = hn::LoadU(d, cos + j), t = hn::Mul(sign, hn::LoadU(d, sin + j));
    hn::StoreU(hn::NegMulAdd(b, t, hn::Mul(a, c)), d, out + j);
    hn::StoreU(hn::MulAdd(a, t, hn::Mul(b, c)), d, out + j + half);
  }
  for (; j < half; ++j) {
    const float a = x[j], b = x[j + half], t = s * sin[j];
    out[j] = a * cos[j] - b * t;
    out[j + half] = b * cos[j] + a * t;
  }
}

inline void rotate_interleaved(const float* x, const float* cos, const float* sin, float s,
                               int half, float* out) {
  const DF d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const VF sign = hn::Set(d, s);
  int j = 0;
  for (; j + lanes <= half; j += lanes) {
    VF a, b;
    hn::LoadInterleaved2(d, x + 2 * j, a, b);
    const VF c = hn::LoadU(d, cos + j), t = hn::Mul(sign, hn::LoadU(d, sin + j));
    hn::StoreInterleaved2(hn::NegMulAdd(b, t, hn::Mul(a, c)), hn::MulAdd(a, t, hn::Mul(b, c)), d,
                          out + 2 * j);
  }
  for (; j < half; ++j) {
    const float a = x[2 * j], b = x[2 * j + 1], t = s * sin[j];
    out[2 * j] = a * cos[j] - b * t;
    out[2 * j + 1] = b * cos[j] + a * t;
  }
}

// To nearest even; NaN stays NaN.
inline void to_bf16(const float* x, int64_t n, uint16_t* out) {
  const DF d;
  const DU du;
  const DI di;
  const hn::Rebind<uint16_t, DF> d16;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto one = [&](VF v) {
    const auto u = hn::BitCast(du, v);
    const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1));
    const auto rounded = hn::Add(u, hn::Add(odd, hn::Set(du, 0x7fff)));
    const auto quiet = hn::Or(u, hn::Set(du, 0x400000));
    const auto bits = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet, rounded);
    return hn::DemoteTo(d16, hn::BitCast(di, hn::ShiftRight<16>(bits)));
  };
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(one(hn::LoadU(d, x + i)), d16, out + i);
  if (i < n) {
    HWY_ALIGN uint16_t padded[hn::MaxLanes(DF())];
    hn::Store(one(load_n(d, x + i, static_cast<size_t>(n - i))), d16, padded);
    for (int64_t j = i; j < n; ++j) out[j] = padded[j - i];
  }
}

inline VF load_bf16(DF d, const uint16_t* p) {
  const hn::Rebind<uint16_t, DF> d16;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::LoadU(d16, p))));
}

inline void to_float(const uint16_t* x, int64_t n, float* out) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(load_bf16(d, x + i), d, out + i);
  for (; i < n; ++i) {
    const uint32_t bits = static_cast<uint32_t>(x[i]) << 16;
    __builtin_memcpy(out + i, &bits, 4);
  }
}
