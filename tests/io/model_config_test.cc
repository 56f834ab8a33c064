#include "raffia/model_config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/formats/text.h"
#include "model/config_fields.h"
#include "raffia/error.h"
#include "support/paths.h"
#include "support/refusal.h"
#include "support/temporary_directory.h"

namespace raffia::internal {
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

TEST(ModelConfig, MistypedFieldIsRefusedByName) {
  const std::string json = to_json(language_model());
  EXPECT_EQ(refusal_of(json), "accepted");
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

TEST(ModelConfig, FileBeginsWithItsVersion) {
  EXPECT_EQ(to_json(language_model()).rfind("{\n  \"version\": 1,\n  \"task\": \"lm\",", 0), 0U) << to_json(language_model());
}

TEST(ModelConfig, MissingFieldHasItsDefault) {
  const char* text = R"({"vocabulary": 260, "estimators": ["rfa_gate"]})";
  EXPECT_EQ(model_config_from_json(text, "config.json"),
            (ModelConfig{.vocabulary = 260, .estimators = {parse_estimator("rfa_gate")}}));
  // Fields whose default makes no model.
  EXPECT_EQ(refusal_of(R"({"estimators": ["rfa_gate"]})"), "config.json: field \"vocabulary\" is 0, expected 1 to 4194304");
  EXPECT_EQ(refusal_of(R"({"vocabulary": 260})"),
            "config.json: field \"estimators\" has 0 entries, expected 1 or one per layer (4)");
}

TEST(ModelConfig, FileWithoutVersionLoads) {
  const std::string json = to_json(unusual());
  EXPECT_EQ(model_config_from_json(with(json, "\"version\": 1,", ""), "config.json"), unusual());
  for (const char* version : {"0", "-1", "1.5", "\"1\"", "null"}) {
    EXPECT_EQ(refusal_of(with(json, "\"version\": 1,", fmt::format("\"version\": {},", version)))
                  .rfind("config.json: field \"version\" is ", 0),
              0U)
        << version;
  }
}

TEST(ModelConfig, UnknownFieldIsIgnored) {
  const std::string json = with(to_json(language_model()), R"("width": 64,)", R"("width": 64, "depth": 3, "notes": {"a": [1]},)");
  EXPECT_EQ(model_config_from_json(json, "config.json"), language_model());
}

TEST(ModelConfig, MisspelledFieldIsRefusedWithTheNameThatWasMeant) {
  const std::string json = to_json(language_model());
  for (const auto& [wrong, meant] : std::vector<std::pair<std::string, std::string>>{
           {"widht", "width"}, {"layer", "layers"}, {"kv-heads", "kv_heads"}, {"require", "requires"}, {"Version", "version"}}) {
    EXPECT_EQ(refusal_of(with(json, "{", fmt::format("{{\"{}\": 3,", wrong))),
              fmt::format("config.json: field \"{}\" is unknown: did you mean '{}'?", wrong, meant));
  }
}

TEST(ModelConfig, FieldsOfANewerVersionAreIgnoredUnlessTheFileRequiresThem) {
  // "norm_bias" resembles "norm_eps", but a newer version may have both.
  const std::string newer =
      with(to_json(language_model()), "\"version\": 1,", R"("version": 7, "requires": ["width"], "norm_bias": true,)");
  EXPECT_EQ(model_config_from_json(newer, "config.json"), language_model());
  for (const char* version : {"7", "1"}) {
    const std::string required = with(with(newer, R"(["width"])", R"(["width", "norm_bias"])"), "7", version);
    EXPECT_EQ(refusal_of(required),
              "config.json: field \"requires\" names \"norm_bias\", which this version does not know: a newer raffia is needed");
  }
  EXPECT_EQ(refusal_of(with(newer, R"(["width"])", R"("width")")),
            "config.json: field \"requires\" is a value of type string, expected a list of strings");
}

// The table with a field that a later version could have. It stands for `dropout`, which the table names twice then.
std::vector<ConfigField> table_with_a_new_field() {
  const std::span<const ConfigField> known = config_fields();
  std::vector<ConfigField> table(known.begin(), known.end());
  ConfigField added = *std::ranges::find(table, "dropout", &ConfigField::name);
  added.name = "noise_rate";
  added.is_required = true;
  table.push_back(added);
  return table;
}

TEST(ModelConfig, NewFieldIsRequiredOnlyWhereItDiffersFromItsDefault) {
  const std::vector<ConfigField> table = table_with_a_new_field();
  ModelConfig config = language_model();
  EXPECT_EQ(refusal_of(config_text(config, table)), "accepted");  // this version ignores the new field
  config.dropout = 0.5;
  EXPECT_EQ(read_config(config_text(config, table), "config.json", table), config);
  EXPECT_EQ(refusal_of(config_text(config, table)),
            "config.json: field \"requires\" names \"noise_rate\", which this version does not know: a newer raffia is needed");
}

TEST(ModelConfig, IdentityOfAnOldFileIsItsText) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(golden_directory().parent_path() / "compat" / "0.1")) {
    const std::filesystem::path file = entry.path() / "config.json";
    if (!std::filesystem::exists(file)) continue;
    EXPECT_EQ(identity_text(load_model_config(file)), read_file(file)) << file;
    ++count;
  }
  EXPECT_GT(count, 0);
}

TEST(ModelConfig, NewFieldIsPartOfTheIdentityOnlyWhereItDiffersFromItsDefault) {
  const std::vector<ConfigField> table = table_with_a_new_field();
  ModelConfig config = language_model();
  EXPECT_EQ(identity_text(config, table), identity_text(config));
  config.dropout = 0.5;
  EXPECT_EQ(identity_text(config, table), with(identity_text(config), "\"seed\": 1\n", "\"seed\": 1,\n  \"noise_rate\": 0.5\n"));
}

TEST(ModelConfig, DocumentationListsTheFields) {
  const std::string text = read_file(golden_directory().parent_path().parent_path() / "docs" / "model-format.md");
  EXPECT_NE(text.find("\n" + config_fields_in_markdown() + "\n"), std::string::npos) << "expected in docs/model-format.md:\n"
                                                                                     << config_fields_in_markdown();
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
}  // namespace raffia::internal
