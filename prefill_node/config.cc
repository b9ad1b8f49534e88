#include "prefill_node/config.h"

#include "common/device/host.h"

namespace akv::prefill {

void Config::declare(Schema& s) {
  declare_node(s);
  declare_prefill(s);
  s.section("Sending");
  s.bytes("state-rate", coats.rate_bytes_per_s)
      .unit("bytes/s")
      .default_note("no limit")
      .doc("most bytes of states sent a second");
  s.integer("state-delay-ms", coats.delay_ms)
      .unit("ms")
      .range(0, 60'000)
      .doc("for drills: holds each record back");
  s.text("state-fault", coats.fault, "KIND=RECORD[:CHANNELS]")
      .doc("for drills: corrupt, cut or stall transfers at a record, all or the first CHANNELS");
}

void Config::declare_prefill(Schema& s) {
  s.section("Prefill");
  s.bytes("outbox-bytes", outbox_bytes)
      .default_note("10% of the memory limit")
      .doc("states kept until their request ends, for resending");
  s.bytes("max-prefill-bytes", max_prefill_bytes)
      .default_note("25% of the memory limit; 50% of a GPU's free memory")
      .doc("hidden states and activations of all prompts in work");
  s.integer("max-queue-tokens", max_queue_tokens)
      .unit("tokens")
      .range(1, 1e12)
      .doc("prompt tokens waiting or in work; more are refused");
  s.integer("chunk-tokens", chunk_tokens)
      .unit("tokens")
      .range(32, 65536)
      .default_note("512; 4096 on a GPU")
      .doc("rows of one matrix product; bounds the activations beside the hidden states");
}

Status Config::validate() const {
  AKV_RETURN_IF_ERROR(validate_node());
  return prefill::validate(coats);
}

ServiceOptions Config::service_options(const EngineDevice& where) const {
  const uint64_t memory = memory_limit_bytes();
  const uint64_t work = where.is_gpu() ? where.free_bytes / 2 : memory / 4;
  ServiceOptions options;
  options.outbox_bytes = outbox_bytes > 0 ? outbox_bytes : memory / 10;
  options.scheduler.max_prefill_bytes = max_prefill_bytes > 0 ? max_prefill_bytes : work;
  options.scheduler.max_queue_tokens = static_cast<uint64_t>(max_queue_tokens);
  options.scheduler.transfer_timeout_ms = transfer_timeout_ms;
  return options;
}

StreamOptions Config::stream_options(const EngineDevice& where) const {
  if (chunk_tokens > 0) return {.chunk_rows = chunk_tokens};
  return {.chunk_rows = where.is_gpu() ? 4096 : 512};
}

}  // namespace akv::prefill
