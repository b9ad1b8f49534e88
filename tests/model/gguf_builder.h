// Writes GGUF bytes for tests: well-formed by default, and every field can be set wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/model/gguf.h"
#include "kernels/types.h"

namespace akv::model {

class GgufBuilder {
 public:
  using Bytes = std::vector<std::byte>;

  uint32_t magic = 0x46554747;
  uint32_t version = 3;
  uint64_t alignment = 32;    // of the data; add_uint("general.alignment") states it
  int64_t extra_tensors = 0;  // added to the count in the header
  int64_t extra_entries = 0;

  GgufBuilder& add_uint(std::string_view key, uint32_t value) {
    begin(key, GgufType::kU32);
    put(metadata_, value);
    return *this;
  }
  GgufBuilder& add_float(std::string_view key, float value) {
    begin(key, GgufType::kF32);
    put(metadata_, value);
    return *this;
  }
  GgufBuilder& add_string(std::string_view key, std::string_view value) {
    begin(key, GgufType::kString);
    put_string(metadata_, value);
    return *this;
  }
  GgufBuilder& add_strings(std::string_view key, const std::vector<std::string>& values) {
    begin(key, GgufType::kArray);
    put(metadata_, static_cast<uint32_t>(GgufType::kString));
    put(metadata_, static_cast<uint64_t>(values.size()));
    for (const std::string& value : values) put_string(metadata_, value);
    return *this;
  }
  GgufBuilder& add_ints(std::string_view key, const std::vector<int32_t>& values) {
    begin(key, GgufType::kArray);
    put(metadata_, static_cast<uint32_t>(GgufType::kI32));
    put(metadata_, static_cast<uint64_t>(values.size()));
    for (const int32_t value : values) put(metadata_, value);
    return *this;
  }
  // A value of any type number, by its bytes.
  template <class... T>
  GgufBuilder& add_raw(std::string_view key, uint32_t type, T... fields) {
    put_string(metadata_, key);
    put(metadata_, type);
    (put(metadata_, fields), ...);
    ++entries_;
    return *this;
  }

  // A tensor with its bytes placed behind the others.
  GgufBuilder& add_tensor(std::string_view name, std::vector<uint64_t> dims, TensorType type,
                          Bytes data) {
    pad(data_);
    add_entry(name, std::move(dims), static_cast<uint32_t>(type), data_.size());
    data_.insert(data_.end(), data.begin(), data.end());
    return *this;
  }
  GgufBuilder& add_f32(std::string_view name, std::vector<uint64_t> dims, float value = 1.0f) {
    uint64_t count = 1;
    for (const uint64_t dim : dims) count *= dim;
    Bytes data(count * sizeof(float));
    for (uint64_t i = 0; i < count; ++i) std::memcpy(data.data() + i * 4, &value, 4);
    return add_tensor(name, std::move(dims), TensorType::kF32, std::move(data));
  }
  // A row of the tensor table alone: any type number, any offset.
  GgufBuilder& add_entry(std::string_view name, std::vector<uint64_t> dims, uint32_t type,
                         uint64_t offset) {
    put_string(table_, name);
    put(table_, static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) put(table_, dim);
    put(table_, type);
    put(table_, offset);
    ++tensors_;
    return *this;
  }
  GgufBuilder& add_data(size_t bytes) {
    data_.resize(data_.size() + bytes);
    return *this;
  }

  Bytes build() const {
    Bytes out;
    put(out, magic);
    put(out, version);
    put(out, static_cast<uint64_t>(tensors_ + extra_tensors));
    put(out, static_cast<uint64_t>(entries_ + extra_entries));
    out.insert(out.end(), metadata_.begin(), metadata_.end());
    out.insert(out.end(), table_.begin(), table_.end());
    pad(out);
    out.insert(out.end(), data_.begin(), data_.end());
    return out;
  }

