#include "tests/kv/device_record.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "common/kv/allocation.h"
#include "common/kv/device_encoder.h"
#include "common/kv/layer_encoder.h"
#include "common/kv/record_view.h"
#include "common/kv/state.h"
#include "kernels/codec.h"
#include "kernels/reference/anchor_codec.h"
#include "kernels/residual_codec.h"

namespace akv::kv::testing {
namespace {

namespace ref = kernels::reference;

constexpr uint64_t kStateChecksum = 7;

// Device memory filled from the host.
class Upload {
 public:
  Upload(const void* from, size_t bytes) {
    if (cudaMalloc(&data_, bytes) != cudaSuccess) data_ = nullptr;
    if (data_ != nullptr && from != nullptr) {
      static_cast<void>(cudaMemcpy(data_, from, bytes, cudaMemcpyHostToDevice));
    }
  }
  ~Upload() { static_cast<void>(cudaFree(data_)); }
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

std::vector<float> angles(const kernels::RopeTable& table, int64_t positions) {
  std::vector<float> rows;
  for (int64_t p = 0; p < positions; ++p) {
    const float* row = table.cos_row(p);
    rows.insert(rows.end(), row, row + 2 * table.half());
  }
  return rows;
}

double relative(double a, double b) {
  return a == b ? 0.0 : std::fabs(a - b) / std::max(std::fabs(b), 1e-300);
}

// The choices that a record holds.
struct Choices {
  std::vector<std::vector<int32_t>> anchors;
  std::vector<std::vector<uint16_t>> slot[2];
  std::vector<std::vector<float>> gamma[2];
  std::vector<std::vector<uint8_t>> bits[2];

  ForcedChoices forced() const {
    ForcedChoices f;
    for (const auto& a : anchors) f.anchors.emplace_back(a);
    for (int side : {0, 1}) {
      for (const auto& s : slot[side]) f.slot[side].emplace_back(s);
      for (const auto& g : gamma[side]) f.gamma[side].emplace_back(g);
      for (const auto& b : bits[side]) f.bits[side].emplace_back(b);
    }
    return f;
  }
};

struct View {
  std::vector<kernels::CompressedHeadView> heads;
  std::vector<float> signs;
  kernels::CompressedLayerView layer;
};

View view_of(std::span<const std::byte> record, const StatePlan& plan) {
  View v;
  v.heads.resize(plan.shape.kv_heads);
  v.signs.resize(plan.shape.head_dim);
  v.layer = view_record(record, plan, v.heads.data(), v.signs.data());
  return v;
}

// Anchors' positions from the record's own section.
std::vector<int32_t> anchor_positions(std::span<const std::byte> record, const StatePlan& plan,
                                      const RecordLayout& layout, int head) {
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < layout.selected; ++i) {
    const int64_t at = head * layout.selected + i;
    if (plan.options.layout == Layout::kPaper) {
      int64_t p;
      std::memcpy(&p, record.data() + layout.anchor_positions + 8 * at, 8);
      positions.push_back(static_cast<int32_t>(p));
    } else {
      uint32_t p;
      std::memcpy(&p, record.data() + layout.anchor_positions + 4 * at, 4);
      positions.push_back(static_cast<int32_t>(p));
    }
  }
  for (int w = 0; w < plan.options.window; ++w) {
    positions.push_back(static_cast<int32_t>(layout.prefix + w));
  }
  return positions;
}

Choices choices_of(std::span<const std::byte> record, const StatePlan& plan,
                   const RecordLayout& layout) {
  const View v = view_of(record, plan);
  Choices c;
  for (int h = 0; h < plan.shape.kv_heads; ++h) {
    c.anchors.push_back(anchor_positions(record, plan, layout, h));
    for (int side : {0, 1}) {
      const auto& s = side == 0 ? v.heads[h].key : v.heads[h].value;
      auto& slot = c.slot[side].emplace_back();
      auto& gamma = c.gamma[side].emplace_back();
      auto& bits = c.bits[side].emplace_back();
      for (int64_t t = 0; t < layout.prefix; ++t) {
        slot.push_back(s.slots8 ? s.slots8[t] : s.slots16[t]);
        gamma.push_back(s.gamma8 ? kernels::log8_table()[s.gamma8[t]] : to_float(s.gamma16[t]));
        const bool any = (s.mask[t / 64] >> (t % 64)) & 1;
        const bool four = s.mask4 != nullptr && ((s.mask4[t / 64] >> (t % 64)) & 1);
        bits.push_back(four ? 4 : any ? 2 : 0);
      }
    }
  }
  return c;
}

class Comparison {
 public:
  Comparison(const GoldenCase& c, const StatePlan& plan, std::span<const std::byte> device)
      : c_(c),
        plan_(plan),
        device_(device),
        layout_(record_layout(plan.shape, plan.tokens, plan.layer, plan.options)),
        rope_(c.rope, c.tokens + 64),
        choices_(choices_of(device, plan, layout_)) {}

