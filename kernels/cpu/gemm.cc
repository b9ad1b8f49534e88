#include "kernels/gemm.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/scratch.h"
#include "kernels/dequant.h"
#include "kernels/isa.h"

// oneDNN is built on OpenMP; a pool's worker that calls it is a "caller" with a team of its own.
extern "C" void omp_set_num_threads(int);

namespace akv::kernels {
namespace {

// Rows of one oneDNN call. Where several give the same bits per row, the largest that leaves every
// worker two tasks is taken and the remainder uses the smaller ones. The AMX kernels choose their
// split of K by the number of rows, so that there only one size may be used.
constexpr int64_t kTiles[] = {128, 64, 16};
constexpr int64_t kAmxTiles[] = {64};
constexpr int kTasksPerWorker = 2;
// Output rows that pack() expands at a time: a multiple of every blocked layout's N block.
constexpr int64_t kPanelRows = 192;

// oneDNN must not use more than AKV_ISA allows. The library takes this before its first use only.
void limit_isa() {
  switch (active_isa()) {
    case Isa::kPortable:
      dnnl_set_max_cpu_isa(dnnl_cpu_isa_sse41);
      break;
    case Isa::kAvx2:
      dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2);
      break;
    case Isa::kAvx512:
      dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core);
      break;
    case Isa::kAvx512Bf16:
      if (!amx_available()) dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16);
      break;
  }
}

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine = [] {
    limit_isa();
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return engine;
}

// Per thread: a stream, and the team of one.
dnnl::stream& thread_stream() {
  thread_local dnnl::stream stream = [] {
    omp_set_num_threads(1);
    return dnnl::stream(cpu_engine());
  }();
  return stream;
}

dnnl::memory::data_type data_type(Compute compute) {
  return compute == Compute::kBf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

size_t element_bytes(Compute compute) { return compute == Compute::kBf16 ? 2 : 4; }

bool is_amd() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("amd") != 0;
#else
  return false;
#endif
}

struct Product {
  dnnl::memory::desc x;
  dnnl::memory::desc y;
  dnnl::memory::desc scratch;
  dnnl::matmul run;
};

}  // namespace

Compute best_compute() {
  if (active_isa() != Isa::kAvx512Bf16) return Compute::kF32;
  // AMX is many times f32's rate; of the others, AMD's vdpbf16ps doubles it and Intel's does not
  // reach it (measured, README).
  return amx_available() || is_amd() ? Compute::kBf16 : Compute::kF32;
}

const char* compute_name(Compute compute) { return compute == Compute::kBf16 ? "bf16" : "f32"; }

struct PackedWeights::Impl {
  int64_t n = 0;
  int64_t k = 0;
  Compute compute = Compute::kF32;
  bool amx = false;
  Buffer packed;
  dnnl::memory::desc layout;
  // Of the shape: by (rows of a tile, accumulate); and by rows of a panel.
  std::map<std::pair<int64_t, bool>, Product> products;
  std::map<int64_t, std::pair<dnnl::memory::desc, dnnl::reorder>> panels;

  dnnl::matmul::primitive_desc describe(int64_t m, const dnnl::memory::desc& weights,
                                        bool accumulate) const {
    using tag = dnnl::memory::format_tag;
    const dnnl::memory::desc x({m, k}, data_type(compute), tag::ab);
    const dnnl::memory::desc y({m, n}, dnnl::memory::data_type::f32, tag::ab);
    dnnl::primitive_attr attributes;
    // The caller's scratchpad makes a primitive safe to execute on several threads at once.
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    return {dnnl::matmul::desc(x, weights, y), attributes, cpu_engine()};
  }

  const Product& product(int64_t m, bool accumulate) {
    auto [it, added] = products.try_emplace({m, accumulate});
    if (added) {
      const auto desc = describe(m, layout, accumulate);
      it->second = {desc.src_desc(), desc.dst_desc(), desc.scratchpad_desc(), dnnl::matmul(desc)};
    }
    return it->second;
  }

  std::span<const int64_t> tiles() const {
    return amx ? std::span<const int64_t>(kAmxTiles) : std::span<const int64_t>(kTiles);
  }

