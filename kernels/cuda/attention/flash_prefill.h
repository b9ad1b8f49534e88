// What flash_prefill's host code hands to its kernels.
#pragma once

#include <cstdint>

#include "kernels/device_stream.h"
#include "kernels/types.h"

namespace akv::kernels::cuda {

struct FlashPrefillArgs {
  const uint16_t* q = nullptr;  // [rows, kv_heads * group, D]
  const uint16_t* k = nullptr;  // [pos0 + rows, kv_heads, D]
  const uint16_t* v = nullptr;
  float* out = nullptr;  // [rows, kv_heads * group, D]
  bf16* out_bf16 = nullptr;
  int packed_rows = 0;  // rows * group: a KV head's query rows
  int pos0 = 0;
  int tiles = 0;  // of packed rows, set by the launch
  int kv_heads = 0;
  int group = 0;
  float scale_log2 = 0;  // log2(e) / sqrt(D)
};

// One instantiation per head size, in a file each.
template <int HeadDim>
void run_flash_prefill(FlashPrefillArgs args, DeviceStream stream);

}  // namespace akv::kernels::cuda
