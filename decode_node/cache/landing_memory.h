// Memory of an engine's own that one state lands in, beside the host's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "common/base/result.h"

namespace akv::decode {

// Records lie here as they lie in host memory; 0 is the state's header, 1 + l layer l. What is
// asked for happens in the order of the calls, on a thread of its own; the calls themselves never
// wait. Any thread. Host memory, this object and what `then` needs must stay until the `then` of
// finish() has run.
class LandingMemory {
 public:
  using ThenFn = std::function<void(const Status&)>;
  virtual ~LandingMemory() = default;

  // Where a transport may put the record itself.
  virtual std::byte* place(uint32_t record) = 0;
  // The record is in host memory: brings it here.
  virtual void upload(uint32_t record) = 0;
  // The record is here: brings it to host memory, and says so.
  virtual void fetch(uint32_t record, ThenFn then) = 0;
  // Runs `then` once all before is done, with the first error of it.
  virtual void finish(ThenFn then) = 0;
  // Makes the state readable for steps. Only within the `then` of finish(). REQUIRES: every record
  // is here and in host memory, and was verified.
  virtual Status describe() = 0;
};

}  // namespace akv::decode