 private:
  void begin(std::string_view key, GgufType type) {
    put_string(metadata_, key);
    put(metadata_, static_cast<uint32_t>(type));
    ++entries_;
  }
  template <class T>
  static void put(Bytes& out, const T& value) {
    const size_t at = out.size();
    out.resize(at + sizeof(T));
    std::memcpy(out.data() + at, &value, sizeof(T));
  }
  static void put_string(Bytes& out, std::string_view text) {
    put(out, static_cast<uint64_t>(text.size()));
    for (const char c : text) out.push_back(static_cast<std::byte>(c));
  }
  void pad(Bytes& out) const { out.resize((out.size() + alignment - 1) / alignment * alignment); }

  Bytes metadata_;
  Bytes table_;
  Bytes data_;
  int64_t entries_ = 0;
  int64_t tensors_ = 0;
};

// What a tiny model file states; tests change single members to get it wrong.
struct TinyModel {
  std::string arch = "llama";
  uint32_t layers = 1;
  uint32_t d = 16;
  uint32_t ff = 24;
  uint32_t heads = 2;
  uint32_t kv_heads = 1;
  uint32_t head_dim = 8;
  uint32_t vocab = 10;
  uint32_t tokens = 10;
  std::string without;      // a tensor or a key that is left out
  std::string wrong_shape;  // a tensor whose first dimension is 8 more
  bool bias = false;
  bool norms = false;
  float weight = 0.01f;

  // The common part; tests add to it.
  GgufBuilder builder() const {
    GgufBuilder b;
    metadata(b);
    tensors(b);
    return b;
  }

 private:
  void metadata(GgufBuilder& b) const {
    const auto count = [&](const std::string& key, uint32_t value) {
      if (without != key) b.add_uint(arch + "." + key, value);
    };
    b.add_string("general.architecture", arch);
    count("block_count", layers);
    count("context_length", 512);
    count("embedding_length", d);
    count("feed_forward_length", ff);
    count("attention.head_count", heads);
    count("attention.head_count_kv", kv_heads);
    count("attention.key_length", head_dim);
    if (without != "eps") b.add_float(arch + ".attention.layer_norm_rms_epsilon", 1e-5f);
    b.add_string("tokenizer.ggml.model", "gpt2");
    std::vector<std::string> pieces;
    for (uint32_t i = 0; i < tokens; ++i) pieces.push_back(std::to_string(i).insert(0, 1, 'p'));
    if (without != "tokens") b.add_strings("tokenizer.ggml.tokens", pieces);
  }
  void tensors(GgufBuilder& b) const {
    const auto add = [&](const std::string& name, std::vector<uint64_t> dims) {
      if (name == without) return;
      if (name == wrong_shape) dims[0] += 8;
      b.add_f32(name, std::move(dims), weight);
    };
    add("token_embd.weight", {d, vocab});
    add("output_norm.weight", {d});
    for (uint32_t i = 0; i < layers; ++i) {
      const std::string blk = std::string("blk.").append(std::to_string(i)).append(".");
      const uint32_t q = heads * head_dim;
      const uint32_t kv = kv_heads * head_dim;
      add(blk + "attn_norm.weight", {d});
      add(blk + "attn_q.weight", {d, q});
      add(blk + "attn_k.weight", {d, kv});
      add(blk + "attn_v.weight", {d, kv});
      add(blk + "attn_output.weight", {q, d});
      add(blk + "ffn_norm.weight", {d});
      add(blk + "ffn_gate.weight", {d, ff});
      add(blk + "ffn_up.weight", {d, ff});
      add(blk + "ffn_down.weight", {ff, d});
      if (bias) {
        add(blk + "attn_q.bias", {q});
        add(blk + "attn_k.bias", {kv});
        add(blk + "attn_v.bias", {kv});
      }
      if (norms) {
        add(blk + "attn_q_norm.weight", {head_dim});
        add(blk + "attn_k_norm.weight", {head_dim});
      }
    }
  }
};

}  // namespace akv::model