  RecordTies run() {
    std::vector<uint64_t> free, followed;
    encode(nullptr, free);
    compare_anchors();
    const ForcedChoices forced = choices_.forced();
    encode(&forced, followed);
    compare_slots();
    compare_widths();
    compare_residuals(followed);
    return ties_;
  }

 private:
  LayerEncoder& encoder() { return workspace_.encoder(); }

  std::span<std::byte> encode(const ForcedChoices* forced, std::vector<uint64_t>& words) {
    words.assign(device_.size() / 8 + 1, 0);
    const std::span<std::byte> record(reinterpret_cast<std::byte*>(words.data()), device_.size());
    const LayerInput input{c_.layer, c_.k.data(), c_.v.data(), c_.q.data(), &rope_};
    const Status ok = encoder().encode(input, plan_, kStateChecksum, record, serial(), forced);
    ties_.sections_equal &= ok.ok();
    return record;
  }

  void compare_anchors() {
    const int selected = static_cast<int>(layout_.selected);
    const int top = plan_.options.rho_percent * selected / 100;
    for (int h = 0; h < c_.kv_heads; ++h) {
      const auto ours = encoder().anchors(h);
      const auto& theirs = choices_.anchors[h];
      if (std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end())) continue;
      std::vector<float> sorted(encoder().score(h).begin(), encoder().score(h).end());
      std::sort(sorted.rbegin(), sorted.rend());
      // One flip at the cut moves the draw of the uniform share too; the flip itself must be there.
      ++ties_.anchors;
      const double gap = top > 0 ? relative(sorted[top - 1], sorted[top]) : 1.0;
      ties_.anchor_distance = std::max(ties_.anchor_distance, gap);
    }
  }

  ref::Row row(int side, int h, int64_t t) const {
    const auto& x = side == 0 ? c_.k : c_.v;
    return ref::to_row(x.data() + (t * c_.kv_heads + h) * c_.head_dim, c_.head_dim);
  }

  void compare_slots() {
    for (int side : {0, 1}) {
      for (int h = 0; h < c_.kv_heads; ++h) {
        const auto slot = encoder().slot(static_cast<Side>(side), h);
        const auto gamma = encoder().gamma(static_cast<Side>(side), h);
        for (int64_t t = 0; t < layout_.prefix; ++t) {
          ++ties_.tokens;
          const int theirs = choices_.slot[side][h][t];
          ties_.gammas += gamma[t] != choices_.gamma[side][h][t];
          if (slot[t] == theirs) continue;
          ++ties_.slots;
          const ref::Row x = row(side, h, t);
          const auto& anchors = choices_.anchors[h];
          ties_.slot_distance = std::max(
              ties_.slot_distance, relative(ref::closeness(x, row(side, h, anchors[theirs])),
                                            ref::closeness(x, row(side, h, anchors[slot[t]]))));
        }
      }
    }
  }

  void compare_widths() {
    for (int side : {0, 1}) {
      const SideBudget budget = side_budget(plan_, side == 1);
      double cut = HUGE_VAL;
      const auto visit = [&](auto&& fn) {
        for (int h = 0; h < c_.kv_heads; ++h) {
          const auto utility = encoder().utility(static_cast<Side>(side), h);
          const auto bits = encoder().bits(static_cast<Side>(side), h);
          for (int64_t t = 0; t < layout_.prefix; ++t) {
            fn(utility[t], bits[t], choices_.bits[side][h][t]);
          }
        }
      };
      visit([&](double u, int ours, int) {
        if (ours >= 2) cut = std::min(cut, priority2(u, budget));
        if (ours == 4) cut = std::min(cut, priority4(u, budget));
      });
      visit([&](double u, int ours, int theirs) {
        if (ours == theirs) return;
        ++ties_.widths;
        double off = 0;
        if ((ours >= 2) != (theirs >= 2)) off = relative(priority2(u, budget), cut);
        if ((ours == 4) != (theirs == 4)) off = std::max(off, relative(priority4(u, budget), cut));
        ties_.width_distance = std::max(ties_.width_distance, off);
      });
    }
  }

