// Counts operator new in a test binary that links allocation_count.cc.
#pragma once

#include <cstdint>

namespace akv::model {

int64_t allocation_count();

}  // namespace akv::model