  void set_shape(const Matrix& w, Compute wanted);
  const std::pair<dnnl::memory::desc, dnnl::reorder>& panel(int64_t rows);
  std::byte* panel_data(int64_t row) const;
  void multiply_tile(const Product& of, int64_t tile, const float* x, int64_t rows, float* y,
                     bool accumulate) const;
};

// A new shape: let oneDNN choose the layout, make room, and create what gemm() will run.
void PackedWeights::Impl::set_shape(const Matrix& w, Compute wanted) {
  if (n == w.rows && k == w.cols && compute == wanted && packed.size() != 0) return;
  products.clear();
  panels.clear();
  n = w.rows;
  k = w.cols;
  compute = wanted;
  try {
    const dnnl::memory::desc any({k, n}, data_type(compute), dnnl::memory::format_tag::any);
    const auto desc = describe(kAmxTiles[0], any, false);
    layout = desc.weights_desc();
    amx = std::strstr(desc.impl_info_str(), "amx") != nullptr;
    packed.reserve(layout.get_size());
    for (int64_t tile : tiles()) product(tile, false);
  } catch (const dnnl::error& e) {
    packed.clear();
    throw std::runtime_error(std::string("no ") + compute_name(compute) +
                             " matrix product on this CPU: " + e.what());
  }
}

// The reorder of `rows` output rows, [rows, K] f32, into the packed layout: the same primitive for
// every panel of that many rows.
const std::pair<dnnl::memory::desc, dnnl::reorder>& PackedWeights::Impl::panel(int64_t rows) {
  auto [it, added] = panels.try_emplace(rows);
  if (added) {
    const auto to = layout.submemory_desc({k, rows}, {0, 0});
    const dnnl::memory::desc from({k, rows}, dnnl::memory::data_type::f32,
                                  dnnl::memory::format_tag::ba);
    const dnnl::reorder::primitive_desc desc(cpu_engine(), from, cpu_engine(), to);
    it->second = {to, dnnl::reorder(desc)};
  }
  return it->second;
}

// Where output row `row` (a multiple of the N block) begins: blocks of N are strides[1] apart.
std::byte* PackedWeights::Impl::panel_data(int64_t row) const {
  const auto& blocking = layout.data.format_desc.blocking;
  int64_t block = 1;
  for (int i = 0; i < blocking.inner_nblks; ++i) {
    if (blocking.inner_idxs[i] == 1) block *= blocking.inner_blks[i];
  }
  return packed.data() +
         static_cast<size_t>(row / block * blocking.strides[1]) * element_bytes(compute);
}

PackedWeights::PackedWeights() : impl_(std::make_unique<Impl>()) {}
PackedWeights::~PackedWeights() = default;
PackedWeights::PackedWeights(PackedWeights&&) noexcept = default;
PackedWeights& PackedWeights::operator=(PackedWeights&&) noexcept = default;

int64_t PackedWeights::rows() const { return impl_->n; }
int64_t PackedWeights::cols() const { return impl_->k; }
Compute PackedWeights::compute() const { return impl_->compute; }
size_t PackedWeights::bytes() const { return impl_->packed.size(); }

void PackedWeights::clear() {
  impl_->packed.clear();
  impl_->n = impl_->k = 0;
}

