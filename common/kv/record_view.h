// Reading one record in place: checks of its payload, and the kernels' view of it.
#pragma once

#include <cstddef>
#include <span>

#include "common/kv/plan.h"
#include "kernels/compressed_view.h"

namespace akv::kv {

// What is wrong with an anchorkv payload, or null: masks against counts, prefixes and offsets;
// every slot below k; anchors ascending, within the prompt and their own slot; finite coefficients,
// scales and rows; zero padding. Reads nothing outside the record. REQUIRES: record.size() is the
// plan's, 8-byte aligned.
const char* check_payload(std::span<const std::byte> record, const StatePlan& plan);
// The same for a dense record: finite keys and values.
const char* check_dense_payload(std::span<const std::byte> record, const StatePlan& plan);

// The view of a checked record. heads: [H], filled here; heads and signs [D] must outlive the view.
kernels::CompressedLayerView view_record(std::span<const std::byte> record, const StatePlan& plan,
                                         kernels::CompressedHeadView* heads, const float* signs);
kernels::DenseLayerView view_dense_record(std::span<const std::byte> record, const StatePlan& plan);

}  // namespace akv::kv
