// A random model of a shape that the GPU's kernels take, small enough for their CPU shim.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/model/model.h"
#include "tests/model/gguf_builder.h"

namespace akv::model {

// Matrices in Q4_1, embedding in Q8_0, norms in F32; a vocabulary of single bytes and an end token.
// The same seed gives the same bytes everywhere.
struct SmallModel {
  uint32_t layers = 2;
  uint32_t d = 128;
  uint32_t ff = 192;
  uint32_t heads = 4;
  uint32_t kv_heads = 2;
  uint32_t head_dim = 64;
  uint32_t context = 512;
  uint32_t seed = 1;

  GgufBuilder::Bytes bytes() const;
  // A model over bytes() that it keeps alive.
  std::shared_ptr<const Model> load() const;
};

}  // namespace akv::model
