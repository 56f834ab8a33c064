#include "io/imports/hf.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "io/formats/json_fields.h"
#include "io/formats/safetensors.h"
#include "io/formats/text.h"
#include "io/imports/hf_tokenizer.h"
#include "model/plan.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr uint64_t kMaxBytesOfConfig = 1 << 20;
constexpr uint64_t kMaxBytesOfJson = uint64_t{1} << 28;
constexpr const char* kWeights = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// A field that must have this value where it is given: another would make the model compute something else.
void expect_if_given(JsonFields& fields, std::string_view name, const Json& expected) {
  if (!fields.has_value(name)) return;
  if (const Json& found = fields.value(name); found != expected) {
    fields.refuse(name, fmt::format("is {}, expected {}: it is not supported",
                                    found.dump(-1, ' ', true, Json::error_handler_t::replace), expected.dump()));
  }
}

// The base of the angles; scaled ones are refused, in both dialects of the format.
double rotary_base(JsonFields& fields) {
  double base = fields.has_value("rope_theta") ? fields.number("rope_theta", 1, 1e12) : 10000;
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    if (!fields.has_value(name)) continue;
    JsonFields rope = fields.object(name);
    for (const char* type : {"rope_type", "type"}) expect_if_given(rope, type, "default");
    if (rope.has_value("rope_theta")) base = rope.number("rope_theta", 1, 1e12);
    expect_if_given(rope, "partial_rotary_factor", 1.0);
    rope.expect_no_more();
  }
  return base;
}

int32_t first_id(JsonFields& fields, std::string_view name, int64_t vocabulary) {
  if (!fields.has_value(name)) return -1;
  if (!fields.value(name).is_array()) return static_cast<int32_t>(fields.integer(name, -1, vocabulary - 1));
  const std::vector<int64_t> ids = fields.integers(name, 0, vocabulary - 1);
  return ids.empty() ? -1 : static_cast<int32_t>(ids.front());
}

// Files of tensors, and where each tensor is.
class Shards {
 public:
  explicit Shards(const fs::path& directory) {
    if (!fs::exists(directory / kIndex)) {
      open(directory / kWeights);
      return;
    }
    const fs::path index = directory / kIndex;
    const std::map<std::string, std::string> files = hf_index(read_file(index, kMaxBytesOfJson), index.string());
    std::set<std::string> names;
    for (const auto& [tensor, file] : files) names.insert(file);
    for (const std::string& name : names) open(directory / name);
    for (const auto& [tensor, file] : files) {
      const auto found = tensors_.find(tensor);
      if (found == tensors_.end() || found->second.path.filename() != file) {
        throw FormatError(fmt::format("{}: lists tensor \"{}\" in {}, which does not contain it", index.string(), tensor, file));
      }
    }
  }

  // The tensor `name` as the source of one of ours.
  WeightSource take(const std::string& name, const TensorPlan& ours) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) throw FormatError(fmt::format("{}: no tensor \"{}\", expected one", where_, name));
    const Entry& entry = found->second;
    const auto refuse = [&](const std::string& what) {
      throw FormatError(fmt::format("{}: tensor \"{}\" {}", entry.path.string(), name, what));
    };
    const Safetensors::Tensor& tensor = *entry.tensor;
    if (tensor.shape != ours.shape) {
      refuse(fmt::format("has shape {}, expected {}", to_string(tensor.shape), to_string(ours.shape)));
    }
    if (tensor.dtype != "F32" && tensor.dtype != "F16" && tensor.dtype != "BF16") {
      refuse(fmt::format("is {}, expected F32, F16 or BF16", tensor.dtype));
    }
    if (ours.is_matrix() && tensor.dtype != "BF16") all_bf16_ = false;
    const uint64_t columns = ours.shape.size() == 2 ? static_cast<uint64_t>(ours.shape[1]) : 1;
    WeightSource source{
        .name = ours.name, .shape = ours.shape, .read = {}, .is_matrix = ours.is_matrix(), .is_vocabulary = ours.is_vocabulary()};
    source.read = [file = entry.file, &tensor, columns](int64_t first_row, std::span<float> rows) {
      file->read_part(tensor, static_cast<uint64_t>(first_row) * columns, rows);
    };
    tensors_.erase(found);
    return source;
  }

  void drop(const std::string& name) { tensors_.erase(name); }

  void expect_no_more() const {
    for (const auto& [name, entry] : tensors_) {
      if (name.ends_with(".rotary_emb.inv_freq")) continue;  // follows from the sizes
      throw FormatError(fmt::format("{}: tensor \"{}\" is not part of a LLaMA model", entry.path.string(), name));
    }
  }

  bool all_bf16() const { return all_bf16_; }

 private:
  struct Entry {
    fs::path path;
    std::shared_ptr<const Safetensors> file;
    const Safetensors::Tensor* tensor;
  };

  void open(const fs::path& path) {
    where_ = path.string();
    const auto file = std::make_shared<const Safetensors>(Safetensors::open(path));
    for (const Safetensors::Tensor& tensor : file->tensors()) {
      if (const auto [other, fresh] = tensors_.emplace(tensor.name, Entry{path, file, &tensor}); !fresh) {
        throw FormatError(
            fmt::format("{}: tensor \"{}\" is also in {}", path.string(), tensor.name, other->second.path.string()));
      }
    }
  }

  std::string where_;  // the last file
  std::map<std::string, Entry> tensors_;
  bool all_bf16_ = true;
};

