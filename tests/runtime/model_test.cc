// Loading: weights of every type, and files that are not what they should be.
#include "raffia/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>

#include "core/weight_matrix.h"
#include "golden.h"
#include "io/formats/image.h"
#include "io/formats/text.h"
#include "io/formats/weight_file.h"
#include "model/model_directory.h"
#include "model/plan.h"
#include "raffia/error.h"
#include "raffia/session.h"
#include "support/refusal.h"
#include "support/temporary_directory.h"

namespace raffia::internal {
namespace {

struct OwnedTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};
using Tensors = std::map<std::string, OwnedTensor>;

Tensors tensors_of(const std::string& name) {
  const Safetensors file = Safetensors::open(golden_directory() / name / "model.safetensors");
  Tensors tensors;
  for (const auto& one : file.tensors()) tensors[one.name] = {one.dtype, one.shape, file.read_bytes(one.name)};
  return tensors;
}

std::vector<std::byte> image_of(const Tensors& tensors) {
  const TemporaryDirectory directory("model_test");
  std::vector<TensorToWrite> all;
  for (const auto& [name, one] : tensors) all.push_back({name, one.dtype, one.shape, one.bytes});
  write_safetensors(directory.path() / "image", all);
  return bytes_of(directory.path() / "image");
}

ModelConfig config_of(const std::string& name) { return load_model_config(golden_directory() / name / "config.json"); }

// All matrices of linear layers and embeddings in another type, embeddings included.
Tensors stored_as(Tensors tensors, WeightType type) {
  Tensors result;
  for (auto& [name, one] : tensors) {
    const bool is_matrix = name.ends_with(".weight") && one.shape.size() == 2 && name.find("positions") == std::string::npos;
    if (!is_matrix) {
      result[name] = one;
      continue;
    }
    std::vector<float> floats(one.bytes.size() / sizeof(float));
    std::memcpy(floats.data(), one.bytes.data(), one.bytes.size());
    const WeightFormat& format = format_of(type);
    StoredWeights stored = store_weights(name, View2(floats.data(), {one.shape[0], one.shape[1]}), type);
    result[name] = {format.element, stored_shape(format, one.shape[0], one.shape[1]), std::move(stored.elements)};
    if (format.scales != WeightFormat::Scales::none) {
      result[scale_name(name)] = {format.scale, scale_shape(format, one.shape[0], one.shape[1]), std::move(stored.scales)};
    }
  }
  return result;
}

// The same weights, rounded, as plain fp32 with the shapes of `original`: what the stored ones mean.
Tensors widened(const Tensors& tensors, const Tensors& original) {
  Tensors result;
  for (const auto& [name, whole] : original) {
    const OwnedTensor& one = tensors.at(name);
    OwnedTensor& to = result[name] = whole;
    if (one.dtype == "F32") continue;
    const auto scales = tensors.find(scale_name(name));
    const auto columns = static_cast<size_t>(whole.shape[1]);
    const WeightMatrix matrix{.type = find_weight_format(one.dtype)->type,
                              .data = one.bytes.data(),
                              .scales = scales == tensors.end() ? nullptr : scales->second.bytes.data(),
                              .rows = whole.shape[0],
                              .columns = whole.shape[1]};
    for (int64_t row = 0; row < matrix.rows; ++row) {
      std::vector<float> floats(columns);
      copy_row(matrix, row, floats);
      std::memcpy(to.bytes.data() + static_cast<size_t>(row) * columns * sizeof(float), floats.data(), columns * sizeof(float));
    }
  }
  return result;
}

std::vector<float> last_logits(const ModelConfig& config, const Tensors& tensors) {
  const auto model = Model::over(config, image_of(tensors), nullptr, "image");
  Session session(model);
  session.prefill(std::vector<int32_t>{3, 5, 2, 7, 1, 4, 9, 6});
  session.step(8);
  return {session.logits().begin(), session.logits().end()};
}

TEST(Model, StoredTypesMeanWhatTheyHold) {
  for (const std::string name : {"lm-gate", "llama-rfa_gate", "lm-softmax"}) {
    const Tensors original = tensors_of(name);
    for (const WeightType type : {WeightType::bf16, WeightType::int8, WeightType::int4}) {
      const Tensors stored = stored_as(original, type);
      const std::vector<float> found = last_logits(config_of(name), stored),
                               expected = last_logits(config_of(name), widened(stored, original));
      double square = 0;
      for (const float logit : expected) square += static_cast<double>(logit) * logit / static_cast<double>(expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        double bound = 1e-4 * (1 + std::abs(expected[i]));  // of bf16, the order of summation
        if (format_of(type).by_integers) {
          // Activations are rounded to steps of max / 127 of 32 columns: an error of max / 127 / sqrt(12), for normal numbers 2.4
          // / 440 = 0.0055 of their size. Each of the 7 products from the embedding to the logits adds one, sqrt(7) in all, and
          // the greatest of some dozens of logits is three times as far off as most.
          bound = 3 * std::sqrt(7.0) * 0.0055 * std::sqrt(square);
        }
        EXPECT_NEAR(found[i], expected[i], bound) << name << " " << name_of(type);
      }
      EXPECT_EQ(Model::over(config_of(name), image_of(stored), nullptr, "image")->weight_type(), name_of(type));
    }
  }
}

// What `raffia quantize` writes, and what it wrote before the vocabulary of int4 was kept in int8 (StoredTypesMeanWhatTheyHold).
TEST(Model, Int4KeepsTheVocabularyInInt8) {
  const std::string name = "lm-gate";
  const TemporaryDirectory directory("model_test");
  const Safetensors file = Safetensors::open(golden_directory() / name / "model.safetensors");
  const std::vector<WeightSource> sources = planned_weights(file, plan_of(config_of(name)), "golden");
  write_weights(directory.path() / "int4", sources, WeightType::int4);
  const Safetensors stored = Safetensors::open(directory.path() / "int4");
  EXPECT_EQ(stored.at("embedding.weight").dtype, format_of(WeightType::int8).element);
  EXPECT_EQ(stored.at("decoder.layers.0.ffn_up.weight").dtype, format_of(WeightType::int4).element);
  EXPECT_EQ(Model::over(config_of(name), bytes_of(directory.path() / "int4"), nullptr, "image")->weight_type(), "int4");

  Tensors mixed = stored_as(tensors_of(name), WeightType::int4);
  mixed["embedding.weight"] = tensors_of(name).at("embedding.weight");
  mixed.erase(scale_name("embedding.weight"));
  EXPECT_EQ(Model::over(config_of(name), image_of(mixed), nullptr, "image")->weight_type(), "mixed");
}

TEST(Model, IntegerWeightsAreRefusedIfShapesOrScalesDoNotFit) {
  const std::string name = "lm-gate", key = "decoder.layers.0.ffn_up.weight", scale = scale_name(key);
  for (const WeightType type : {WeightType::int8, WeightType::int4}) {
    const Tensors whole = stored_as(tensors_of(name), type);
    const auto refusal_of = [&](const std::function<void(Tensors&)>& change) {
      Tensors tensors = whole;
      change(tensors);
      const std::vector<std::byte> image = image_of(tensors);
      return refusal<FormatError>([&] { (void)Model::over(config_of(name), image, nullptr, "image"); });
    };
    const auto expect = [&](const std::string& said, const std::string& part) {
      EXPECT_NE(said.find(part), std::string::npos) << name_of(type) << ": " << said;
    };
    EXPECT_EQ(refusal_of([](Tensors&) {}), "accepted");
    expect(refusal_of([&](Tensors& t) { t.erase(scale); }), scale + "\" are missing");
    expect(refusal_of([&](Tensors& t) {
             t[key].shape[1] -= 1;
             t[key].bytes.resize(static_cast<size_t>(t[key].shape[0] * t[key].shape[1]));
           }),
           "has shape");
    expect(refusal_of([&](Tensors& t) {
             t[scale].shape[0] -= 1;
             t[scale].bytes.resize(t[scale].bytes.size() / static_cast<size_t>(t[scale].shape[0] + 1) *
                                   static_cast<size_t>(t[scale].shape[0]));
           }),
           "has scales");
    expect(refusal_of([&](Tensors& t) {
             t[scale].dtype = "U8";
             t[scale].shape.back() *= static_cast<int64_t>(format_of(type).scale_bytes);
           }),
           "has scales U8");
    // NaN and infinity in the last scale.
    for (const uint32_t bits : {0x7FC00000U, 0xFF800000U}) {
      expect(refusal_of([&](Tensors& t) {
               const size_t size = format_of(type).scale_bytes;
               std::memcpy(t[scale].bytes.data() + t[scale].bytes.size() - size, reinterpret_cast<const char*>(&bits) + 4 - size,
                           size);
             }),
             "expected finite scales");
    }
  }
}

// One number of a tensor is not a number, as after a broken run.
Tensors with_nan(Tensors tensors, const std::string& name) {
  const float nan = NAN;
  std::memcpy(tensors.at(name).bytes.data(), &nan, sizeof(nan));
  return tensors;
}

TEST(Model, LogitsThatAreNotFiniteAreRefusedByAllThatChooseByThem) {
  const auto broken = [](const std::string& name, const std::string& tensor) {
    return Model::over(config_of(name), image_of(with_nan(tensors_of(name), tensor)), nullptr, "image");
  };
  const std::vector<int32_t> ids = {5, 6, 7};
  const auto classifier = broken("classify-softmax", "head.bias");
  EXPECT_EQ(refusal<Error>([&] { (void)classify(*classifier, ids); }),
            "classify: the logit of class 0 is nan, expected a finite number: the weights of the model are damaged");
  const auto images = broken("image-softmax", "head.bias");
  const ModelConfig& image = images->config();
  const std::vector<float> pixels(static_cast<size_t>(image.channels * image.image_size * image.image_size), 0.5F);
  EXPECT_THROW((void)classify_image(*images, pixels), Error);
  const auto translator = broken("translate-softmax", "decoder.norm.weight");
  for (const int64_t beam : {1, 4}) {
    EXPECT_NE(
        refusal<Error>([&] { (void)translate(*translator, ids, {.beam = beam}); }).find("translate: the logit of token 0 is nan"),
        std::string::npos);
  }
  Session session(broken("lm-softmax", "decoder.norm.weight"));
  session.prefill(ids);
  EXPECT_THROW((void)session.sample(), Error);
  EXPECT_THROW((void)session.likeliest(3), Error);
  EXPECT_THROW((void)session.log_probability(3), Error);
}

TEST(Model, WhateverDoesNotFitIsNamed) {
  const std::string name = "lm-gate";
  const Tensors whole = tensors_of(name);
  const auto refusal_of = [&](const std::function<void(Tensors&, ModelConfig&)>& change) {
    Tensors tensors = whole;
    ModelConfig config = config_of(name);
    change(tensors, config);
    const std::vector<std::byte> image = image_of(tensors);
    return refusal<FormatError>([&] { (void)Model::over(config, image, nullptr, "image"); });
  };
  const std::string key = "decoder.layers.1.attention.gate.weight";
  EXPECT_EQ(refusal_of([](Tensors&, ModelConfig&) {}), "accepted");
  EXPECT_EQ(refusal_of([&](Tensors& t, ModelConfig&) { t.erase(key); }), "image: tensor \"" + key + "\" is missing");
  EXPECT_EQ(refusal_of([&](Tensors& t, ModelConfig&) { t["decoder.extra"] = t[key]; }),
            "image: tensor \"decoder.extra\" is not part of the model");
  EXPECT_NE(refusal_of([&](Tensors&, ModelConfig& c) { c.width *= 2; }).find("has shape"), std::string::npos);
  EXPECT_NE(refusal_of([&](Tensors&, ModelConfig& c) { c.layers += 1; }).find("is missing"), std::string::npos);
  EXPECT_NE(refusal_of([&](Tensors& t, ModelConfig&) { t[key].dtype = "I32"; }).find("is I32, expected one of F32, BF16, I8, U8"),
            std::string::npos);
  EXPECT_NE(refusal_of([&](Tensors& t, ModelConfig&) {
              t[key].dtype = "I8";
              t[key].bytes.resize(t[key].bytes.size() / 4);
            }).find(key + "_scale\" are missing"),
            std::string::npos);
  EXPECT_NE(refusal_of([&](Tensors&, ModelConfig& c) { c.heads = 7; }).find("\"heads\""), std::string::npos);

  const std::vector<std::byte> image = image_of(whole);
  for (const size_t size : {size_t{0}, size_t{7}, size_t{100}, image.size() - 1}) {
    std::vector<std::byte> cut(image.begin(), image.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_THROW(Model::over(config_of(name), cut, nullptr, "image"), FormatError) << size;
  }
}

TEST(Model, DirectoriesThatAreNoModelAreRefused) {
  const TemporaryDirectory directory("model_test");
  const std::filesystem::path from = golden_directory() / "image-rfa", to = directory.path();
  EXPECT_THROW(Model::load(to), IoError);
  std::filesystem::copy_file(from / "config.json", to / "config.json");
  EXPECT_THROW(Model::load(to), IoError);
  directory.write("model.safetensors", "");
  EXPECT_THROW(Model::load(to), FormatError);
  std::filesystem::remove(to / "model.safetensors");
  std::filesystem::copy_file(from / "model.safetensors", to / "model.safetensors");
  EXPECT_EQ(Model::load(to)->config().task, Task::image);
  EXPECT_THROW(Model::load(to)->tokenizer(), InvalidArgument);

  // A language model needs a tokenizer of its own vocabulary.
  std::filesystem::copy_file(golden_directory() / "lm-gate" / "config.json", to / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THROW(Model::load(to), Error);
  train_tokenizer({.kind = "byte"}, {})->save(to);
  EXPECT_NE(refusal<FormatError>([&] { (void)Model::load(to); }).find("the tokenizer has"), std::string::npos);
}

TEST(Model, DamageToAnyFileOfADirectoryIsFound) {
  const TemporaryDirectory directory("model_test");
  const std::filesystem::path to = directory.path();
  const std::unique_ptr<Tokenizer> tokenizer = train_tokenizer({.kind = "char"}, std::vector<std::string_view>{"abcdefghijkl"});
  ModelConfig config = config_of("lm-gate");
  ASSERT_EQ(tokenizer->vocabulary(), config.vocabulary);
  const Tensors tensors = tensors_of("lm-gate");
  std::vector<TensorToWrite> all;
  for (const auto& [name, one] : tensors) all.push_back({name, one.dtype, one.shape, one.bytes});
  save_model_config(config, to / "config.json");
  tokenizer->save(to);
  write_safetensors(to / "model.safetensors", all, seals_of(config, tokenizer->fingerprint()));
  EXPECT_NO_THROW(Model::load(to));

  const auto with_damage = [&](const std::string& file, const std::function<void(std::string&)>& damage) {
    const std::string before = read_file(to / file);
    std::string after = before;
    damage(after);
    directory.write(file, after);
    const std::string found = refusal<FormatError>([&] { (void)Model::load(to); });
    directory.write(file, before);
    return found;
  };
  // Any bit of the tensors; any letter of the vocabulary; any number of the configuration.
  const size_t size = std::filesystem::file_size(to / "model.safetensors");
  for (const size_t back : {size_t{1}, size_t{77}, size / 2}) {
    EXPECT_NE(with_damage("model.safetensors", [&](std::string& bytes) { bytes[size - back] ^= 4; }).find("the file is damaged"),
              std::string::npos);
  }
  EXPECT_NE(with_damage("tokenizer.json", [](std::string& text) { text[text.find("kl\"") + 1] = 'm'; }).find("tokenizer has"),
            std::string::npos);
  EXPECT_NE(with_damage("config.json", [](std::string& text) { text.replace(text.find("\"seed\": "), 9, "\"seed\": 1"); })
                .find("config.json has the checksum"),
            std::string::npos);
}

// A directory with a copy of a golden model and a vocabulary.
void copy_model(const std::string& name, const TemporaryDirectory& to) {
  for (const char* file : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(golden_directory() / name / file, to.path() / file);
  }
  to.write("tokenizer.json", R"({"kind": "char", "version": 1, "characters": "\n abcdefghi\u00e9"})");
}

TEST(Model, ChangedWeightsAreFoundBeforeASessionIsSaved) {
  const std::vector<int32_t> ids = {3, 5, 2, 7};
  for (const bool map : {true, false}) {
    const TemporaryDirectory to("model_test_changed");
    copy_model("lm-gate", to);
    const std::filesystem::path weights = to.path() / "model.safetensors";
    Session session(Model::load(to.path(), {.map = map}));
    session.prefill(ids);
    const std::vector<std::byte> before = session.to_bytes();  // the fingerprint is known now

    // Touched, and left as it was.
    std::filesystem::last_write_time(weights, std::filesystem::last_write_time(weights) + std::chrono::seconds(1));
    EXPECT_EQ(session.to_bytes(), before);
    std::fstream(weights, std::ios::in | std::ios::out | std::ios::binary).seekp(-4, std::ios::end).write("????", 4);
    std::filesystem::last_write_time(weights, std::filesystem::last_write_time(weights) + std::chrono::seconds(2));
    const std::string said = refusal<FormatError>([&] { session.save(to.path() / "session"); });
    if (map) {
      EXPECT_NE(said.find("model.safetensors: was changed while it was memory-mapped"), std::string::npos) << said;
      EXPECT_FALSE(std::filesystem::exists(to.path() / "session"));
      EXPECT_THROW(session.model().require_unchanged(), FormatError);
    } else {
      EXPECT_EQ(said, "accepted");
      EXPECT_EQ(session.to_bytes(), before);
    }
    std::filesystem::resize_file(weights, 100);
    if (map) {
      EXPECT_THROW((void)session.to_bytes(), FormatError);
    } else {
      EXPECT_EQ(session.to_bytes(), before);
    }
  }
}

TEST(Model, WeightsMayBeReplacedByRenaming) {
  const TemporaryDirectory to("model_test_renamed");
  copy_model("lm-gate", to);
  Session session(Model::load(to.path()));
  session.prefill(std::vector<int32_t>{3, 5});
  std::filesystem::rename(to.write("new", "another file"), to.path() / "model.safetensors");
  EXPECT_NO_THROW((void)session.to_bytes());
}

TEST(Model, SessionsThatAskForMuchMemoryAreRefusedWhenTheModelIsLoaded) {
  for (const std::string name : {"lm-hybrid", "lm-eva", "lm-lara"}) {
    ModelConfig config = config_of(name);
    for (Estimator& estimator : config.estimators) estimator.window = estimator.chunk = 1 << 20;
    const std::string said =
        refusal<FormatError>([&] { (void)Model::over(config, image_of(tensors_of(name)), nullptr, "image"); });
    EXPECT_NE(said.find("image: a new session of this model takes "), std::string::npos) << name << ": " << said;
    EXPECT_NE(said.find("expected at most 268,435,456"), std::string::npos) << name << ": " << said;
  }
  const TemporaryDirectory to("model_test_limit");
  copy_model("lm-eva", to);
  EXPECT_THROW((void)Model::load(to.path(), {.max_session_bytes = 100}), FormatError);
  EXPECT_NO_THROW((void)Model::load(to.path(), {.max_session_bytes = 10 << 20}));
}

TEST(Model, EstimatorsWhoseSettingsDoNotGoTogetherAreRefusedByFile) {
  ModelConfig config = config_of("lm-eva");
  for (Estimator& estimator : config.estimators) estimator.window = 1 << 20;  // chunks of a window are more than are kept
  const std::string said =
      refusal<FormatError>([&] { (void)Model::over(config, image_of(tensors_of("lm-eva")), nullptr, "image"); });
  EXPECT_NE(said.find("image: no session can be made with the estimators in config.json: "), std::string::npos) << said;
  EXPECT_NE(said.find("expected a multiple of"), std::string::npos) << said;
}

TEST(Model, SessionFilesAreNotReadBeforeTheirSizeFits) {
  const TemporaryDirectory to("model_test_sparse");
  for (const std::string name : {"lm-gate", "lm-eva", "lm-softmax"}) {
    const auto model = Model::over(config_of(name), image_of(tensors_of(name)), nullptr, "image");
    Session session(model);
    session.prefill(std::vector<int32_t>{3, 5, 2});
    std::vector<std::byte> bytes = session.to_bytes();
    // 40 GB by its header, a few kB on disk.
    const uint64_t payload = uint64_t{40'000'000'000};
    std::memcpy(bytes.data() + kSessionImage.payload_size_at(), &payload, sizeof(payload));
    const std::filesystem::path path =
        to.write("huge", {reinterpret_cast<const char*>(bytes.data()), kSessionImage.header_size()});
    std::filesystem::resize_file(path, kSessionImage.header_size() + payload);
    const std::string said = refusal<FormatError>([&] { (void)Session::restore(model, path); });
    EXPECT_NE(said.find("huge: has 40,000,000,056 bytes, expected at most "), std::string::npos) << said;
    const std::string shown = refusal<FormatError>([&] { (void)read_session_info(path); });
    EXPECT_NE(shown.find("the rest is a hole, not a session"), std::string::npos) << shown;
    // A position at which a cache of all keys would be as large.
    const int64_t position = 40'000'000;
    std::memcpy(bytes.data() + ImageFormat::kFieldsAt + 8, &position, sizeof(position));
    to.write("huge", {reinterpret_cast<const char*>(bytes.data()), kSessionImage.header_size()});
    std::filesystem::resize_file(path, kSessionImage.header_size() + payload);
    EXPECT_THROW((void)Session::restore(model, path), FormatError);
  }
}

TEST(Model, FingerprintsDifferWithAnyByteOfTheWeights) {
  Tensors tensors = tensors_of("lm-gate");
  const ModelConfig config = config_of("lm-gate");
  const uint64_t before = Model::over(config, image_of(tensors), nullptr, "image")->fingerprint();
  EXPECT_EQ(Model::over(config, image_of(tensors), nullptr, "elsewhere")->fingerprint(), before);
  tensors["embedding.weight"].bytes[5] ^= std::byte{1};
  EXPECT_NE(Model::over(config, image_of(tensors), nullptr, "image")->fingerprint(), before);
}

}  // namespace
}  // namespace raffia::internal
