// Compression on a device: as compress_layer, with the layer's tensors, all intermediate results
// and the record in device memory. Nothing comes back to the host but the finished record, one copy
// at the end. Link akv_kernels_cuda (or, in tests, its shim) beside this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/result.h"
#include "common/kv/plan.h"
#include "common/kv/record_layout.h"
#include "kernels/device_stream.h"
#include "kernels/rope.h"
#include "kernels/types.h"

namespace akv::kernels::cuda {
struct CodecLayer;
}

namespace akv::kv {

// LayerInput with pointers into device memory, rows aligned to 16 bytes. They are read until the
// enqueued work is done.
struct DeviceLayerInput {
  int layer = 0;                // the model's layer index
  const bf16* k_pre = nullptr;  // [S, H, D], after bias and QK-norm, before RoPE
  const bf16* v = nullptr;      // [S, H, D]
  const bf16* q_obs = nullptr;  // [W, Hq, D] post-RoPE, the last W positions (compressed only)
  kernels::DeviceRope rope;     // at least S positions
};

// Encodes the layers of one planned state, one after the other. Owns no memory; holds only how the
// caller's is divided. One thread at a time; a state needs one encoder, an encoder one stream.
//
//   for each layer: encode(input, host, stream); ... (the stream's next layer may be enqueued)
//   once the stream has passed it: finish(layer, host)
class DeviceEncoder {
 public:
  // The attention weights of the observed queries are by far the largest scratch. KV heads go
  // through the observation in groups whose weights fit these bytes, at least one by one: at 128K
  // tokens and four query heads a KV head's are 64 MiB. The record does not depend on it.
  static constexpr uint64_t kObservationBytes = uint64_t{128} << 20;

  // Device bytes that an encoder of this plan takes, the record included; exact.
  static uint64_t memory_bytes(const StatePlan& plan,
                               uint64_t observation_bytes = kObservationBytes);

  // `memory`: device memory of memory_bytes(plan, observation_bytes), aligned to 256; it must
  // outlive the encoder. `state_checksum` is that of the state's header (write_header).
  DeviceEncoder(const StatePlan& plan, uint64_t state_checksum, std::byte* memory,
                uint64_t observation_bytes = kObservationBytes);

  // Enqueues the layer's work and, where `host` is not empty, the copy of the record to it. `host`
  // has plan.record_bytes[input.layer] bytes; pinned memory makes the copy asynchronous. Never
  // waits, allocates or synchronises. kInvalidArgument if the input does not belong to the plan.
  // `record`: where the record is built, device memory of as many bytes, aligned to 8 (its place in
  // a state that is sent from the device); null for the encoder's own.
  Status encode(const DeviceLayerInput& input, std::span<std::byte> host, DeviceStream stream,
                std::byte* record = nullptr) const;

  // Seals a copied record with its header and checksum. Call once the stream has passed the
  // layer's encode. kDataLoss if the layer's tensors, a coefficient or a scale were not finite;
  // kInternal if the copy has not come (a failed launch, or nobody waited).
  Status finish(int layer, std::span<std::byte> host) const;

  // Enqueues the copy of a finished record's header to the record on the device, which is complete
  // but for it: for states that are sent from there. `host` is pinned and stays until then.
  void seal_on_device(std::span<const std::byte> host, std::byte* record,
                      DeviceStream stream) const;

  // The encoder's own record as the last encode leaves it on the device, without its header. The
  // next encode overwrites it, in stream order.
  std::byte* device_record() const { return memory_; }

 private:
  void encode_compressed(const kernels::cuda::CodecLayer& layer, int layer_index, std::byte* record,
                         DeviceStream stream) const;

  StatePlan plan_;
  RecordLayout layout_;
  uint64_t state_checksum_ = 0;
  std::byte* memory_ = nullptr;
  uint64_t observation_bytes_ = 0;
};

}  // namespace akv::kv
