// The first half of observe_layer: alpha, factor and mean_alpha.
#pragma once

#include "kernels/cuda/codec.h"

namespace akv::kernels::cuda {

void observe_weights(const CodecLayer& layer, const LayerObservation& out, DeviceStream stream);

}  // namespace akv::kernels::cuda
