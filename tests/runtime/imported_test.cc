// Models that come from elsewhere say what their own programs say: a small made-up one against a LLaMA in double that is written
// out below, and stories260K against ids that scripts/stories_reference.py found.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "io/formats/byte_source.h"
#include "io/formats/text.h"
#include "io/imports/hf.h"
#include "io/imports/imported_model.h"
#include "io/imports/llama2c.h"
#include "io/tokenizers/tokenizer_scored.h"
#include "raffia/session.h"
#include "runtime/prompt.h"
#include "support/temporary_directory.h"
#include "support/tiny_llama.h"
#include "support/tiny_vocabulary.h"

namespace raffia::internal {
namespace {

using Ids = std::vector<int32_t>;
using Vector = std::vector<double>;

// As llama2.c computes, over its own layout: pairs (2 i, 2 i + 1) of a head turn together.
class LlamaTwin {
 public:
  explicit LlamaTwin(const TinyLlama& model) : model_(model), keys_(static_cast<size_t>(model.layers)), values_(keys_) {}

  Vector logits(int32_t token) {
    const auto width = static_cast<size_t>(model_.width), head = static_cast<size_t>(model_.head());
    const std::vector<float>& embedding = model_.at("model.embed_tokens.weight").values;
    Vector x(embedding.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(token) * width),
             embedding.begin() + static_cast<ptrdiff_t>((static_cast<size_t>(token) + 1) * width));
    for (int32_t layer = 0; layer < model_.layers; ++layer) {
      const auto name = [layer](const char* part) { return fmt::format("model.layers.{}.{}.weight", layer, part); };
      auto& keys = keys_[static_cast<size_t>(layer)];
      auto& values = values_[static_cast<size_t>(layer)];
      const Vector normed = norm(x, name("input_layernorm"));
      const Vector q = turned(product(name("self_attn.q_proj"), normed), keys.size());
      keys.push_back(turned(product(name("self_attn.k_proj"), normed), keys.size()));
      values.push_back(product(name("self_attn.v_proj"), normed));
      Vector mixed(width);
      for (int32_t h = 0; h < model_.heads; ++h) {
        const size_t own = static_cast<size_t>(h) * head, shared = static_cast<size_t>(h * model_.kv_heads / model_.heads) * head;
        Vector weights;
        for (const Vector& key : keys) {
          double score = 0;
          for (size_t i = 0; i < head; ++i) score += q[own + i] * key[shared + i];
          weights.push_back(std::exp(score / std::sqrt(static_cast<double>(head))));
        }
        double sum = 0;
        for (const double weight : weights) sum += weight;
        for (size_t t = 0; t < weights.size(); ++t) {
          for (size_t i = 0; i < head; ++i) mixed[own + i] += weights[t] / sum * values[t][shared + i];
        }
      }
      add(x, product(name("self_attn.o_proj"), mixed));
      const Vector inner = norm(x, name("post_attention_layernorm"));
      Vector gate = product(name("mlp.gate_proj"), inner);
      const Vector up = product(name("mlp.up_proj"), inner);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
      add(x, product(name("mlp.down_proj"), gate));
    }
    return product(model_.tied ? "model.embed_tokens.weight" : "lm_head.weight", norm(x, "model.norm.weight"));
  }

 private:
  Vector product(const std::string& name, const Vector& x) const {
    const std::vector<float>& weight = model_.at(name).values;
    Vector y(weight.size() / x.size());
    for (size_t i = 0; i < weight.size(); ++i) y[i / x.size()] += weight[i] * x[i % x.size()];
    return y;
  }

  Vector norm(const Vector& x, const std::string& name) const {
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + 1e-5);
    Vector y;
    for (size_t i = 0; i < x.size(); ++i) y.push_back(x[i] * scale * model_.at(name).values[i]);
    return y;
  }

  Vector turned(Vector x, size_t position) const {
    const auto head = static_cast<size_t>(model_.head());
    for (size_t i = 0; i < x.size(); i += 2) {
      const double angle =
          static_cast<double>(position) * std::pow(10000.0, -static_cast<double>(i % head) / static_cast<double>(head));
      const double a = x[i], b = x[i + 1];
      x[i] = a * std::cos(angle) - b * std::sin(angle);
      x[i + 1] = a * std::sin(angle) + b * std::cos(angle);
    }
    return x;
  }

