// How a step is launched on the current device: block count, what shared memory holds, the kernel
// of a shape.
#include <algorithm>

#include "kernels/cuda/decode_attention/arguments.h"
#include "kernels/cuda/launch.h"

namespace akv::kernels::cuda {
namespace decode {

void size_plan(DecodeAttentionConfig* config);  // plan.cc

namespace {

constexpr int64_t kReservedPerBlock = 1024;  // of shared memory, by the driver

KernelTable kernels_of(const DecodeAttentionShape& shape) {
  const int heads = part_heads(shape.heads / shape.kv_heads, shape.head_dim);
  if (shape.head_dim == 64) return head64(heads);
  if (shape.head_dim == 96) return head96(heads);
  if (shape.head_dim == 128) return head128(heads);
  return head256(heads);
}

int64_t device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}

int64_t histogram_bytes(int heads, int anchors) {
  return anchors == 0 ? 0 : heads * histogram_stride(anchors) * 4;
}

// Shares shared memory out: the histogram first, then anchors if all of them fit; two blocks per
// multiprocessor are worth more than anchors.
void share_memory(const KernelTable& kernels, int64_t room, DecodeAttentionConfig* config) {
  const DecodeAttentionLimits& limits = config->limits;
  const int heads =
      part_heads(config->shape.heads / config->shape.kv_heads, config->shape.head_dim);
  if (limits.anchors == 0) {
    config->shared_bytes = kernels.dense_bytes;
    return;
  }
  config->shared_bytes = kernels.base_bytes;
  const int64_t histogram = histogram_bytes(heads, limits.anchors);
  if (config->shared_bytes + histogram <= room) {
    config->histogram_capacity = limits.anchors;
    config->shared_bytes += histogram;
  }
  const int64_t row_bytes = int64_t{2} * config->shape.head_dim;
  const int64_t all = limits.anchors * row_bytes;
  if (!limits.shared_anchors || config->shared_bytes + all > room) return;
  config->anchor_capacity = limits.anchors;
  config->shared_bytes += all;
}

}  // namespace
}  // namespace decode

DecodeAttentionConfig decode_attention_config(const DecodeAttentionShape& shape,
                                              const DecodeAttentionLimits& limits) {
  DecodeAttentionConfig config;
  config.shape = shape;
  config.limits = limits;
  const decode::KernelTable kernels = decode::kernels_of(shape);
  const int64_t per_block = decode::device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  const int64_t per_sm = decode::device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  int64_t room = std::min(per_block, per_sm / 2 - decode::kReservedPerBlock);
  if (limits.shared_bytes_max > 0) room = std::min(per_block, limits.shared_bytes_max);
  decode::share_memory(kernels, room, &config);
  const int per_sm_blocks = kernels.blocks_per_sm(limits.anchors > 0, config.shared_bytes);
  const auto sms = static_cast<int>(decode::device_attribute(cudaDevAttrMultiProcessorCount));
  config.blocks = limits.blocks > 0 ? limits.blocks : std::max(1, sms * per_sm_blocks);
  decode::size_plan(&config);
  return config;
}

void decode_attention(const DecodeAttentionConfig& config, const DecodeAttentionArgs& args,
                      DeviceStream stream) {
  const DecodeAttentionShape& shape = config.shape;
  const int part = decode::part_heads(shape.heads / shape.kv_heads, shape.head_dim);
  decode::KernelArgs kernel;
  kernel.plan = args.plan;
  kernel.q = args.q;
  kernel.partials = reinterpret_cast<float*>(args.scratch);
  kernel.histograms = reinterpret_cast<int32_t*>(args.scratch + config.histogram_offset);
  kernel.histogram_words = part * decode::histogram_stride(config.limits.anchors);
  kernel.halves = reinterpret_cast<uint4*>(args.scratch + config.halves_offset);
  kernel.anchor_limit = config.limits.anchors;
  kernel.suffix_offset = args.suffix_offset;
  kernel.rope = args.rope;
  kernel.layer = args.layer;
  kernel.heads = shape.heads;
  kernel.kv_heads = shape.kv_heads;
  kernel.part_heads = part;
  kernel.anchor_capacity = config.anchor_capacity;
  kernel.histogram_capacity = config.histogram_capacity;
  kernel.rows_offset =
      static_cast<int32_t>(decode::kernels_of(shape).base_bytes +
                           decode::histogram_bytes(part, config.histogram_capacity));
  if (config.anchor_capacity < config.limits.anchors) {
    decode::launch_prepare(kernel, shape.head_dim, config.limits.rows, stream);
  }
  decode::kernels_of(shape).launch(config.limits.anchors > 0, config.blocks, config.shared_bytes,
                                   kernel, stream);
  decode::launch_combine(kernel, shape.head_dim, config.limits.rows, args.out, stream);
}

}  // namespace akv::kernels::cuda
