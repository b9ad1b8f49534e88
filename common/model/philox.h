// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3" (SC 2011): a pure function of (key, counter), so a stream can be resumed anywhere.
#pragma once

#include <array>
#include <cstdint>

namespace akv::model {

std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// The uniform draw in [0, 1) (53 bits) that belongs to this seed and token position. Whoever
// replays a session on another node draws the same.
double philox_uniform(uint64_t seed, uint64_t position);

}  // namespace akv::model
