// Weights on huge pages: decode steps read all of them again and again.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "common/log/log.h"
#include "common/model/model.h"

namespace akv::decode {

// Moves the model's file to huge pages in a thread of its own while the node serves already, and
// says in the log what came of it. It leaves a file alone that is larger than `room_bytes`: mapped
// pages can be dropped under pressure, moved ones cannot. The destructor stops the move after at
// most one piece; what was moved stays so.
class HugeWeights {
 public:
  HugeWeights(std::shared_ptr<const model::Model> model, uint64_t room_bytes, Logger log);
  ~HugeWeights();
  HugeWeights(const HugeWeights&) = delete;
  HugeWeights& operator=(const HugeWeights&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace akv::decode
