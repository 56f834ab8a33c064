#include "model/config_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/message.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kVersionField = "version";

// Defaults for keys of an estimator that the file does not have. Older files have no `mean`: their samples were drawn.
Estimator unnamed_keys() { return {.mean = false}; }

Json json_of(int64_t value) { return value; }
Json json_of(uint64_t value) { return value; }
Json json_of(double value) { return value; }
Json json_of(bool value) { return value; }
Json json_of(const Estimator& estimator) { return to_string(estimator, unnamed_keys()); }
Json json_of(const std::vector<Estimator>& estimators) {
  Json list = Json::array();
  for (const Estimator& estimator : estimators) list.push_back(json_of(estimator));
  return list;
}
template <typename Enum>
Json json_of(Enum value) {
  return name_of(value);
}

// The file and the field in front of what a parser says.
template <typename Parse>
auto parsed(const JsonFields& fields, std::string_view name, std::string_view problem, const Parse& parse) {
  try {
    return parse();
  } catch (const InvalidArgument& error) {
    fields.refuse(name, fmt::format("{}: {}", problem, without_origin(error.what())));
  }
}

Estimator estimator_of(const JsonFields& fields, std::string_view name, std::string_view text) {
  return parsed(fields, name, "is not an estimator", [text] { return parse_estimator(text, unnamed_keys()); });
}

// ModelConfig::check() checks the ranges; any value of the right type is accepted here.
void read_value(JsonFields& fields, std::string_view name, int64_t& value) { value = fields.integer(name, INT64_MIN, INT64_MAX); }
void read_value(JsonFields& fields, std::string_view name, uint64_t& value) { value = fields.unsigned_integer(name); }
void read_value(JsonFields& fields, std::string_view name, double& value) { value = fields.number(name, -1e300, 1e300); }
void read_value(JsonFields& fields, std::string_view name, bool& value) { value = fields.truth(name); }
void read_value(JsonFields& fields, std::string_view name, Estimator& value) {
  value = estimator_of(fields, name, fields.string(name));
}
void read_value(JsonFields& fields, std::string_view name, std::vector<Estimator>& value) {
  value.clear();
  for (const std::string& text : fields.strings(name)) value.push_back(estimator_of(fields, name, text));
}

Task parse_as(std::string_view text, Task /*type*/) { return parse_task(text); }
Positions parse_as(std::string_view text, Positions /*type*/) { return parse_positions(text); }
Norm parse_as(std::string_view text, Norm /*type*/) { return parse_norm(text); }
FeedForward parse_as(std::string_view text, FeedForward /*type*/) { return parse_feed_forward(text); }

template <typename Enum>
void read_value(JsonFields& fields, std::string_view name, Enum& value) {
  const std::string text = fields.string(name);
  value = parsed(fields, name, "is invalid", [&] { return parse_as(text, Enum()); });
}

