// The fields of config.json, each described once: reader, writer, identity and documentation use this table.
//
// A new hyperparameter is a member of ModelConfig whose default means what older models do, and one row of the table. Increase
// kConfigVersion with it: readers of older versions then know that the field is new, not misspelled.
#ifndef RAFFIA_MODEL_CONFIG_FIELDS_H_
#define RAFFIA_MODEL_CONFIG_FIELDS_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "io/formats/json_fields.h"
#include "raffia/model_config.h"

namespace raffia::internal {

constexpr int64_t kConfigVersion = 1;  // files of raffia 0.1 have none, and count as 0

struct ConfigField {
  std::string_view name;
  std::string values;  // what it can be, for the documentation
  nlohmann::ordered_json (*write)(const ModelConfig& config);
  void (*read)(JsonFields& fields, std::string_view name, ModelConfig& config);
  // Readers that do not know the field must refuse a file in which it differs from its default. Fields of 0.1 do not need it.
  bool is_required = false;
};

std::span<const ConfigField> config_fields();

// Whether the field has another value than in ModelConfig().
bool differs_from_default(const ConfigField& field, const ModelConfig& config);

// config.json, over any table.
std::string config_text(const ModelConfig& config, std::span<const ConfigField> table);
ModelConfig read_config(std::string_view text, std::string_view where, std::span<const ConfigField> table);

// What fingerprints of models and checksums of configurations are computed from. Two configurations have the same text if they
// are equal. A model that raffia 0.1 could describe has the text that 0.1 wrote, so that sessions and weights of 0.1 still match;
// fields that were added later follow if they differ from their defaults.
std::string identity_text(const ModelConfig& config, std::span<const ConfigField> table = config_fields());

// The table of docs/model-format.md.
std::string config_fields_in_markdown();

}  // namespace raffia::internal

#endif  // RAFFIA_MODEL_CONFIG_FIELDS_H_
