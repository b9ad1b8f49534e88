#include "decode_node/cache/suffix.h"

#include <sys/mman.h>

#include "common/base/check.h"

namespace akv::decode {

// Pages come straight from the system, so that a session's end really returns its memory.
void Suffix::Unmap::operator()(bf16* page) const { munmap(page, bytes); }

bool Suffix::grow(int64_t tokens) {
  const auto needed =
      static_cast<size_t>((tokens + kernels::kSuffixPageTokens - 1) / kernels::kSuffixPageTokens);
  if (needed <= pages_.size()) return true;
  const auto missing = static_cast<int>(needed - pages_.size());
  const int to_pay = missing > prepaid_pages_ ? missing - prepaid_pages_ : 0;
  if (pool_ != nullptr && to_pay > 0 &&
      !pool_->reserve_page(static_cast<uint64_t>(to_pay) * shape_.bytes())) {
    return false;
  }
  prepaid_pages_ -= missing - to_pay;
  for (int i = 0; i < missing; ++i) {
    void* memory =
        mmap(nullptr, shape_.bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    AKV_CHECK(memory != MAP_FAILED);
    pages_.emplace_back(static_cast<bf16*>(memory), Unmap{shape_.bytes()});
    page_pointers_.push_back(pages_.back().get());
  }
  return true;
}

void Suffix::clear() {
  if (pool_ != nullptr) {
    pool_->release_pages((pages_.size() + static_cast<size_t>(prepaid_pages_)) * shape_.bytes());
  }
  prepaid_pages_ = 0;
  pages_.clear();
  page_pointers_.clear();
  tokens_ = 0;
}

bf16* Suffix::k_row(int layer, int64_t token) {
  const auto page = static_cast<size_t>(token / kernels::kSuffixPageTokens);
  return pages_[page].get() + layer * shape_.layer_elements +
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
