// Dense K/V of the tokens after a prompt, in pages of 64 tokens that hold all layers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/model/config.h"
#include "decode_node/cache/byte_pool.h"
#include "decode_node/cache/page_memory.h"
#include "kernels/compressed_view.h"
#include "kernels/types.h"

namespace akv::decode {

// Elements and bytes of a page: per layer K [64][H][D] post-RoPE, then V alike.
struct PageShape {
  int64_t layer_elements = 0;  // of one layer: K and V
  int64_t elements = 0;
  int kv_dim = 0;  // H * D

  explicit PageShape(const model::ModelConfig& config)
      : layer_elements(int64_t{2} * kernels::kSuffixPageTokens * config.kv_dim()),
        elements(layer_elements * config.layers),
        kv_dim(config.kv_dim()) {}
  uint64_t bytes() const { return static_cast<uint64_t>(elements) * sizeof(bf16); }
};

// The suffix of one session: owner of its pages and of their share of the pool. Engine thread only.
class Suffix {
 public:
  // pool may be null (tools that account for nothing); it and `memory` outlive the suffix.
  Suffix(const PageShape& shape, BytePool* pool, PageMemory& memory = HostPages::shared())
      : shape_(shape), pool_(pool), memory_(memory) {}
  ~Suffix() { clear(); }
  Suffix(const Suffix&) = delete;
  Suffix& operator=(const Suffix&) = delete;

  // Makes room for `tokens` in all, false when the pool or the memory behind it is empty (nothing
  // is taken then).
  // `prepaid_pages` of them were already charged at admission.
  bool grow(int64_t tokens);
  // The caller has already reserved this many pages in the pool for us.
  void adopt_reservation(int pages) { prepaid_pages_ += pages; }
  // Frees all pages and gives their bytes back, prepaid ones too.
  void clear();

  int64_t tokens() const { return tokens_; }
  void set_tokens(int64_t tokens) { tokens_ = tokens; }
  size_t pages() const { return pages_.size(); }
  uint64_t bytes() const { return pages_.size() * shape_.bytes(); }
  // Of the pool: pages and prepaid ones, all of which clear() gives back.
  uint64_t charged_bytes() const {
    return (pages_.size() + static_cast<size_t>(prepaid_pages_)) * shape_.bytes();
  }
  // What grow(tokens) would take out of the pool.
  uint64_t bytes_to_grow(int64_t tokens) const;

  // Row of `token` in `layer`: K row, and V row, [H, D] each, in the memory of the pages. REQUIRES:
  // room was made by grow().
  bf16* k_row(int layer, int64_t token);
  bf16* v_row(int layer, int64_t token);
  // The pages in order; valid until grow() or clear().
  std::span<const bf16* const> page_list() const { return page_pointers_; }
  // View of the first `tokens` tokens of a layer; valid until grow() or clear().
  kernels::SuffixView view(int layer, int64_t tokens) const;

 private:
  void drop_pages(size_t keep);

  PageShape shape_;
  BytePool* pool_;
  PageMemory& memory_;
  int prepaid_pages_ = 0;
  int64_t tokens_ = 0;
  std::vector<bf16*> pages_;
  std::vector<const bf16*> page_pointers_;
};

}  // namespace akv::decode
