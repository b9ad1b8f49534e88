#include "decode_node/cache/suffix.h"

#include <algorithm>

namespace akv::decode {

namespace {

size_t pages_of(int64_t tokens) {
  return static_cast<size_t>((tokens + kernels::kSuffixPageTokens - 1) /
                             kernels::kSuffixPageTokens);
}

}  // namespace

uint64_t Suffix::bytes_to_grow(int64_t tokens) const {
  const size_t held = pages_.size() + static_cast<size_t>(prepaid_pages_);
  return (std::max(pages_of(tokens), held) - held) * shape_.bytes();
}

bool Suffix::grow(int64_t tokens) {
  const size_t needed = pages_of(tokens);
  if (needed <= pages_.size()) return true;
  const auto missing = static_cast<int>(needed - pages_.size());
  const int to_pay = missing > prepaid_pages_ ? missing - prepaid_pages_ : 0;
  if (pool_ != nullptr && to_pay > 0 &&
      !pool_->reserve_page(static_cast<uint64_t>(to_pay) * shape_.bytes())) {
    return false;
  }
  const size_t held = pages_.size();
  for (int i = 0; i < missing; ++i) {
    void* page = memory_.allocate(shape_.bytes());
    if (page == nullptr) {
      drop_pages(held);
      if (pool_ != nullptr) pool_->release_pages(static_cast<uint64_t>(to_pay) * shape_.bytes());
      return false;
    }
    pages_.push_back(static_cast<bf16*>(page));
    page_pointers_.push_back(pages_.back());
  }
  prepaid_pages_ -= missing - to_pay;
  return true;
}

void Suffix::drop_pages(size_t keep) {
  for (size_t i = keep; i < pages_.size(); ++i) memory_.free(pages_[i], shape_.bytes());
  pages_.resize(keep);
  page_pointers_.resize(keep);
}

void Suffix::clear() {
  if (pool_ != nullptr) {
    pool_->release_pages((pages_.size() + static_cast<size_t>(prepaid_pages_)) * shape_.bytes());
  }
  prepaid_pages_ = 0;
  drop_pages(0);
  tokens_ = 0;
}

bf16* Suffix::k_row(int layer, int64_t token) {
  const auto page = static_cast<size_t>(token / kernels::kSuffixPageTokens);
  return pages_[page] + layer * shape_.layer_elements +
         token % kernels::kSuffixPageTokens * shape_.kv_dim;
}

bf16* Suffix::v_row(int layer, int64_t token) {
  return k_row(layer, token) + int64_t{kernels::kSuffixPageTokens} * shape_.kv_dim;
}

kernels::SuffixView Suffix::view(int layer, int64_t tokens) const {
  return {.pages = page_pointers_.data(),
          .layer_offset = layer * shape_.layer_elements,
          .tokens = static_cast<int32_t>(tokens)};
}

}  // namespace akv::decode