std::string values_of(int64_t /*type*/) { return "integer"; }
std::string values_of(uint64_t /*type*/) { return "integer, 0 to 2^64 - 1"; }
std::string values_of(double /*type*/) { return "number"; }
std::string values_of(bool /*type*/) { return "`true` or `false`"; }
std::string values_of(const Estimator& /*type*/) { return "estimator"; }
std::string values_of(const std::vector<Estimator>& /*type*/) { return "list of estimators"; }
template <typename Enum>
std::string values_of(Enum /*type*/) {
  std::vector<std::string> names;
  for (auto value = Enum(); name_of(value) != "unknown"; value = static_cast<Enum>(static_cast<int>(value) + 1)) {
    names.push_back(fmt::format("`{}`", name_of(value)));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

template <auto kMember>
ConfigField field(std::string_view name) {
  return {
      .name = name,
      .values = values_of(ModelConfig().*kMember),
      .write = [](const ModelConfig& config) { return json_of(config.*kMember); },
      .read = [](JsonFields& fields, std::string_view own, ModelConfig& config) { read_value(fields, own, config.*kMember); }};
}

}  // namespace

std::span<const ConfigField> config_fields() {
  static const std::vector<ConfigField> fields = {
      field<&ModelConfig::task>("task"),
      field<&ModelConfig::vocabulary>("vocabulary"),
      field<&ModelConfig::width>("width"),
      field<&ModelConfig::heads>("heads"),
      field<&ModelConfig::kv_heads>("kv_heads"),
      field<&ModelConfig::layers>("layers"),
      field<&ModelConfig::ffn>("ffn"),
      field<&ModelConfig::norm>("norm"),
      field<&ModelConfig::norm_eps>("norm_eps"),
      field<&ModelConfig::feed_forward>("feed_forward"),
      field<&ModelConfig::bias>("bias"),
      field<&ModelConfig::tied>("tied"),
      field<&ModelConfig::estimators>("estimators"),
      field<&ModelConfig::cross>("cross"),
      field<&ModelConfig::positions>("positions"),
      field<&ModelConfig::max_length>("max_length"),
      field<&ModelConfig::rotary_base>("rotary_base"),
      field<&ModelConfig::conv>("conv"),
      field<&ModelConfig::head_norm>("head_norm"),
      field<&ModelConfig::learned_sigma>("learned_sigma"),
      field<&ModelConfig::pool>("pool"),
      field<&ModelConfig::span_min>("span_min"),
      field<&ModelConfig::span_max>("span_max"),
      field<&ModelConfig::dropout>("dropout"),
      field<&ModelConfig::classes>("classes"),
      field<&ModelConfig::pairs>("pairs"),
      field<&ModelConfig::image_size>("image_size"),
      field<&ModelConfig::channels>("channels"),
      field<&ModelConfig::patch>("patch"),
      field<&ModelConfig::seed>("seed"),
  };
  return fields;
}

bool differs_from_default(const ConfigField& field, const ModelConfig& config) {
  return field.write(config) != field.write(ModelConfig());
}

std::string config_text(const ModelConfig& config, std::span<const ConfigField> table) {
  Json json;
  json[kVersionField] = kConfigVersion;
  Json required = Json::array();
  for (const ConfigField& field : table) {
    if (field.is_required && differs_from_default(field, config)) required.push_back(field.name);
  }
  if (!required.empty()) json[JsonFields::kRequires] = required;
  for (const ConfigField& field : table) json[std::string(field.name)] = field.write(config);
  return json.dump(2) + "\n";
}

ModelConfig read_config(std::string_view text, std::string_view where, std::span<const ConfigField> table) {
  JsonFields fields = JsonFields::parse(text, where);
  std::vector<std::string> known = {kVersionField, JsonFields::kRequires};
  for (const ConfigField& field : table) known.emplace_back(field.name);
  const int64_t version = fields.has(kVersionField) ? fields.integer(kVersionField, 1, INT64_MAX) : 0;
  fields.require_known(known);
  // A newer version has fields that are unknown here. In other files they are notes, or misspelled.
  if (version <= kConfigVersion) fields.refuse_misspelled(known);
  ModelConfig config;
  for (const ConfigField& field : table) {
    if (fields.has(field.name)) field.read(fields, field.name, config);
  }
  config.check(where);
  return config;
}

std::string identity_text(const ModelConfig& config, std::span<const ConfigField> table) {
  // The fields of config.json in 0.1, in their order. The list never changes: a session file and the weights of a model contain
  // hashes of this text, and would be refused.
  constexpr std::string_view kFieldsOf01[] = {
      "task",        "vocabulary",   "width",      "heads",         "kv_heads",   "layers",   "ffn",       "norm",
      "norm_eps",    "feed_forward", "bias",       "tied",          "estimators", "cross",    "positions", "max_length",
      "rotary_base", "conv",         "head_norm",  "learned_sigma", "pool",       "span_min", "span_max",  "dropout",
      "classes",     "pairs",        "image_size", "channels",      "patch",      "seed"};
  Json json;
  for (const std::string_view name : kFieldsOf01) {
    const auto field = std::ranges::find(table, name, &ConfigField::name);
    json[std::string(name)] = field->write(config);
  }
  for (const ConfigField& field : table) {
    const bool is_newer = std::ranges::find(kFieldsOf01, field.name) == std::end(kFieldsOf01);
    if (is_newer && differs_from_default(field, config)) json[std::string(field.name)] = field.write(config);
  }
  return json.dump(2) + "\n";
}

std::string config_fields_in_markdown() {
  std::string text = "| field | value | default |\n|---|---|---|\n";
  for (const ConfigField& field : config_fields()) {
    text += fmt::format("| `{}` | {} | `{}` |\n", field.name, field.values, json_text(field.write(ModelConfig())));
  }
  return text;
}

}  // namespace raffia::internal
