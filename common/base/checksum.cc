#include "common/base/checksum.h"

#include <openssl/evp.h>
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>  // XXH3_64bits by the CPU's widest vectors, not by those of the build
#else
#include <xxhash.h>
#endif

#include "common/base/check.h"

namespace akv {

uint64_t xxh3_64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  AKV_CHECK(context_ != nullptr);
  AKV_CHECK(EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_), EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }

void Sha256::update(const void* data, size_t size) {
  AKV_CHECK(EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), data, size) == 1);
}

Sha256Digest Sha256::finish() {
  Sha256Digest digest;
  unsigned length = 0;
  AKV_CHECK(EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_), digest.data(), &length) == 1);
  return digest;
}

std::string to_hex(std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (uint8_t b : bytes) {
    out += kDigits[b >> 4];
    out += kDigits[b & 15];
  }
  return out;
}

}  // namespace akv