  static void add(Vector& x, const Vector& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  const TinyLlama& model_;
  std::vector<std::vector<Vector>> keys_, values_;
};

// Logits are sums of a few dozen products over two layers: a few dozen roundings of the largest logit, 2^-24 each.
void expect_twin(const std::filesystem::path& directory, const TinyLlama& tiny, double tolerance) {
  const auto model = Model::load(directory);
  Session session(model);
  LlamaTwin twin(tiny);
  const Ids ids = {1, 7, 200, 7, 258, 33, 90, 91, 5, 262, 0, 17};
  session.prefill(ids, [&](int64_t index, std::span<const float> logits) {
    const Vector expected = twin.logits(ids[static_cast<size_t>(index)]);
    double greatest = 0;
    for (const double logit : expected) greatest = std::max(greatest, std::abs(logit));
    ASSERT_EQ(logits.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(logits[i], expected[i], tolerance * greatest) << "token " << index << ", logit " << i;
    }
  });
}

TEST(ImportedModel, Llama2cGivesTheLogitsOfItsTwin) {
  for (const bool tied : {true, false}) {
    const TinyLlama tiny = TinyLlama::random(21, tied);
    const TemporaryDirectory directory("imported_test");
    const std::string bytes = tiny.llama2c(), pieces = tok_bin(scored_pieces({" ", "a", "b", "ab"}));
    const MemorySource source("model.bin", std::as_bytes(std::span(bytes)));
    const auto tokenizer = make_scored_tokenizer(parse_scored_pieces(std::as_bytes(std::span(pieces)), "tok.bin"));
    save_model(llama2c_model(source), tokenizer.get(), directory.path() / "model", {});
    expect_twin(directory.path() / "model", tiny, 1e-5);
  }
}

TEST(ImportedModel, HuggingFaceGivesTheLogitsOfItsTwin) {
  const TinyLlama tiny = TinyLlama::random(22, false);
  const TemporaryDirectory directory("imported_test");
  directory.write("config.json", tiny.hf_config().dump());
  directory.write("tokenizer.json", hf_byte_level({{"a", "b"}}).dump());
  tiny.write_hf_weights(directory.path(), "F32", 2);
  const HfModel hf = load_hf(directory.path());
  save_model(hf.model, hf.tokenizer.get(), directory.path() / "model", {});
  expect_twin(directory.path() / "model", tiny, 1e-5);
}

// The example at the top of raffia/model.h: the tokens are those that llama2.c reads, with begin and a space.
TEST(ImportedModel, ReadsTextAsItsOwnProgramDoes) {
  const TinyLlama tiny = TinyLlama::random(24);
  const TemporaryDirectory directory("imported_test");
  const std::string bytes = tiny.llama2c(), pieces = tok_bin(scored_pieces({" ", "a", "b", "ab"}));
  const MemorySource source("model.bin", std::as_bytes(std::span(bytes)));
  const auto tokenizer = make_scored_tokenizer(parse_scored_pieces(std::as_bytes(std::span(pieces)), "tok.bin"));
  save_model(llama2c_model(source), tokenizer.get(), directory.path() / "my-model", {});

  auto model = raffia::Model::load(directory.path() / "my-model");
  raffia::Session session(model);
  session.prefill("abc");
  EXPECT_EQ(Ids(session.recent().begin(), session.recent().end()), (Ids{1, 259, 262, 3 + 'c'}));
  raffia::Session prompted(model);
  runtime::Prompt prompt(prompted);
  for (const char* part : {"a", "bc"}) prompt.add(part);
  prompt.end();
  prompt.read();
  for (int i = 0; i < 100; ++i) session.step(session.sample());
  for (int i = 0; i < 100; ++i) prompted.step(prompted.sample());
  EXPECT_EQ(session.to_bytes(), prompted.to_bytes());
}

// Elements within half a step of 1 / 127 of the largest of a row: some hundredths of the largest logit after two layers.
TEST(ImportedModel, Int8StaysNearItsTwin) {
  const TinyLlama tiny = TinyLlama::random(23);
  const TemporaryDirectory directory("imported_test");
  const std::string bytes = tiny.llama2c(), pieces = tok_bin(scored_pieces({" ", "a", "b", "ab"}));
  const MemorySource source("model.bin", std::as_bytes(std::span(bytes)));
  const auto tokenizer = make_scored_tokenizer(parse_scored_pieces(std::as_bytes(std::span(pieces)), "tok.bin"));
  save_model(llama2c_model(source), tokenizer.get(), directory.path() / "model", {.type = WeightType::int8});
  EXPECT_EQ(Model::load(directory.path() / "model")->weight_type(), "int8");
  expect_twin(directory.path() / "model", tiny, 0.05);
}

// scripts/stories_reference.py stories260K.bin tok512.bin --prompt "Once upon a time" --tokens 128
// prints these ids; the best logit is 0.04 above the second at least.
TEST(ImportedModel, Stories260kContinuesAsPublished) {
  const char* data = std::getenv("RAFFIA_SHARED_DATA");
  if (data == nullptr) GTEST_SKIP() << "RAFFIA_SHARED_DATA is not set, expected the directory that contains stories260K";
  const Ids expected = {432, 383, 286, 261, 376, 298, 315, 421, 395, 317, 426, 338, 401, 396, 267, 337, 410, 408, 419,
                        292, 411, 322, 265, 282, 295, 433, 426, 385, 328, 432, 358, 394, 261, 370, 432, 352, 266, 268,
                        388, 426, 338, 391, 266, 267, 337, 335, 312, 432, 398, 312, 286, 267, 414, 270, 333, 415, 426,
                        13,  438, 310, 439, 419, 357, 336, 432, 313, 438, 310, 432, 278, 316, 439, 419, 298, 414, 267,
                        265, 282, 295, 433, 426, 436, 317, 286, 296, 418, 269, 279, 292, 416, 439, 413, 409, 416, 327,
                        263, 415, 294, 267, 400, 426, 338, 336, 432, 313, 442, 391, 267, 337, 335, 364, 420, 268, 388,
                        432, 398, 359, 280, 303, 439, 413, 272, 417, 264, 312, 426, 436, 13};
  const std::filesystem::path stories = std::filesystem::path(data) / "stories260K";
  const TemporaryDirectory directory("imported_test");
  const FileSource source(stories / "stories260K.bin");
  const std::string pieces = read_file(stories / "tok512.bin");
  const auto tokenizer = make_scored_tokenizer(parse_scored_pieces(std::as_bytes(std::span(pieces)), "tok512.bin"));
  save_model(llama2c_model(source), tokenizer.get(), directory.path() / "model", {});

  const auto model = Model::load(directory.path() / "model");
  Session session(model, {.sampling = {.temperature = 0}});
  session.prefill("Once upon a time");
  const Generated generated = generate(session, {.tokens = static_cast<int64_t>(expected.size())});
  EXPECT_EQ(generated.ids, expected);
  EXPECT_TRUE(generated.text.starts_with(", there was a little girl named Lily. She loved to play outside in the park."))
      << generated.text;
}

}  // namespace
}  // namespace raffia::internal
