// A small LLaMA of random weights, as the files of llama2.c and of Hugging Face hold it.
#ifndef RAFFIA_TESTS_SUPPORT_TINY_LLAMA_H_
#define RAFFIA_TESTS_SUPPORT_TINY_LLAMA_H_

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "io/formats/safetensors.h"
#include "raffia/random.h"
#include "raffia/views.h"

namespace raffia::internal {

struct TinyLlama {
  int32_t width = 16, ffn = 24, layers = 2, heads = 4, kv_heads = 2, vocabulary = 263, length = 8;
  bool tied = true;

  // In the order of llama2.c, layer by layer within a name: wq and wk turn pairs (2 i, 2 i + 1) of a head.
  struct Tensor {
    std::string name;  // of Hugging Face
    std::vector<int64_t> shape;
    std::vector<float> values;
  };
  std::vector<Tensor> tensors;

  int32_t head() const { return width / heads; }

  static TinyLlama random(uint64_t seed, bool tied = true) {
    TinyLlama model;
    model.tied = tied;
    RandomStream stream({.seed = seed});
    const auto add = [&](std::string name, std::vector<int64_t> shape) {
      Tensor tensor{std::move(name), std::move(shape), {}};
      const bool norm = tensor.shape.size() == 1;
      const int64_t count = tensor.shape[0] * (norm ? 1 : tensor.shape[1]);
      const double spread = norm ? 0.2 : 1.5 / std::sqrt(static_cast<double>(tensor.shape[1]));
      for (int64_t i = 0; i < count; ++i) {
        const double uniform = static_cast<double>(stream.next_u32()) / 4294967296.0 - 0.5;
        tensor.values.push_back(static_cast<float>((norm ? 1.0 : 0.0) + 2 * spread * uniform));
      }
      model.tensors.push_back(std::move(tensor));
    };
    const int64_t width = model.width, ffn = model.ffn, keys = int64_t{model.kv_heads} * model.head();
    const auto add_layers = [&](const char* name, const std::vector<int64_t>& shape) {
      for (int32_t i = 0; i < model.layers; ++i) add(fmt::format("model.layers.{}.{}.weight", i, name), shape);
    };
    add("model.embed_tokens.weight", {model.vocabulary, width});
    add_layers("input_layernorm", {width});
    add_layers("self_attn.q_proj", {width, width});
    add_layers("self_attn.k_proj", {keys, width});
    add_layers("self_attn.v_proj", {keys, width});
    add_layers("self_attn.o_proj", {width, width});
    add_layers("post_attention_layernorm", {width});
    add_layers("mlp.gate_proj", {ffn, width});
    add_layers("mlp.down_proj", {width, ffn});
    add_layers("mlp.up_proj", {ffn, width});
    add("model.norm.weight", {width});
    if (!tied) add("lm_head.weight", {model.vocabulary, width});
    return model;
  }

  const Tensor& at(const std::string& name) const {
    for (const Tensor& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    throw std::out_of_range(name);
  }

  // A checkpoint of llama2.c.
  std::string llama2c() const {
    std::string bytes;
    const auto add = [&bytes](const void* data, size_t size) { bytes.append(static_cast<const char*>(data), size); };
    for (const int32_t size : {width, ffn, layers, heads, kv_heads, tied ? vocabulary : -vocabulary, length})
      add(&size, sizeof(size));
    for (const Tensor& tensor : tensors) {
      if (tensor.name == "lm_head.weight") bytes.append(sizeof(float) * static_cast<size_t>(length * head()), '\0');
      add(tensor.values.data(), tensor.values.size() * sizeof(float));
    }
    if (tied) bytes.append(sizeof(float) * static_cast<size_t>(length * head()), '\0');
    return bytes;
  }

  // Rows of a head in the order (0, 2, 4, .., 1, 3, 5, ..): pairs (i, i + d / 2) turn together, as Hugging Face and Raffia have
  // it.
  std::vector<float> turned(const Tensor& tensor) const {
    const bool turns = tensor.name.find("q_proj") != std::string::npos || tensor.name.find("k_proj") != std::string::npos;
    if (!turns) return tensor.values;
    std::vector<float> values;
    const auto columns = static_cast<size_t>(tensor.shape[1]), rows = static_cast<size_t>(tensor.shape[0]);
    const auto size = static_cast<size_t>(head());
    for (size_t first = 0; first < rows; first += size) {
      for (const size_t odd : {size_t{0}, size_t{1}}) {
        for (size_t i = odd; i < size; i += 2) {
          const float* row = tensor.values.data() + (first + i) * columns;
          values.insert(values.end(), row, row + columns);
        }
      }
    }
    return values;
  }

  nlohmann::ordered_json hf_config() const {
    return {{"architectures", {"LlamaForCausalLM"}},
            {"bos_token_id", 0},
            {"eos_token_id", 1},
            {"hidden_act", "silu"},
            {"hidden_size", width},
            {"intermediate_size", ffn},
            {"max_position_embeddings", length},
            {"model_type", "llama"},
            {"num_attention_heads", heads},
            {"num_hidden_layers", layers},
            {"num_key_value_heads", kv_heads},
            {"rms_norm_eps", 1e-5},
            {"rope_scaling", nullptr},
            {"rope_theta", 10000.0},
            {"tie_word_embeddings", tied},
            {"torch_dtype", "float32"},
            {"vocab_size", vocabulary}};
  }

  // Writes the weights of Hugging Face in `parts` files, with an index if there are several.
  void write_hf_weights(const std::filesystem::path& directory, const std::string& dtype, size_t parts) const {
    std::map<std::string, std::vector<std::byte>> bytes;
    for (const Tensor& tensor : tensors) {
      std::vector<std::byte>& to = bytes[tensor.name];
      for (const float value : turned(tensor)) {
        const uint16_t half = BFloat16::from_float(value).bits;
        const auto* raw =
            dtype == "BF16" ? reinterpret_cast<const std::byte*>(&half) : reinterpret_cast<const std::byte*>(&value);
        to.insert(to.end(), raw, raw + (dtype == "BF16" ? sizeof(half) : sizeof(value)));
      }
    }
    nlohmann::ordered_json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", nlohmann::ordered_json::object()}};
    for (size_t part = 0; part < parts; ++part) {
      const std::string name =
          parts == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", part + 1, parts);
      std::vector<TensorToWrite> chosen;
      for (size_t i = part; i < tensors.size(); i += parts) {
        chosen.push_back({tensors[i].name, dtype, tensors[i].shape, bytes[tensors[i].name]});
        index["weight_map"][tensors[i].name] = name;
      }
      write_safetensors(directory / name, chosen, {{"format", "pt"}});
    }
    if (parts > 1) std::ofstream(directory / "model.safetensors.index.json") << index.dump();
  }
};

}  // namespace raffia::internal

#endif  // RAFFIA_TESTS_SUPPORT_TINY_LLAMA_H_