  // Codes and scales of every residual, then everything else byte by byte.
  void compare_residuals(const std::vector<uint64_t>& words) {
    const std::span<const std::byte> followed(reinterpret_cast<const std::byte*>(words.data()),
                                              device_.size());
    const View a = view_of(followed, plan_), b = view_of(device_, plan_);
    for (int h = 0; h < c_.kv_heads; ++h) {
      compare_stream(a.heads[h].key, b.heads[h].key, kernels::kKeyCodeGroup);
      compare_stream(a.heads[h].value, b.heads[h].value, kernels::kValueCodeGroup);
    }
    const auto equal = [&](uint64_t from, uint64_t to) {
      return std::equal(followed.begin() + from, followed.begin() + to, device_.begin() + from);
    };
    ties_.sections_equal &= equal(layout_.masks, layout_.key_region);
    ties_.sections_equal &= equal(layout_.slots, layout_.value_region);
    if (ties_.codes + ties_.scales == 0) {
      ties_.sections_equal &= equal(0, layout_.masks) && equal(layout_.masks, device_.size());
    }
  }

  void compare_stream(const kernels::CompressedSideView& a, const kernels::CompressedSideView& b,
                      int group) {
    if (a.n2 != b.n2 || a.n4 != b.n4) {
      ties_.sections_equal = false;
      return;
    }
    const int d = c_.head_dim;
    uint8_t x[kernels::kMaxHeadDim], y[kernels::kMaxHeadDim];
    for (const bool wide : {false, true}) {
      const int64_t n = wide ? a.n4 : a.n2;
      for (int64_t i = 0; i < n; ++i, ++ties_.residuals) {
        kernels::unpack_row(wide ? a.codes4 : a.codes2, n, i, d, wide ? 4 : 2, group, x);
        kernels::unpack_row(wide ? b.codes4 : b.codes2, n, i, d, wide ? 4 : 2, group, y);
        ties_.codes += !std::equal(x, x + d, y);
        const double ours = scale(a, wide, i), theirs = scale(b, wide, i);
        // An fp32 scale repeats the rounding of sums; a bf16 one only where it falls on a border.
        const bool f32 = a.scale2_f32 != nullptr || a.scale4_f32 != nullptr;
        ties_.scales += f32 ? relative(ours, theirs) > 1e-5 : ours != theirs;
        f32_scales_ |= f32 && ours != theirs;
      }
    }
    if (f32_scales_ && ties_.scales == 0) ties_.scales = 1;
  }

  static double scale(const kernels::CompressedSideView& s, bool wide, int64_t i) {
    const float* f = wide ? s.scale4_f32 : s.scale2_f32;
    const bf16* b = wide ? s.scale4_bf16 : s.scale2_bf16;
    return f != nullptr ? f[i] : to_float(b[i]);
  }

  const GoldenCase& c_;
  const StatePlan& plan_;
  std::span<const std::byte> device_;
  RecordLayout layout_;
  kernels::RopeTable rope_;
  Choices choices_;
  Workspace workspace_;
  RecordTies ties_;
  bool f32_scales_ = false;
};

// A case's tensors on the device.
struct Inputs {
  explicit Inputs(const GoldenCase& c)
      : table(c.rope, c.tokens + 64),
        k(c.k.data(), c.k.size() * sizeof(bf16)),
        v(c.v.data(), c.v.size() * sizeof(bf16)),
        q(c.q.data(), c.q.size() * sizeof(bf16)),
        rope(angles(table, c.tokens).data(), c.tokens * 2 * table.half() * sizeof(float)) {
    layer.layer = c.layer;
    layer.k_pre = k.as<bf16>();
    layer.v = v.as<bf16>();
    layer.q_obs = q.as<bf16>();
    layer.rope = {rope.as<float>(), table.half(), table.head_dim(), table.pairs(), c.tokens};
  }
  kernels::RopeTable table;
  Upload k, v, q, rope;
  DeviceLayerInput layer;
};

// Waits for the layer, seals and verifies it.
void complete(const DeviceEncoder& encoder, int layer, const StatePlan& plan, DeviceRecord& out) {
  if (!out.status.ok()) return;
  if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) {
    out.error = cudaGetErrorString(error);
    return;
  }
  out.status = encoder.finish(layer, out.bytes(plan, layer));
  if (!out.status.ok()) return;
  const Status valid = verify_record(out.bytes(plan, layer), layer, plan, kStateChecksum);
  if (!valid.ok()) out.error = valid.error().message;
}

DeviceRecord empty_record(const StatePlan& plan, int layer) {
  DeviceRecord out;
  out.words.assign(plan.record_bytes[layer] / 8, ~uint64_t{0});
  return out;
}

}  // namespace

