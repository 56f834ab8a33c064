#include "raffia/model_config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "raffia/error.h"
#include "support/refusal.h"
#include "support/temporary_directory.h"

namespace raffia {
namespace {

ModelConfig language_model() {
  return {.task = Task::lm, .vocabulary = 260, .width = 64, .heads = 4, .layers = 2, .estimators = {parse_estimator("rfa_gate")}};
}

// Every field away from its default.
ModelConfig unusual() {
  return {.task = Task::translate,
          .vocabulary = 4000,
          .width = 96,
          .heads = 6,
          .kv_heads = 2,
          .layers = 3,
          .ffn = 100,
          .norm = Norm::rms,
          .norm_eps = 1e-6,
          .feed_forward = FeedForward::swiglu,
          .bias = false,
          .tied = false,
          .estimators = {parse_estimator("rfa:samples=32"), parse_estimator("rfa_gate:seed=9"), parse_estimator("softmax")},
          .cross = parse_estimator("lara:samples=16"),
          .positions = Positions::learned,
          .max_length = 77,
          .rotary_base = 1e5,
          .conv = 4,
          .head_norm = true,
          .learned_sigma = false,
          .pool = 10,
          .span_min = 2.5,
          .span_max = 1000.0 / 3,
          .dropout = 0.1,
          .seed = UINT64_MAX};
}

std::string refusal_of(const std::string& json) {
  return refusal<FormatError>([&] { (void)model_config_from_json(json, "config.json"); });
}

std::string with(std::string json, const std::string& found, const std::string& instead) {
  const size_t at = json.find(found);
  EXPECT_NE(at, std::string::npos) << found;
  return json.replace(at, found.size(), instead);
}

TEST(ModelConfig, ComesBackFromItsFileAsItWas) {
  const TemporaryDirectory directory("model_config_test");
  const ModelConfig image = {.task = Task::image,
                             .width = 32,
                             .estimators = {parse_estimator("eva")},
                             .classes = 10,
                             .image_size = 28,
                             .channels = 1,
                             .patch = 7};
  const ModelConfig pairs = {.task = Task::classify, .vocabulary = 300, .estimators = {{}}, .classes = 2, .pairs = true};
  for (const ModelConfig& config : {language_model(), unusual(), image, pairs}) {
    save_model_config(config, directory.path() / "config.json");
    EXPECT_EQ(load_model_config(directory.path() / "config.json"), config) << to_json(config);
  }
}

TEST(ModelConfig, SamplesOfLaraAreDrawnWhereTheFileDoesNotSayHow) {
  // As written before files said it: such a model goes on answering as it did.
  ModelConfig config = {
      .task = Task::classify, .vocabulary = 300, .estimators = {parse_estimator("lara:mean=false")}, .classes = 2};
  const std::string json = to_json(config);
  EXPECT_NE(json.find("\"lara\""), std::string::npos) << json;
  EXPECT_EQ(model_config_from_json(json, "config.json").estimators[0].mean, false);
  for (const char* text : {"lara:mean=auto", "lara:mean=true"}) {
    config.estimators[0] = parse_estimator(text);
    EXPECT_NE(to_json(config).find(text), std::string::npos) << to_json(config);
    EXPECT_EQ(model_config_from_json(to_json(config), "config.json"), config);
    EXPECT_EQ(model_config_from_json(with(json, "\"lara\"", fmt::format("\"{}\"", text)), "config.json"), config);
  }
}

TEST(ModelConfig, FileWithUnknownMissingOrMistypedFieldIsRefusedByName) {
  const std::string json = to_json(language_model());
  EXPECT_EQ(refusal_of(json), "accepted");
  EXPECT_EQ(refusal_of(with(json, R"("width": 64,)", "")), "config.json: field \"width\" is missing");
  EXPECT_EQ(refusal_of(with(json, R"("width": 64,)", R"("width": 64, "depth": 3,)")), "config.json: field \"depth\" is unknown");
  EXPECT_EQ(refusal_of(with(json, R"("width": 64,)", R"("width": 64, "width": 64,)")),
            "config.json: field \"width\" appears twice");
  EXPECT_NE(refusal_of(with(json, R"("width": 64)", R"("width": 64.5)")).find("field \"width\" is 64.5, expected an integer"),
            std::string::npos);
  EXPECT_NE(refusal_of(with(json, R"("width": 64)", R"("width": "64")")).find("field \"width\" is a value of type string"),
            std::string::npos);
  EXPECT_NE(refusal_of(with(json, R"("head_norm": false)", R"("head_norm": 0)")).find("\"head_norm\" is 0, expected true or"),
            std::string::npos);
  EXPECT_NE(refusal_of(with(json, R"("task": "lm")", R"("task": "lms")"))
                .find("field \"task\" is invalid: \"lms\", expected one of lm, translate, classify, image"),
            std::string::npos);
  EXPECT_NE(
      refusal_of(with(json, "\"rfa_gate\"", "\"rfagate\"")).find("field \"estimators\" is not an estimator: kind is \"rfagate\""),
      std::string::npos);
  EXPECT_NE(refusal_of(with(json, "\"rfa_gate\"", "7")).find("field \"estimators\" has 7 at index 0"), std::string::npos);
  EXPECT_NE(refusal_of("{").find("config.json: is not valid JSON"), std::string::npos);
  EXPECT_NE(refusal_of("[1]").find("expected a JSON object"), std::string::npos);
  EXPECT_NE(refusal_of(std::string(100000, '[')).find("nested deeper"), std::string::npos);
  EXPECT_NE(refusal_of(with(json, R"("dropout": 0.0)", R"("dropout": 1e999)")).find("config.json: is not valid JSON"),
            std::string::npos);
}

TEST(ModelConfig, ValuesThatMakeNoModelAreRefusedByField) {
  using Change = void (*)(ModelConfig&);
  const std::vector<std::pair<std::string, Change>> changes = {
      {"width", [](ModelConfig& c) { c.width = 0; }},
      {"width", [](ModelConfig& c) { c.width = int64_t{1} << 40; }},
      {"heads", [](ModelConfig& c) { c.heads = 5; }},
      {"heads", [](ModelConfig& c) { c.heads = -4; }},
      {"kv_heads", [](ModelConfig& c) { c.kv_heads = 3; }},
      {"kv_heads", [](ModelConfig& c) { c.kv_heads = 8; }},
      {"norm_eps", [](ModelConfig& c) { c.norm_eps = 0; }},
      {"layers", [](ModelConfig& c) { c.layers = 0; }},
      {"layers", [](ModelConfig& c) { c.layers = 1 << 20; }},
      {"ffn", [](ModelConfig& c) { c.ffn = -1; }},
      {"vocabulary", [](ModelConfig& c) { c.vocabulary = 0; }},
      {"vocabulary", [](ModelConfig& c) { c.vocabulary = int64_t{1} << 33; }},
      {"estimators", [](ModelConfig& c) { c.estimators.clear(); }},
      {"estimators", [](ModelConfig& c) { c.estimators.resize(3); }},
      {"estimators", [](ModelConfig& c) { c.estimators[0].samples = int64_t{1} << 40; }},
      {"estimators", [](ModelConfig& c) { c.estimators[0].window = int64_t{1} << 40; }},
      {"estimators", [](ModelConfig& c) { c.estimators[0] = parse_estimator("lara:proposals=qk-mixed"); }},
      {"estimators", [](ModelConfig& c) { c.estimators[0] = parse_estimator("lara:streaming=false"); }},
      {"estimators", [](ModelConfig& c) { c.estimators[0] = parse_estimator("eva:samples=0"); }},
      {"cross", [](ModelConfig& c) { c.cross = parse_estimator("rfa_gate"); }},
      {"positions",
       [](ModelConfig& c) {
         c.positions = Positions::rotary;
         c.heads = 64;
       }},
      {"max_length", [](ModelConfig& c) { c.max_length = 100; }},
      {"max_length", [](ModelConfig& c) { c.positions = Positions::learned; }},
      {"rotary_base", [](ModelConfig& c) { c.rotary_base = 0; }},
      {"conv", [](ModelConfig& c) { c.conv = 1000; }},
      {"pool", [](ModelConfig& c) { c.pool = -1; }},
      {"span_min", [](ModelConfig& c) { c.span_min = 4; }},
      {"span_max", [](ModelConfig& c) { c.span_max = -1; }},
      {"dropout", [](ModelConfig& c) { c.dropout = 1; }},
      {"classes", [](ModelConfig& c) { c.classes = 2; }},
      {"pairs", [](ModelConfig& c) { c.pairs = true; }},
      {"image_size", [](ModelConfig& c) { c.image_size = 28; }},
      {"estimators",
       [](ModelConfig& c) {
         c.task = Task::classify;
         c.classes = 2;
       }},
  };
  for (const auto& [field, change] : changes) {
    ModelConfig config = language_model();
    change(config);
    const std::string said = refusal<FormatError>([&] { config.check("here"); });
    EXPECT_EQ(said.rfind("here: field \"" + field + "\" ", 0), 0U) << field << ": " << said;
  }
}

TEST(ModelConfig, ModelOfAbsurdSizeIsRefused) {
  ModelConfig config = language_model();
  config.width = 1 << 16;
  config.layers = 1024;
  EXPECT_NE(refusal<FormatError>([&] { config.check("here"); }).find("here: describes a model of about"), std::string::npos);
}

TEST(ModelConfig, EstimatorsAreOneForAllOrOnePerLayer) {
  ModelConfig config = language_model();
  EXPECT_EQ(config.estimator(1), parse_estimator("rfa_gate"));
  config.estimators.push_back(parse_estimator("softmax"));
  config.check("here");
  EXPECT_EQ(config.estimator(1), parse_estimator("softmax"));
}

}  // namespace
}  // namespace raffia