void PackedWeights::pack(const Matrix& w, Compute compute, const Parallel& parallel) {
  thread_stream();  // the primitives are made for the team of one
  Impl& self = *impl_;
  self.set_shape(w, compute);
  const int64_t whole = w.rows / kPanelRows;
  const int64_t rest = w.rows % kPanelRows;
  if (whole > 0) self.panel(kPanelRows);
  if (rest > 0) self.panel(rest);

  parallel.run(static_cast<int>(whole + (rest > 0 ? 1 : 0)), [&](int task, int) {
    const int64_t row = task * kPanelRows;
    const int64_t rows = std::min(kPanelRows, w.rows - row);
    auto& expanded = thread_scratch(ScratchUse::kGemmInput);
    expanded.reserve(static_cast<size_t>(rows * w.cols) * sizeof(float));
    float* data = reinterpret_cast<float*>(expanded.data());
    dequantize_rows(w, row, rows, data);

    const auto& [to_desc, reorder] = self.panels.at(rows);
    dnnl::stream& stream = thread_stream();
    const dnnl::memory::desc from_desc({w.cols, rows}, dnnl::memory::data_type::f32,
                                       dnnl::memory::format_tag::ba);
    dnnl::memory from(from_desc, cpu_engine(), data);
    dnnl::memory to(to_desc, cpu_engine(), self.panel_data(row));
    reorder.execute(stream, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
    stream.wait();
  });
}

// `rows` <= tile rows of x and y; fewer are padded in scratch, so that the arithmetic is the
// tile's.
void PackedWeights::Impl::multiply_tile(const Product& of, int64_t tile, const float* x,
                                        int64_t rows, float* y, bool accumulate) const {
  const size_t x_count = static_cast<size_t>(tile * k), y_count = static_cast<size_t>(tile * n);
  const size_t used = static_cast<size_t>(rows * k), y_used = static_cast<size_t>(rows * n);
  void* source = const_cast<float*>(x);
  if (compute == Compute::kBf16 || rows < tile) {
    auto& input = thread_scratch(ScratchUse::kGemmInput);
    input.reserve(x_count * sizeof(float));
    source = input.data();
    if (compute == Compute::kBf16) {
      bf16* to = reinterpret_cast<bf16*>(input.data());
      convert_to_bf16(x, static_cast<int64_t>(used), to);
      std::fill(to + used, to + x_count, bf16{});
    } else {
      float* to = reinterpret_cast<float*>(input.data());
      std::copy_n(x, used, to);
      std::fill(to + used, to + x_count, 0.0f);
    }
  }
  float* target = y;
  if (rows < tile) {
    auto& output = thread_scratch(ScratchUse::kGemmOutput);
    output.reserve(y_count * sizeof(float));
    target = reinterpret_cast<float*>(output.data());
    if (accumulate) {
      std::copy_n(y, y_used, target);
      std::fill(target + y_used, target + y_count, 0.0f);
    }
  }
  auto& work = thread_scratch(ScratchUse::kLibrary);
  work.reserve(of.scratch.get_size());

  dnnl::stream& stream = thread_stream();
  const dnnl::engine& engine = cpu_engine();
  of.run.execute(stream, {{DNNL_ARG_SRC, dnnl::memory(of.x, engine, source)},
                          {DNNL_ARG_WEIGHTS, dnnl::memory(layout, engine, packed.data())},
                          {DNNL_ARG_DST, dnnl::memory(of.y, engine, target)},
                          {DNNL_ARG_SCRATCHPAD, dnnl::memory(of.scratch, engine, work.data())}});
  stream.wait();
  if (target != y) std::copy_n(target, y_used, y);
}

void gemm(const float* x, int64_t m, const PackedWeights& w, float* y, const Parallel& parallel,
          bool accumulate) {
  thread_stream();
  // Creating a product that only this call needs (accumulate) changes no weights.
  auto& self = *const_cast<PackedWeights::Impl*>(w.impl());
  const auto tiles = self.tiles();
  int64_t step = tiles.back();
  for (int64_t tile : tiles) {
    if (m >= tile * kTasksPerWorker * parallel.workers) {
      step = tile;
      break;
    }
  }
  for (int64_t tile : tiles) self.product(tile, accumulate);

  parallel.run(static_cast<int>((m + step - 1) / step), [&](int task, int) {
    int64_t row = task * step;
    const int64_t end = std::min(m, row + step);
    while (row < end) {
      int64_t tile = tiles.back();
      for (int64_t candidate : tiles) {
        if (candidate <= end - row) {
          tile = candidate;
          break;
        }
      }
      const int64_t rows = std::min(tile, end - row);
      self.multiply_tile(self.products.at({tile, accumulate}), tile, x + row * self.k, rows,
                         y + row * self.n, accumulate);
      row += rows;
    }
  });
}

}  // namespace akv::kernels
