// A layer encoded on the device and the same on the CPU, and what tells the two records apart: the
// CPU follows the device's choices step by step, so that a float tie in one choice does not hide
// the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/kv/device_encoder.h"
#include "common/kv/plan.h"
#include "tests/kv/golden_case.h"

namespace akv::kv::testing {

// Differences between the two records of a layer, of `of` chances each.
struct RecordTies {
  int64_t anchors = 0, slots = 0, gammas = 0, widths = 0, codes = 0, scales = 0;
  int64_t tokens = 0;     // token-sides
  int64_t residuals = 0;  // coded
  // The farthest tie from its border: a score or a priority from the cut, a cosine from the best,
  // relative. Beyond float rounding it is no tie.
  double anchor_distance = 0, slot_distance = 0, width_distance = 0;
  bool sections_equal =
      true;  // what follows from the choices: masks, prefixes, offsets, rows, zeros
  RecordTies& operator+=(const RecordTies& other);
  std::string text() const;
};

// The device's record of one layer, sealed and verified. `error` is empty if all of that went well.
struct DeviceRecord {
  std::vector<uint64_t> words;  // 8-byte aligned bytes
  std::string error;
  Status status;
  std::span<std::byte> bytes(const StatePlan& plan, int layer) {
    return {reinterpret_cast<std::byte*>(words.data()), plan.record_bytes[layer]};
  }
};
DeviceRecord encode_on_device(const GoldenCase& c, const StatePlan& plan,
                              uint64_t observation_bytes = DeviceEncoder::kObservationBytes);

// The same into a state on the device, `offset` bytes (a multiple of 8) past an aligned address,
// and sealed there: an error unless the device's bytes end up the host's.
DeviceRecord encode_in_place(const GoldenCase& c, const StatePlan& plan, uint64_t offset);

// finish() before anything waited for the device: what it says of a record that has not come.
Status finish_too_early(const GoldenCase& c, const StatePlan& plan);

// A plan for the case's shape and budget. REQUIRES: the request can be planned.
StatePlan plan_of(const GoldenCase& c, const CodecOptions& options, double theta);

// Compares a good device record with the CPU's of the same inputs.
RecordTies compare_records(const GoldenCase& c, const StatePlan& plan, DeviceRecord& device);

}  // namespace akv::kv::testing
