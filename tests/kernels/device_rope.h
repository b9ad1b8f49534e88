// A table of angles on the device that holds some positions only, so that far ones cost nothing.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/rope.h"
#include "tests/kernels/device_array.h"

namespace akv::kernels {

class DeviceRopeTable {
 public:
  // Row i of the copy is position positions[i].
  DeviceRopeTable(const RopeTable& table, const std::vector<int64_t>& positions)
      : table_(table), count_(positions.size()), rows_(copy(table, positions)) {}

  DeviceRope view() {
    return {rows_.data(), table_.half(), table_.head_dim(), table_.pairs(),
            static_cast<int64_t>(count_)};
  }
  // What stands for positions[i] in the copy: i.
  std::vector<int64_t> places() const {
    std::vector<int64_t> places(count_);
    for (size_t i = 0; i < count_; ++i) places[i] = static_cast<int64_t>(i);
    return places;
  }

 private:
  static std::vector<float> copy(const RopeTable& table, const std::vector<int64_t>& positions) {
    std::vector<float> rows;
    for (const int64_t position : positions) {
      const float* row = table.cos_row(position);
      rows.insert(rows.end(), row, row + 2 * table.half());
    }
    return rows;
  }

  const RopeTable& table_;
  size_t count_;
  DeviceArray<float> rows_;
};

}  // namespace akv::kernels
