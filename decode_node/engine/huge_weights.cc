#include "decode_node/engine/huge_weights.h"

#include <pthread.h>

#include <utility>

#include "common/model/gguf.h"

namespace akv::decode {

HugeWeights::HugeWeights(std::shared_ptr<const model::Model> model, uint64_t room_bytes,
                         Logger log) {
  const uint64_t bytes = model->file().file_bytes();
  if (bytes > room_bytes) {
    log.info("weights stay mapped", {{"bytes", bytes}, {"reason", "little memory beside them"}});
    return;
  }
  thread_ = std::thread([this, model = std::move(model), log = std::move(log)] {
    const auto moved = model->file().map().move_to_huge_pages(stop_);
    if (moved.ok()) {
      log.info("weights on huge pages", {{"bytes", *moved}});
    } else {
      log.info("weights stay mapped", {{"reason", moved.error().message}});
    }
  });
  pthread_setname_np(thread_.native_handle(), "huge-weights");
}

HugeWeights::~HugeWeights() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

}  // namespace akv::decode
