// Two kernels to put into streams.
#pragma once

#include "kernels/device_stream.h"

namespace akv {

// x[i] += 1 for i < n.
void add_one(int* x, int n, DeviceStream stream);
// More threads than a block can have: a launch that fails.
void launch_wrongly(DeviceStream stream);

}  // namespace akv
