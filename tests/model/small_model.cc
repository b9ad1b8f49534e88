#include "tests/model/small_model.h"

#include <random>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/model/byte_alphabet.h"
#include "common/model/gguf.h"

namespace akv::model {
namespace {

constexpr uint32_t kBlock = 32;
constexpr uint16_t kQ4Scale = 9 << 10;                  // 2^-6 as a half
constexpr uint16_t kQ4Min = 0x8000 | (11 << 10) | 896;  // -7.5 * 2^-6: codes are centred
constexpr uint16_t kQ8Scale = (15 - 9) << 10;           // 2^-9: values within 1/4

void put_half(GgufBuilder::Bytes& out, uint16_t half) {
  out.push_back(static_cast<std::byte>(half & 0xff));
  out.push_back(static_cast<std::byte>(half >> 8));
}

GgufBuilder::Bytes random_q4_1(std::minstd_rand& random, uint32_t values) {
  GgufBuilder::Bytes out;
  for (uint32_t block = 0; block < values / kBlock; ++block) {
    put_half(out, kQ4Scale);
    put_half(out, kQ4Min);
    for (uint32_t i = 0; i < kBlock / 2; ++i) out.push_back(static_cast<std::byte>(random() >> 8));
  }
  return out;
}

GgufBuilder::Bytes random_q8_0(std::minstd_rand& random, uint32_t values) {
  GgufBuilder::Bytes out;
  for (uint32_t block = 0; block < values / kBlock; ++block) {
    put_half(out, kQ8Scale);
    for (uint32_t i = 0; i < kBlock; ++i) out.push_back(static_cast<std::byte>(random() >> 8));
  }
  return out;
}

std::vector<std::string> byte_pieces() {
  const ByteAlphabet alphabet;
  std::vector<std::string> pieces;
  for (int byte = 0; byte < 256; ++byte) {
    pieces.push_back(alphabet.spelling(static_cast<uint8_t>(byte)));
  }
  pieces.emplace_back("<|end|>");
  while (pieces.size() % kBlock != 0) pieces.push_back("<|spare" + std::to_string(pieces.size()));
  return pieces;
}

void add_metadata(GgufBuilder& b, const SmallModel& m, const std::vector<std::string>& pieces) {
  b.add_string("general.architecture", "llama");
  b.add_string("general.name", "small");
  b.add_uint("llama.block_count", m.layers);
  b.add_uint("llama.context_length", m.context);
  b.add_uint("llama.embedding_length", m.d);
  b.add_uint("llama.feed_forward_length", m.ff);
  b.add_uint("llama.attention.head_count", m.heads);
  b.add_uint("llama.attention.head_count_kv", m.kv_heads);
  b.add_uint("llama.attention.key_length", m.head_dim);
  b.add_float("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  b.add_string("tokenizer.ggml.model", "gpt2");
  b.add_string("tokenizer.ggml.pre", "gpt-2");
  b.add_strings("tokenizer.ggml.tokens", pieces);
  std::vector<int32_t> types(pieces.size(), 3);  // control
  std::fill_n(types.begin(), 256, 1);
  b.add_ints("tokenizer.ggml.token_type", types);
  b.add_uint("tokenizer.ggml.eos_token_id", 256);
}

}  // namespace

GgufBuilder::Bytes SmallModel::bytes() const {
  std::minstd_rand random(seed);
  const std::vector<std::string> pieces = byte_pieces();
  const auto vocab = static_cast<uint32_t>(pieces.size());
  GgufBuilder b;
  add_metadata(b, *this, pieces);
  b.add_tensor("token_embd.weight", {d, vocab}, TensorType::kQ8_0, random_q8_0(random, d * vocab));
  b.add_f32("output_norm.weight", {d});
  const auto matrix = [&](const std::string& name, uint32_t rows, uint32_t cols) {
    b.add_tensor(name, {cols, rows}, TensorType::kQ4_1, random_q4_1(random, rows * cols));
  };
  const uint32_t q = heads * head_dim;
  const uint32_t kv = kv_heads * head_dim;
  for (uint32_t i = 0; i < layers; ++i) {
    const std::string block = "blk." + std::to_string(i) + ".";
    b.add_f32(block + "attn_norm.weight", {d});
    b.add_f32(block + "ffn_norm.weight", {d});
    matrix(block + "attn_q.weight", q, d);
    matrix(block + "attn_k.weight", kv, d);
    matrix(block + "attn_v.weight", kv, d);
    matrix(block + "attn_output.weight", d, q);
    matrix(block + "ffn_gate.weight", ff, d);
    matrix(block + "ffn_up.weight", ff, d);
    matrix(block + "ffn_down.weight", d, ff);
  }
  return b.build();
}

std::shared_ptr<const Model> SmallModel::load() const {
  struct Held {
    GgufBuilder::Bytes bytes;
    std::shared_ptr<const Model> model;
    ~Held() { model.reset(); }  // it views the bytes
  };
  auto held = std::make_shared<Held>();
  held->bytes = bytes();
  auto file = GgufFile::parse(held->bytes, "small.gguf");
  AKV_CHECK(file.ok());
  auto model = Model::create(std::move(file).value());
  AKV_CHECK(model.ok());
  held->model = std::move(model).value();
  return {held, held->model.get()};
}

}  // namespace akv::model
