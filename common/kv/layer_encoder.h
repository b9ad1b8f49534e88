// The encoder behind compress_layer, with its intermediate results in reach for codec_check and
// tests.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/kv/codec.h"
#include "common/kv/record_layout.h"
#include "kernels/anchor_assign.h"
#include "kernels/codec_scratch.h"
#include "kernels/window_attention.h"

namespace akv::kv {

enum Side : int { kKey = 0, kValue = 1 };

// Choices to use in place of the encoder's own, so that a check can follow a recorded state past a
// choice that a float tie may flip. Indexed [head] or [side][head]; an empty span leaves the choice
// to the encoder.
struct ForcedChoices {
  std::vector<std::span<const int32_t>> anchors;   // [H] of [k]
  std::vector<std::span<const uint16_t>> slot[2];  // [H] of [P]
  std::vector<std::span<const float>> gamma[2];    // [H] of [P], stored values
  std::vector<std::span<const uint8_t>> bits[2];   // [H] of [P]
};

class LayerEncoder {
 public:
  // As compress_layer for an anchorkv plan.
  Status encode(const LayerInput& input, const StatePlan& plan, uint64_t state_checksum,
                std::span<std::byte> record, const Parallel& parallel,
                const ForcedChoices* forced = nullptr);

  // Results of the last encode(), before a forced choice replaced them.
  std::span<const float> score(int head) const { return of(score_, head); }
  std::span<const int32_t> anchors(int head) const {
    return {anchors_.data() + static_cast<size_t>(head) * k_, static_cast<size_t>(k_)};
  }
  std::span<const uint16_t> slot(Side side, int head) const { return of(found_slot(side), head); }
  std::span<const float> gamma(Side side, int head) const { return of(found_gamma(side), head); }
  std::span<const double> utility(Side side, int head) const { return of(utility_[side], head); }
  std::span<const uint8_t> bits(Side side, int head) const { return of(found_bits(side), head); }

  size_t bytes() const;

 private:
  // Residuals of one side, head and width in position order.
  struct Stream {
    Side side;
    int head;
    int bits;
    std::vector<int32_t> tokens;
    uint64_t first = 0;  // residuals of this side and width in the heads before
  };
  struct Block {
    int stream;
    int64_t begin, end;
  };

  template <class T>
  std::span<const T> of(const std::vector<T>& v, int head) const {
    return {v.data() + static_cast<size_t>(head) * prefix_, static_cast<size_t>(prefix_)};
  }
  const std::vector<uint16_t>& found_slot(Side s) const {
    return forced_ ? found_slot_[s] : slot_[s];
  }
  const std::vector<float>& found_gamma(Side s) const {
    return forced_ ? found_gamma_[s] : gamma_[s];
  }
  const std::vector<uint8_t>& found_bits(Side s) const {
    return forced_ ? found_bits_[s] : bits_[s];
  }

  void prepare(const LayerInput& input, const StatePlan& plan, const ForcedChoices* forced);
  void choose_anchors(const LayerInput& input, const StatePlan& plan, int head,
                      const Parallel& parallel);
  kernels::AssignParams assign_params(const LayerInput& input, const StatePlan& plan, int head,
                                      Side side) const;
  void assign_and_rate(const LayerInput& input, const StatePlan& plan, int head,
                       const Parallel& parallel);
  void force_assignment(const kernels::AssignParams& params, const kernels::Assignment& out,
                        int head, Side side);
  void allocate(const StatePlan& plan, const Parallel& parallel);
  void collect_streams(const StatePlan& plan);
  void write_sections(const LayerInput& input, const StatePlan& plan, std::span<std::byte> record,
                      const Parallel& parallel);
  void write_side(const LayerInput& input, const StatePlan& plan, int head, Side side,
                  std::byte* record);
  void write_positions(const StatePlan& plan, std::byte* record);
  Status write_residuals(const LayerInput& input, const StatePlan& plan,
                         std::span<std::byte> record, const Parallel& parallel);

  kernels::ObservedHead observed(const LayerInput& input, const StatePlan& plan, int head) const;
  kernels::Assignment assignment(int head, Side side);
  const bf16* rows(const LayerInput& input, const StatePlan& plan, int head, Side side) const;

  const ForcedChoices* forced_ = nullptr;
  int64_t prefix_ = 0;  // P
  int k_ = 0;
  RecordLayout layout_;
  kernels::CodecScratch scratch_;
  kernels::Observation observation_;
  std::vector<float> signs_;                      // [D]
  std::vector<float> score_;                      // [H][P]
  std::vector<int32_t> anchors_, order_;          // [H][k]
  std::vector<kernels::AnchorRows> anchor_rows_;  // [2][H]
  std::vector<uint16_t> slot_[2], code_[2];       // [H][P]
  std::vector<float> gamma_[2], residual2_[2];    // [H][P]
  std::vector<double> utility_[2];                // [H][P]
  std::vector<uint8_t> bits_[2];                  // [H][P]
  std::vector<uint16_t> found_slot_[2];
  std::vector<float> found_gamma_[2];
  std::vector<uint8_t> found_bits_[2];
  std::vector<Stream> streams_;  // [side][head][2 bits, 4 bits]
  uint64_t count_[2][2] = {};    // residuals of a side: of 2 and of 4 bits
};

}  // namespace akv::kv
