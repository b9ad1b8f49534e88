// Flags of decode_node.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/app/node_config.h"
#include "decode_node/dispatch/dispatcher.h"
#include "decode_node/dispatch/peer_watch.h"
#include "decode_node/plan_report.h"
#include "decode_node/scheduler/engine.h"

namespace akv::decode {

struct Config : NodeConfig {
  HostPort http{"127.0.0.1", 8080};
  PeerSource prefill;
  PeerSource decode;
  bool local = false;
  std::string codec = "anchorkv";
  std::string profile = "pooled";
  double theta = 0;  // 0: auto
  std::vector<std::string> codec_options;
  std::string on_unreachable_theta = "best";
  int64_t min_compress_tokens = 512;
  int64_t max_sessions = 256;
  uint64_t max_state_bytes = 0;   // 0: 50% of the memory limit, or of a GPU's free memory
  uint64_t max_parked_bytes = 0;  // 0: 25% of the memory limit
  int64_t max_queue = 1024;
  int64_t max_queue_tokens = 1'048'576;
  int64_t request_timeout_ms = 600'000;
  std::string api_key_file;
  std::string model_name;     // of /v1/models; empty: the file's name without directory and .gguf
  std::string chat_template;  // a builtin's name; empty: the model's own
  // Of --local's prefill part.
  uint64_t outbox_bytes = 0;
  uint64_t max_prefill_bytes = 0;
  // Of --plan, which is handled before the daemon starts.
  bool plan = false;
  PlanLoad plan_load;

  void declare(Schema& schema);
  Status validate() const;
  Result<DispatcherOptions> dispatcher_options() const;
  EngineOptions engine_options(const EngineDevice& where) const;

 private:
  void declare_plan(Schema& schema);
};

}  // namespace akv::decode
