// Flags of prefill_node.
#pragma once

#include <cstdint>

#include "common/app/node_config.h"
#include "prefill_node/engine/layer_stream.h"
#include "prefill_node/outbox/sender_coats.h"
#include "prefill_node/service/prefill_service.h"

namespace akv::prefill {

struct Config : NodeConfig {
  uint64_t outbox_bytes = 0;       // 0: 10% of the memory limit
  uint64_t max_prefill_bytes = 0;  // 0: 25% of the memory limit, 50% of a GPU's free memory
  int64_t max_queue_tokens = 262'144;
  int64_t chunk_tokens = 0;  // 0: 512, 4096 on a GPU
  SenderCoats coats;

  void declare(Schema& schema);
  void declare_prefill(Schema& schema);  // only what decode_node --local shares
  Status validate() const;
  // Defaults follow the memory that the engine computes in.
  ServiceOptions service_options(const EngineDevice& where) const;
  StreamOptions stream_options(const EngineDevice& where) const;
};

}  // namespace akv::prefill
