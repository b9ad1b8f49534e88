// The layer graph on a device, as graph.h is on CPUs: the engine owns hidden states, K/V and
// attention, the graph weights in use and scratch. Two forms, since their products differ: chunks
// of a prompt (weights expanded a layer at a time, GEMM), and steps of a few rows (low-bit GEMV).
//
// All pointers are device memory, everything is put into the graph's stream and nothing waits;
// whoever owns the stream asks it for errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/base/result.h"
#include "common/device/memory.h"
#include "common/model/device_weights.h"
#include "kernels/device_stream.h"
#include "kernels/gemm.h"
#include "kernels/types.h"

namespace akv::model {

// Where a chunk's rows go, dense. Null ones are not written.
struct DeviceQkv {
  bf16* q = nullptr;      // [M, Hq, D] after bias, QK-norm, RoPE
  bf16* k_pre = nullptr;  // [M, H, D] before RoPE: the codec's input
  bf16* k_rot = nullptr;  // [M, H, D] after RoPE: attention's
  bf16* v = nullptr;      // [M, H, D]
};

class DevicePrefillGraph {
 public:
  // kResourceExhausted where scratch_bytes() do not fit.
  static Result<std::unique_ptr<DevicePrefillGraph>> create(
      std::shared_ptr<const DeviceWeights> weights, int64_t max_rows, DeviceStream stream);
  // Scratch: one layer in bf16, activations of max_rows, the products' workspace.
  static uint64_t scratch_bytes(const ModelConfig& config, int64_t max_rows);

  // x[i] = embedding row of ids[i] (device memory, checked by the caller).
  void embed(const int32_t* ids, int64_t count, float* x);
  // Expands the layer's matrices; free if it is the current one. The steps below call it.
  void prepare_layer(int layer);
  // REQUIRES of all: 1 <= rows <= max_rows.
  void qkv(int layer, const float* x, int64_t rows, int64_t pos0, const DeviceQkv& out);
  void attn_out(int layer, const bf16* attn, int64_t rows, float* x);
  void mlp(int layer, int64_t rows, float* x);
  // Logits [vocab] of one row.
  void logits(const float* x_row, float* out);

  // How products are computed, for the start-up log.
  const char* gemm_description() const { return gemm_.description(); }

 private:
  enum Role { kQ, kK, kV, kO, kGate, kUp, kDown, kRoles };
  struct Scratch {
    bf16* expanded[kRoles] = {};  // one layer's matrices
    bf16* normed = nullptr;       // [max_rows, d]
    bf16* act = nullptr;          // [max_rows, ff]
    float* q = nullptr;           // [max_rows, Hq*D]
    float* k = nullptr;           // [max_rows, H*D]
    float* v = nullptr;           // [max_rows, H*D]
    float* gate = nullptr;        // [max_rows, ff]
    float* up = nullptr;          // [max_rows, ff]
    float* last = nullptr;        // [d]
    std::byte* workspace = nullptr;
    // Divides memory at `base`, or only counts where it is null; bytes taken.
    uint64_t carve(const ModelConfig& config, int64_t max_rows, std::byte* base);
  };
  DevicePrefillGraph(std::shared_ptr<const DeviceWeights> weights, int64_t max_rows,
                     DeviceStream stream, DeviceBuffer memory, const Scratch& scratch);
  void product(Role role, const bf16* x, int64_t rows, float* y, bool accumulate);

  const std::shared_ptr<const DeviceWeights> weights_;
  const int64_t max_rows_;
  const DeviceStream stream_;
  const DeviceBuffer memory_;
  const Scratch scratch_;
  int expanded_layer_ = -1;
  kernels::cuda::Gemm gemm_;
};

// What a step reads beside the hidden states; device arrays of `rows`, fixed for the graph's life
// so that a captured step can be replayed.
struct DeviceStepRows {
  const int64_t* positions = nullptr;
  bf16* const* pages = nullptr;    // suffix page that takes the row's K/V
  const int32_t* slots = nullptr;  // token in it; < 0: a row of padding
  int64_t layer_stride = 0;        // elements of one layer in a page
};

class DeviceStepGraph {
 public:
  static Result<std::unique_ptr<DeviceStepGraph>> create(
      std::shared_ptr<const DeviceWeights> weights, int64_t max_rows, DeviceStream stream);

  void embed(const int32_t* ids, int64_t count, float* x);
  // q [M, Hq, D] f32 after RoPE; keys and values go into their pages.
  void qkv(int layer, const float* x, int64_t rows, const DeviceStepRows& at, float* q);
  void attn_out(int layer, const float* attn, int64_t rows, float* x);
  void mlp(int layer, int64_t rows, float* x);
  // out[i] [vocab] = head * RMSNorm(x[rows[i]]) for count rows, whose indices lie on the device.
  void logits(const float* x, const int32_t* rows, int64_t count, float* out);

 private:
  struct Scratch {
    float* normed = nullptr;    // [max_rows, d]
    float* gathered = nullptr;  // [max_rows, d]
    float* k = nullptr;         // [max_rows, H*D]
    float* v = nullptr;         // [max_rows, H*D]
    float* gate = nullptr;      // [max_rows, ff]
    float* up = nullptr;        // [max_rows, ff]
    uint64_t carve(const ModelConfig& config, int64_t max_rows, std::byte* base);
  };
  DeviceStepGraph(std::shared_ptr<const DeviceWeights> weights, int64_t max_rows,
                  DeviceStream stream, DeviceBuffer memory, const Scratch& scratch);
  struct Product {
    const Matrix* weight;
    float* y;
  };
  void products(const float* x, int64_t rows, std::span<const Product> products, bool accumulate);

  const std::shared_ptr<const DeviceWeights> weights_;
  const int64_t max_rows_;
  const DeviceStream stream_;
  const DeviceBuffer memory_;
  const Scratch scratch_;
};

}  // namespace akv::model