// A tensor of ours as those files call it.
std::string their_name(std::string_view ours) {
  constexpr std::pair<std::string_view, std::string_view> kParts[] = {{"embedding.", "model.embed_tokens."},
                                                                      {"output.", "lm_head."},
                                                                      {"decoder.", "model."},
                                                                      {".attention.out_proj.", ".self_attn.o_proj."},
                                                                      {".attention.", ".self_attn."},
                                                                      {".attention_norm.", ".input_layernorm."},
                                                                      {".ffn_norm.", ".post_attention_layernorm."},
                                                                      {".ffn_gate.", ".mlp.gate_proj."},
                                                                      {".ffn_up.", ".mlp.up_proj."},
                                                                      {".ffn_down.", ".mlp.down_proj."}};
  std::string name(ours);
  for (const auto& [from, to] : kParts) {
    if (const size_t at = name.find(from); at != std::string::npos) name.replace(at, from.size(), to);
  }
  return name;
}

std::vector<WeightSource> llama_weights(Shards& shards, const ModelConfig& config) {
  const ModelPlan plan = plan_of(config);
  std::vector<WeightSource> weights;
  for (const TensorPlan& tensor : plan.tensors) weights.push_back(shards.take(their_name(tensor.name), tensor));
  if (!plan.output) shards.drop("lm_head.weight");  // some files hold the embedding twice
  shards.expect_no_more();
  return weights;
}

}  // namespace

HfConfig hf_config(std::string_view text, std::string_view where) {
  JsonFields fields = JsonFields::parse(text, where);
  const std::string type = fields.string("model_type");
  if (type != "llama" && type != "mistral")
    fields.refuse("model_type", fmt::format("is \"{}\", expected llama or mistral", type));
  if (fields.has_value("architectures")) {
    for (const std::string& name : fields.strings("architectures")) {
      if (name != "LlamaForCausalLM" && name != "MistralForCausalLM") {
        fields.refuse("architectures", fmt::format("holds \"{}\", expected LlamaForCausalLM or MistralForCausalLM", name));
      }
    }
  }
  expect_if_given(fields, "hidden_act", "silu");
  for (const char* name : {"attention_bias", "mlp_bias", "rope_interleaved"}) expect_if_given(fields, name, false);
  expect_if_given(fields, "partial_rotary_factor", 1.0);
  for (const char* name : {"quantization_config", "sliding_window"}) expect_if_given(fields, name, nullptr);

  HfConfig config;
  ModelConfig& model = config.model;
  const auto size = [&fields](std::string_view name) { return fields.integer(name, 1, 1 << 24); };
  model.vocabulary = size("vocab_size");
  model.width = size("hidden_size");
  model.ffn = size("intermediate_size");
  model.layers = size("num_hidden_layers");
  model.heads = size("num_attention_heads");
  model.kv_heads = fields.has_value("num_key_value_heads") ? size("num_key_value_heads") : model.heads;
  model.norm = Norm::rms;
  model.norm_eps = fields.has_value("rms_norm_eps") ? fields.number("rms_norm_eps", 1e-12, 1) : 1e-6;
  model.feed_forward = FeedForward::swiglu;
  model.bias = false;
  model.tied = fields.has_value("tie_word_embeddings") && fields.truth("tie_word_embeddings");
  model.estimators = {Estimator{}};
  model.positions = Positions::rotary;
  model.rotary_base = rotary_base(fields);
  model.check(where);
  if (fields.has_value("head_dim")) {
    if (const int64_t found = size("head_dim"); found != model.head_dim()) {
      fields.refuse("head_dim", fmt::format("is {}, expected {} (hidden_size / num_attention_heads)", found, model.head_dim()));
    }
  }
  config.begin = first_id(fields, "bos_token_id", model.vocabulary);
  config.end = first_id(fields, "eos_token_id", model.vocabulary);
  return config;
}

std::map<std::string, std::string> hf_index(std::string_view text, std::string_view where) {
  JsonFields fields = JsonFields::parse(text, where);
  const Json& map = fields.value("weight_map");
  if (!map.is_object()) fields.refuse("weight_map", "is not an object, expected file names by tensor");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : map.items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name.find('/') != std::string::npos || name.find('\0') != std::string::npos ||
        !name.ends_with(".safetensors")) {
      fields.refuse("weight_map", fmt::format("has {} for tensor {}, expected the plain name of a .safetensors file",
                                              file.dump(-1, ' ', true), Json(tensor).dump(-1, ' ', true)));
    }
    files.emplace(tensor, name);
  }
  return files;
}

HfModel load_hf(const fs::path& directory) {
  const fs::path config_path = directory / "config.json", tokenizer_path = directory / "tokenizer.json",
                 tokenizer_config_path = directory / "tokenizer_config.json";
  const HfConfig config = hf_config(read_file(config_path, kMaxBytesOfConfig), config_path.string());
  HfModel result;
  result.model.config = config.model;

  const std::string tokenizer = read_file(tokenizer_path, kMaxBytesOfJson);
  const std::string tokenizer_config = fs::exists(tokenizer_config_path) ? read_file(tokenizer_config_path, kMaxBytesOfJson) : "";
  BpeModel bpe = bpe_from_hf({.tokenizer = tokenizer,
                              .tokenizer_config = tokenizer_config,
                              .where = tokenizer_path.string(),
                              .where_config = tokenizer_config_path.string()},
                             config.model.vocabulary);
  if (bpe.begin < 0) bpe.begin = config.begin;
  if (bpe.end < 0) bpe.end = config.end;
  result.tokenizer = make_bpe_tokenizer(std::move(bpe), tokenizer_path.string());

  Shards shards(directory);
  result.model.weights = llama_weights(shards, config.model);
  result.all_bf16 = shards.all_bf16();
  return result;
}

}  // namespace raffia::internal
