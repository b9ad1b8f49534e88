#include "kernels/flash_prefill.h"

#include <cmath>

#include "kernels/cuda/attention/flash_prefill.h"

namespace akv::kernels::cuda {
namespace {

constexpr int kMaxGroup = 16;
constexpr float kLog2E = 1.44269504f;

}  // namespace

bool flash_prefill_supports(int q_heads, int kv_heads, int head_dim) {
  const bool dim = head_dim == 64 || head_dim == 96 || head_dim == 128 || head_dim == 256;
  return dim && kv_heads > 0 && q_heads % kv_heads == 0 && q_heads / kv_heads <= kMaxGroup;
}

void flash_prefill(const FlashPrefillParams& params, DeviceStream stream) {
  if (params.rows == 0) return;
  FlashPrefillArgs args;
  args.q = reinterpret_cast<const uint16_t*>(params.q);
  args.k = reinterpret_cast<const uint16_t*>(params.k);
  args.v = reinterpret_cast<const uint16_t*>(params.v);
  args.out = params.out;
  args.out_bf16 = params.out_bf16;
  args.group = params.q_heads / params.kv_heads;
  args.packed_rows = static_cast<int>(params.rows) * args.group;
  args.pos0 = static_cast<int>(params.pos0);
  args.kv_heads = params.kv_heads;
  args.scale_log2 = kLog2E / std::sqrt(static_cast<float>(params.head_dim));
  switch (params.head_dim) {
    case 64:
      return run_flash_prefill<64>(args, stream);
    case 96:
      return run_flash_prefill<96>(args, stream);
    case 128:
      return run_flash_prefill<128>(args, stream);
    case 256:
      return run_flash_prefill<256>(args, stream);
    default:
      return;  // flash_prefill_supports() says no
  }
}

}  // namespace akv::kernels::cuda
