// Model directories of models from elsewhere, and weight files in other types.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/formats/byte_source.h"
#include "io/formats/text.h"
#include "io/formats/weight_file.h"
#include "io/imports/hf.h"
#include "io/imports/llama2c.h"
#include "model/model_directory.h"
#include "model/plan.h"
#include "raffia/error.h"
#include "support/refusal.h"
#include "support/temporary_directory.h"
#include "support/tiny_llama.h"
#include "support/tiny_vocabulary.h"

namespace raffia::internal {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kRow = 3;  // several rows at a time, and a rest

std::vector<float> read_all(const WeightSource& source) {
  const auto count = static_cast<size_t>(*element_count(source.shape));
  const size_t rows = static_cast<size_t>(source.shape[0]), columns = count / rows;
  std::vector<float> values(count);
  for (size_t first = 0; first < rows; first += kRow) {
    source.read(static_cast<int64_t>(first), std::span(values).subspan(first * columns, std::min(kRow, rows - first) * columns));
  }
  return values;
}

const WeightSource& named(const std::vector<WeightSource>& weights, const std::string& name) {
  for (const WeightSource& weight : weights) {
    if (weight.name == name) return weight;
  }
  throw std::out_of_range(name);
}

std::string ours(std::string name) {
  const auto replace = [&name](const std::string& from, const std::string& to) {
    if (const size_t at = name.find(from); at != std::string::npos) name.replace(at, from.size(), to);
  };
  replace("model.embed_tokens", "embedding");
  replace("model.layers", "decoder.layers");
  replace("model.norm", "decoder.norm");
  replace("input_layernorm", "attention_norm");
  replace("post_attention_layernorm", "ffn_norm");
  replace("self_attn.o_proj", "attention.out_proj");
  replace("self_attn", "attention");
  replace("mlp.gate_proj", "ffn_gate");
  replace("mlp.up_proj", "ffn_up");
  replace("mlp.down_proj", "ffn_down");
  replace("lm_head", "output");
  return name;
}

ImportedModel parsed(const std::string& bytes) {
  static std::string kept;  // weights are read from it
  kept = bytes;
  static std::unique_ptr<MemorySource> source;
  source = std::make_unique<MemorySource>("model.bin", std::as_bytes(std::span(kept)));
  return llama2c_model(*source);
}

TEST(Llama2c, WeightsComeUnderOurNamesWithTheirPairsSideBySide) {
  for (const bool tied : {true, false}) {
    const TinyLlama tiny = TinyLlama::random(1, tied);
    const ImportedModel model = parsed(tiny.llama2c());
    EXPECT_EQ(model.config.width, tiny.width);
    EXPECT_EQ(model.config.key_heads(), tiny.kv_heads);
    EXPECT_EQ(model.config.ffn_width(), tiny.ffn);
    EXPECT_EQ(model.config.tied, tied);
    EXPECT_EQ(model.config.norm, Norm::rms);
    EXPECT_EQ(model.config.feed_forward, FeedForward::swiglu);
    EXPECT_FALSE(model.config.bias);
    EXPECT_EQ(model.weights.size(), tiny.tensors.size());
    for (const TinyLlama::Tensor& tensor : tiny.tensors) {
      const WeightSource& weight = named(model.weights, ours(tensor.name));
      EXPECT_EQ(weight.shape, tensor.shape) << tensor.name;
      EXPECT_EQ(read_all(weight), tiny.turned(tensor)) << tensor.name;
    }
  }
}

TEST(Llama2c, BrokenFilesAreRefused) {
  const std::string whole = TinyLlama::random(2).llama2c();
  const auto refused = [](const std::string& bytes) { return refusal<FormatError>([&] { (void)parsed(bytes); }); };
  const auto with = [&whole](size_t word, int32_t value) {
    std::string bytes = whole;
    std::memcpy(bytes.data() + 4 * word, &value, sizeof(value));
    return bytes;
  };
  EXPECT_EQ(refused(whole), "accepted");
  EXPECT_NE(refused(whole.substr(0, 27)).find("model.bin: 27 bytes, expected at least 28"), std::string::npos);
  EXPECT_NE(refused(whole.substr(0, whole.size() - 1)).find("truncated"), std::string::npos);
  EXPECT_NE(refused(whole + "x").find("unexpected bytes at the end"), std::string::npos);
  EXPECT_NE(refused(with(0, 0)).find("dim is 0, expected 1 to"), std::string::npos);
  EXPECT_NE(refused(with(0, 0x616b3432)).find("later version of llama2.c"), std::string::npos);
  EXPECT_NE(refused(with(0, INT32_MAX)).find("dim is 2147483647"), std::string::npos);
  EXPECT_NE(refused(with(2, -3)).find("n_layers is -3"), std::string::npos);
  EXPECT_NE(refused(with(3, 5)).find("\"heads\" is 5"), std::string::npos);
  EXPECT_NE(refused(with(4, 3)).find("\"kv_heads\" is 3"), std::string::npos);
  EXPECT_NE(refused(with(5, INT32_MIN)).find("vocab_size is 2147483648"), std::string::npos);
  EXPECT_NE(refused(with(1, 1 << 20)).find("truncated"), std::string::npos);
  EXPECT_NE(refused(with(5, -TinyLlama{}.vocabulary)).find("truncated"), std::string::npos);
}

// A directory of Hugging Face with a byte-level vocabulary.
void write_hf(const TemporaryDirectory& directory, const TinyLlama& tiny, const Json& config, const std::string& dtype,
              size_t parts) {
  directory.write("config.json", config.dump());
  directory.write("tokenizer.json", hf_byte_level({{"a", "b"}}).dump());
  tiny.write_hf_weights(directory.path(), dtype, parts);
}

TEST(HfImport, WeightsComeFromOneFileOrSeveral) {
  for (const size_t parts : {1, 3}) {
    const bool tied = parts == 1;
    const TinyLlama tiny = TinyLlama::random(3, tied);
    const TemporaryDirectory directory("hf_import_test");
    write_hf(directory, tiny, tiny.hf_config(), "F32", parts);
    const HfModel hf = load_hf(directory.path());
    EXPECT_FALSE(hf.all_bf16);
    EXPECT_EQ(hf.model.config.tied, tied);
    EXPECT_EQ(hf.model.config.norm_eps, 1e-5);
    EXPECT_EQ(hf.tokenizer->vocabulary(), tiny.vocabulary);
    EXPECT_EQ(hf.tokenizer->begin(), 0);
    EXPECT_EQ(hf.tokenizer->end(), 1);
    EXPECT_EQ(hf.model.weights.size(), tiny.tensors.size());
    for (const TinyLlama::Tensor& tensor : tiny.tensors) {
      EXPECT_EQ(read_all(named(hf.model.weights, ours(tensor.name))), tiny.turned(tensor)) << tensor.name;
    }
  }
}

TEST(HfImport, Bf16StaysBf16) {
  const TinyLlama tiny = TinyLlama::random(4);
  const TemporaryDirectory directory("hf_import_test");
  write_hf(directory, tiny, tiny.hf_config(), "BF16", 1);
  const HfModel hf = load_hf(directory.path());
  EXPECT_TRUE(hf.all_bf16);
  const std::filesystem::path out = directory.path() / "out";
  const StorageReport report = save_model(hf.model, hf.tokenizer.get(), out, {.type = WeightType::bf16});
  EXPECT_EQ(report.worst, 0);  // nothing is rounded twice
  const Safetensors file = Safetensors::open(out / kWeightsFile);
  EXPECT_EQ(file.at("embedding.weight").dtype, "BF16");
  EXPECT_EQ(file.at("decoder.norm.weight").dtype, "F32");
  EXPECT_EQ(load_model_config(out / kConfigFile), hf.model.config);
  EXPECT_EQ(load_tokenizer(out)->fingerprint(), hf.tokenizer->fingerprint());
}

TEST(HfImport, ConfigsOfOtherModelsAreRefusedByName) {
  const Json whole = TinyLlama{}.hf_config();
  const auto refused = [&whole](const std::function<void(Json&)>& change) {
    Json json = whole;
    change(json);
    return refusal<FormatError>([&] { (void)hf_config(json.dump(), "config.json"); });
  };
  const auto expect = [&refused](const std::function<void(Json&)>& change, const std::string& message) {
    const std::string said = refused(change);
    EXPECT_NE(said.find(message), std::string::npos) << said;
  };
  EXPECT_EQ(refused([](Json&) {}), "accepted");
  EXPECT_EQ(refused([](Json& j) { j["model_type"] = "mistral", j["sliding_window"] = nullptr; }), "accepted");
  EXPECT_EQ(refused([](Json& j) { j["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}}; }), "accepted");
  expect([](Json& j) { j["model_type"] = "qwen2"; }, R"(field "model_type" is "qwen2", expected llama or mistral)");
  expect([](Json& j) { j["architectures"] = {"LlamaForSequenceClassification"}; }, "field \"architectures\" holds");
  expect([](Json& j) { j["hidden_act"] = "gelu"; }, R"(field "hidden_act" is "gelu", expected "silu")");
  expect([](Json& j) { j["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}}; }, "field \"rope_scaling.type\" is \"linear\"");
  expect([](Json& j) { j["rope_scaling"] = {{"factor", 2.0}}; }, "field \"rope_scaling.factor\" is unknown");
  expect([](Json& j) { j["sliding_window"] = 4096; }, "field \"sliding_window\" is 4096");
  expect([](Json& j) { j["attention_bias"] = true; }, "field \"attention_bias\" is true");
  expect([](Json& j) { j["quantization_config"] = Json::object(); }, "field \"quantization_config\"");
  expect([](Json& j) { j["head_dim"] = 8; }, "field \"head_dim\" is 8, expected 4");
  expect([](Json& j) { j.erase("vocab_size"); }, "field \"vocab_size\" is missing");
  expect([](Json& j) { j["num_key_value_heads"] = 3; }, "\"kv_heads\" is 3");
}

TEST(HfImport, TensorsThatDoNotFitAreRefusedByName) {
  const TinyLlama tiny = TinyLlama::random(5);
  const auto refused = [](const TinyLlama& model, const Json& config, size_t parts = 1) {
    const TemporaryDirectory directory("hf_import_test");
    write_hf(directory, model, config, "F32", parts);
    return refusal<FormatError>([&] { (void)load_hf(directory.path()); });
  };
  Json config = tiny.hf_config();
  config["num_hidden_layers"] = 3;
  EXPECT_NE(refused(tiny, config).find(R"(no tensor "model.layers.2.input_layernorm.weight")"), std::string::npos);
  config["num_hidden_layers"] = 1;
  EXPECT_NE(refused(tiny, config).find("is not part of a LLaMA model"), std::string::npos);
  config = tiny.hf_config();
  config["intermediate_size"] = 20;
  EXPECT_NE(refused(tiny, config).find("has shape [24, 16], expected [20, 16]"), std::string::npos);
  config = tiny.hf_config();
  config["vocab_size"] = 100;
  EXPECT_NE(refused(tiny, config).find("expected 0 to 99"), std::string::npos);

  const TemporaryDirectory directory("hf_import_test");
  write_hf(directory, tiny, tiny.hf_config(), "F32", 2);
  std::filesystem::copy_file(directory.path() / "model-00001-of-00002.safetensors",
                             directory.path() / "model-00002-of-00002.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_NE(refusal<FormatError>([&] { (void)load_hf(directory.path()); }).find(" is also in "), std::string::npos);
  for (const char* bad : {R"({"weight_map":{"a":"../x.safetensors"}})", R"({"weight_map":{"a":7}})", R"({"weight_map":[]})",
                          R"({"weight_map":{"a":"model.bin"}})"}) {
    EXPECT_NE(refusal<FormatError>([bad] { (void)hf_index(bad, "index.json"); }).find("field \"weight_map\""), std::string::npos)
        << bad;
  }
}

TEST(WeightFile, Int8RowsAreWithinHalfAStepAndComeBackAsTheyWere) {
  const TinyLlama tiny = TinyLlama::random(6);
  const ImportedModel model = parsed(tiny.llama2c());
  const TemporaryDirectory directory("weight_file_test");
  const std::filesystem::path int8 = directory.path() / "int8.safetensors", again = directory.path() / "again.safetensors";
  std::vector<std::string> heard;
  const StorageReport report = write_weights(int8, model.weights, WeightType::int8,
                                             [&heard](const WeightSource& source) { heard.push_back(source.name); });
  EXPECT_EQ(heard.size(), model.weights.size());
  EXPECT_EQ(report.bytes, std::filesystem::file_size(int8));
  EXPECT_EQ(report.matrices, 1 + 7 * tiny.layers);
  const Safetensors file = Safetensors::open(int8);
  EXPECT_EQ(file.at("embedding.weight").dtype, "I8");
  EXPECT_EQ(file.at("embedding.weight_scale").shape, (std::vector<int64_t>{tiny.vocabulary}));
  EXPECT_EQ(file.at("decoder.layers.0.ffn_norm.weight").dtype, "F32");
  const std::vector<WeightSource> stored = planned_weights(file, plan_of(model.config), "int8");
  EXPECT_EQ(stored.size(), model.weights.size());
  double worst = 0;
  for (const WeightSource& weight : model.weights) {
    const std::vector<float> before = read_all(weight), after = read_all(named(stored, weight.name));
    const size_t columns = weight.shape.size() == 2 ? static_cast<size_t>(weight.shape[1]) : 1;
    for (size_t row = 0; row * columns < before.size(); ++row) {
      float greatest = 0;
      double error = 0, norm = 0;
      for (size_t c = row * columns; c < (row + 1) * columns; ++c) {
        greatest = std::max(greatest, std::abs(before[c]));
        error += std::pow(double{after[c]} - before[c], 2);
        norm += std::pow(double{before[c]}, 2);
      }
      for (size_t c = row * columns; c < (row + 1) * columns; ++c) {
        // Half a step of greatest / 127, and the rounding of a product.
        const double bound = weight.shape.size() == 2 ? greatest / 127.0 * 0.5 * (1 + 1e-5) : 0;
        EXPECT_LE(std::abs(double{after[c]} - before[c]), bound) << weight.name;
      }
      worst = std::max(worst, std::sqrt(error / norm));
    }
  }
  EXPECT_NEAR(report.worst, worst, 1e-12);
  EXPECT_LE(report.mean, report.worst);
  // What is int8 already loses nothing: a scale may differ in its last bit, elements do not.
  EXPECT_LT(write_weights(again, stored, WeightType::int8).worst, 1e-6);
  EXPECT_EQ(Safetensors::open(again).read_bytes("embedding.weight"), file.read_bytes("embedding.weight"));
}

TEST(WeightFile, MatricesBeginAtMultiplesOfTheirElements) {
  std::vector<float> numbers(63, 1.0F);
  const auto read = [&numbers](int64_t first_row, std::span<float> rows) {
    std::copy_n(numbers.begin() + first_row, rows.size(), rows.begin());
  };
  const std::vector<WeightSource> sources = {
      {"a.weight", {7, 9}, read, true}, {"norm.weight", {5}, read}, {"b.weight", {3, 1}, read, true}};
  const TemporaryDirectory directory("weight_file_test");
  for (const auto& [name, type] : kWeightTypes) {
    const std::filesystem::path path = directory.path() / "x.safetensors";
    write_weights(path, sources, type);
    const Safetensors file = Safetensors::open(path);
    EXPECT_EQ(file.at("norm.weight").begin % 4, 0U);
    EXPECT_EQ(file.at("a.weight").begin % format_of(type).element_bytes, 0U);
    EXPECT_EQ(file.at("b.weight").begin % format_of(type).element_bytes, 0U);
  }
}

TEST(WeightFile, WeightsThatAreNotFiniteAreRefusedByName) {
  const auto read = [](int64_t, std::span<float> rows) { std::ranges::fill(rows, INFINITY); };
  const std::vector<WeightSource> sources = {{"a.weight", {2, 2}, read, true}};
  const TemporaryDirectory directory("weight_file_test");
  for (const Named<WeightType>& type : kWeightTypes) {
    const std::string said = refusal<InvalidArgument>([&] { write_weights(directory.path() / "x", sources, type.value); });
    EXPECT_NE(said.find("a.weight"), std::string::npos) << said;
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(NewModelDirectory, AppearsWholeOrNotAtAll) {
  const TemporaryDirectory directory("model_directory_test");
  const std::filesystem::path target = directory.path() / "model";
  {
    const NewModelDirectory fresh(target, {});
    write_file(fresh.path() / kConfigFile, "1");
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));  // not committed
  const auto make = [&target](const std::string& text, bool replace) {
    NewModelDirectory fresh(target / "", {.replace = replace});  // with a slash at its end
    write_file(fresh.path() / kConfigFile, text);
    fresh.commit();
  };
  make("1", false);
  EXPECT_EQ(read_file(target / kConfigFile), "1");
  write_file(target / "tokenizer.model", "old");
  write_file(target / "notes.txt", "mine");
  EXPECT_NE(refusal<IoError>([&] { make("2", false); }).find("already contains a model"), std::string::npos);
  make("2", true);
  EXPECT_EQ(read_file(target / kConfigFile), "2");
  EXPECT_FALSE(std::filesystem::exists(target / "tokenizer.model"));
  EXPECT_EQ(read_file(target / "notes.txt"), "mine");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1);
}

}  // namespace
}  // namespace raffia::internal