RecordTies& RecordTies::operator+=(const RecordTies& o) {
  anchors += o.anchors;
  slots += o.slots;
  gammas += o.gammas;
  widths += o.widths;
  codes += o.codes;
  scales += o.scales;
  tokens += o.tokens;
  residuals += o.residuals;
  anchor_distance = std::max(anchor_distance, o.anchor_distance);
  slot_distance = std::max(slot_distance, o.slot_distance);
  width_distance = std::max(width_distance, o.width_distance);
  sections_equal &= o.sections_equal;
  return *this;
}

std::string RecordTies::text() const {
  char line[400];
  std::snprintf(
      line, sizeof(line),
      "%lld token-sides, %lld residuals; differ: anchors of %lld heads (%.1e), slots %lld "
      "(%.1e), coefficients %lld, widths %lld (%.1e), codes %lld, scales %lld",
      static_cast<long long>(tokens), static_cast<long long>(residuals),
      static_cast<long long>(anchors), anchor_distance, static_cast<long long>(slots),
      slot_distance, static_cast<long long>(gammas), static_cast<long long>(widths), width_distance,
      static_cast<long long>(codes), static_cast<long long>(scales));
  return line;
}

StatePlan plan_of(const GoldenCase& c, const CodecOptions& options, double theta) {
  PlanRequest request;
  request.options = options;
  request.options.window = c.window;
  request.options.seed = c.seed;
  request.theta = theta;
  request.min_compress_tokens = 1;
  return *plan_state(c.shape(), c.tokens, request);
}

DeviceRecord encode_on_device(const GoldenCase& c, const StatePlan& plan,
                              uint64_t observation_bytes) {
  DeviceRecord out = empty_record(plan, c.layer);
  const Inputs inputs(c);
  const Upload memory(nullptr, DeviceEncoder::memory_bytes(plan, observation_bytes));
  const DeviceEncoder encoder(plan, kStateChecksum, memory.as<std::byte>(), observation_bytes);
  out.status = encoder.encode(inputs.layer, out.bytes(plan, c.layer), DeviceStream{});
  complete(encoder, c.layer, plan, out);
  return out;
}

DeviceRecord encode_in_place(const GoldenCase& c, const StatePlan& plan, uint64_t offset) {
  DeviceRecord out = empty_record(plan, c.layer);
  const std::span<std::byte> bytes = out.bytes(plan, c.layer);
  const Inputs inputs(c);
  const Upload memory(nullptr, DeviceEncoder::memory_bytes(plan));
  const Upload state(nullptr, offset + bytes.size());
  std::byte* record = state.as<std::byte>() + offset;
  const DeviceEncoder encoder(plan, kStateChecksum, memory.as<std::byte>());
  out.status = encoder.encode(inputs.layer, bytes, DeviceStream{}, record);
  complete(encoder, c.layer, plan, out);
  if (!out.status.ok() || !out.error.empty()) return out;
  encoder.seal_on_device(bytes, record, DeviceStream{});
  std::vector<uint64_t> there(out.words.size());
  if (cudaMemcpy(there.data(), record, bytes.size(), cudaMemcpyDeviceToHost) != cudaSuccess ||
      there != out.words) {
    out.error = "the device's record is not the host's";
  }
  return out;
}

Status finish_too_early(const GoldenCase& c, const StatePlan& plan) {
  const uint64_t size = plan.record_bytes[c.layer];
  void* pinned = nullptr;  // a copy to other memory would wait
  if (cudaMallocHost(&pinned, size) != cudaSuccess) return make_error(Code::kResourceExhausted, "");
  std::memset(pinned, 0, size);  // of an earlier, good layer
  const std::span<std::byte> bytes(static_cast<std::byte*>(pinned), size);
  const Inputs inputs(c);
  const Upload memory(nullptr, DeviceEncoder::memory_bytes(plan));
  const DeviceEncoder encoder(plan, kStateChecksum, memory.as<std::byte>());
  Status status = encoder.encode(inputs.layer, bytes, DeviceStream{});
  if (status.ok()) status = encoder.finish(c.layer, bytes);
  static_cast<void>(cudaDeviceSynchronize());
  static_cast<void>(cudaFreeHost(pinned));
  return status;
}

RecordTies compare_records(const GoldenCase& c, const StatePlan& plan, DeviceRecord& device) {
  return Comparison(c, plan, device.bytes(plan, c.layer)).run();
}

}  // namespace akv::kv::testing
