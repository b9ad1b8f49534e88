#include "tests/kv/golden_case.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "common/model/safetensors.h"
#include "kernels/codec.h"

namespace akv::kv::testing {
namespace {

using model::Safetensors;
using model::SafetensorsType;
using Json = nlohmann::json;

Error wrong(const std::string& name, const std::string& what) {
  return make_error(Code::kInvalidArgument, name + ": " + what, name);
}

template <class T>
Status read_tensor(const Safetensors& file, const std::string& name, SafetensorsType type,
                   int64_t elements, std::vector<T>& out) {
  const auto it = file.tensors().find(name);
  if (it == file.tensors().end()) return wrong(name, "no such tensor");
  if (it->second.type != type) return wrong(name, "another type");
  if (it->second.elements() != elements) {
    return wrong(name, std::to_string(it->second.elements()) + " elements, expected " +
                           std::to_string(elements));
  }
  out.resize(static_cast<size_t>(elements));
  if (elements > 0) std::memcpy(out.data(), it->second.data.data(), it->second.data.size());
  return {};
}

Status read_side(const Safetensors& file, const std::string& at, const GoldenCase& c, bool wide,
                 int k, GoldenSide& s) {
  const int64_t p = c.prefix();
  AKV_RETURN_IF_ERROR(read_tensor(file, at + "slot", SafetensorsType::kU16, p, s.slot));
  AKV_RETURN_IF_ERROR(read_tensor(file, at + "gamma", SafetensorsType::kF32, p, s.gamma));
  AKV_RETURN_IF_ERROR(read_tensor(file, at + "utility", SafetensorsType::kF32, p, s.utility));
  AKV_RETURN_IF_ERROR(read_tensor(file, at + "bits", SafetensorsType::kU8, p, s.bits));
  for (uint16_t slot : s.slot) {
    if (slot >= k) return wrong(at + "slot", "a slot names no anchor");
  }
  for (int width : {0, 1}) {
    if (width == 1 && !wide) break;
    const uint8_t bits = width == 0 ? 2 : 4;
    const std::string suffix = std::to_string(bits);
    const int64_t n = std::count(s.bits.begin(), s.bits.end(), bits);
    AKV_RETURN_IF_ERROR(read_tensor(file, at + "codes" + suffix, SafetensorsType::kU8,
                                    n * c.head_dim, s.codes[width]));
    AKV_RETURN_IF_ERROR(
        read_tensor(file, at + "scale" + suffix, SafetensorsType::kF32, n, s.scale[width]));
    for (uint8_t code : s.codes[width]) {
      if (code >= 1 << bits) return wrong(at + "codes" + suffix, "a code is out of range");
    }
  }
  for (uint8_t bits : s.bits) {
    if (bits != 0 && bits != 2 && !(bits == 4 && wide)) return wrong(at + "bits", "out of range");
  }
  return read_tensor(file, at + "hat", SafetensorsType::kF32, c.tokens * c.head_dim, s.hat);
}

Status read_profile(const Safetensors& file, const std::string& name, const GoldenCase& c,
                    const Json& plan, GoldenProfile& out) {
  out.plan.k = plan.at("k").get<int>();
  out.plan.base = plan.at("base").get<uint64_t>();
  out.plan.full = plan.at("full").get<uint64_t>();
  out.plan.spare = plan.at("spare").get<uint64_t>();
  out.plan.bytes = plan.at("bytes").get<uint64_t>();
  out.heads.resize(static_cast<size_t>(c.kv_heads));
  for (int h = 0; h < c.kv_heads; ++h) {
    GoldenHead& head = out.heads[static_cast<size_t>(h)];
    const std::string at = name + ".h" + std::to_string(h) + ".";
    AKV_RETURN_IF_ERROR(
        read_tensor(file, at + "anchors", SafetensorsType::kI32, out.plan.k, head.anchors));
    AKV_RETURN_IF_ERROR(
        read_tensor(file, at + "score", SafetensorsType::kF32, c.prefix(), head.score));
    for (int a = 0; a < out.plan.k; ++a) {
      const int32_t position = head.anchors[static_cast<size_t>(a)];
      if (position < 0 || position >= c.tokens ||
          (a > 0 && position <= head.anchors[static_cast<size_t>(a - 1)])) {
        return wrong(at + "anchors", "positions are not ascending within the prompt");
      }
    }
    const bool wide = name == "pooled";
    AKV_RETURN_IF_ERROR(read_side(file, at + "K.", c, wide, out.plan.k, head.side[0]));
    AKV_RETURN_IF_ERROR(read_side(file, at + "V.", c, wide, out.plan.k, head.side[1]));
  }
  return read_tensor(file, name + ".attention", SafetensorsType::kF32,
                     int64_t{c.heads()} * c.head_dim, out.attention);
}

Status read_case(const Json& j, GoldenCase& c) {
  c.tokens = j.at("S").get<int64_t>();
  c.kv_heads = j.at("H").get<int>();
  c.head_dim = j.at("D").get<int>();
  c.group = j.at("g").get<int>();
  c.window = j.at("W").get<int>();
  c.theta = j.at("theta").get<double>();
  c.layer = j.value("layer", 0);
  c.seed = j.value("seed", uint64_t{42});
  c.rope.head_dim = c.head_dim;
  c.rope.rope_dim = j.value("rope_dim", 0);
  c.rope.base = j.at("rope_base").get<double>();
  c.rope.freq_scale = j.value("rope_freq_scale", 1.0);
  c.rope.freq_factors = j.value("rope_freq_factors", std::vector<float>{});
  const std::string pairs = j.at("pairs").get<std::string>();
  if (pairs != "half" && pairs != "interleaved") return wrong("pairs", "takes half|interleaved");
  c.rope.pairs = pairs == "half" ? kernels::RopePairs::kHalf : kernels::RopePairs::kInterleaved;
  const bool sane = c.window >= 1 && c.tokens > c.window && c.tokens < (int64_t{1} << 24) &&
                    c.kv_heads >= 1 && c.kv_heads <= 256 && c.group >= 1 && c.group <= 64 &&
                    kernels::head_dim_supported(c.head_dim) && c.theta > 0 && c.theta <= 1 &&
                    c.layer >= 0 && c.layer < 4096;
  return sane ? Status{} : Status{wrong("case", "a shape that the codec does not take")};
}

Status read_all(const Safetensors& file, GoldenCase& c) {
  const auto& meta = file.metadata();
  if (!meta.contains("case") || !meta.contains("plan")) {
    return wrong("metadata", "no `case` or no `plan`");
  }
  AKV_RETURN_IF_ERROR(read_case(Json::parse(meta.at("case")), c));
  const int64_t kv = c.tokens * c.kv_heads * c.head_dim;
  const int64_t query = int64_t{c.heads()} * c.head_dim;
  AKV_RETURN_IF_ERROR(read_tensor(file, "K", SafetensorsType::kU16, kv, c.k));
  AKV_RETURN_IF_ERROR(read_tensor(file, "V", SafetensorsType::kU16, kv, c.v));
  AKV_RETURN_IF_ERROR(read_tensor(file, "Q", SafetensorsType::kU16, c.window * query, c.q));
  AKV_RETURN_IF_ERROR(read_tensor(file, "q_new", SafetensorsType::kF32, query, c.q_new));
  AKV_RETURN_IF_ERROR(
      read_tensor(file, "full.attention", SafetensorsType::kF32, query, c.full_attention));
  const Json plans = Json::parse(meta.at("plan"));
  for (const char* profile : {"paper", "pooled"}) {
    if (!plans.contains(profile)) continue;
    AKV_RETURN_IF_ERROR(read_profile(file, profile, c, plans.at(profile), c.profiles[profile]));
  }
  if (c.profiles.empty()) return wrong("plan", "names no profile that this build knows");
  return {};
}

}  // namespace

Result<GoldenCase> load_golden_case(const std::string& path) {
  AKV_ASSIGN_OR_RETURN(const Safetensors file, Safetensors::read(path));
  GoldenCase c;
  c.name = path.substr(path.find_last_of('/') + 1);
  try {
    AKV_RETURN_IF_ERROR(read_all(file, c));
  } catch (const Json::exception& e) {
    return wrong("metadata", e.what());
  }
  return c;
}

}  // namespace akv::kv::testing
