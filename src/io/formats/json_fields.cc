#include "io/formats/json_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/message.h"
#include "core/suggest.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

using Json = nlohmann::json;

constexpr int kDeepest = 8;

std::string describe(const Json& value) {
  if (value.is_array() || value.is_object() || value.is_string()) return fmt::format("a value of type {}", value.type_name());
  return value.dump();
}

bool is_integer_within(const Json& value, int64_t min, int64_t max) {
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX})) return false;
  return value.get<int64_t>() >= min && value.get<int64_t>() <= max;
}

// Sees keys that come twice, of which a tree would keep the last.
class StrictKeys {
 public:
  explicit StrictKeys(std::string_view where) : where_(where) {}

  void operator()(Json::parse_event_t event, const Json& value) {
    if (event == Json::parse_event_t::object_start) keys_.emplace_back();
    if (event == Json::parse_event_t::object_end) keys_.pop_back();
    if (event == Json::parse_event_t::key && !keys_.back().insert(value.get<std::string>()).second) {
      throw FormatError(fmt::format("{}: field {} appears twice", where_, value.dump(-1, ' ', true)));
    }
  }

 private:
  std::string_view where_;
  std::vector<std::set<std::string>> keys_;
};

// `seen` is called for every event; deep nesting is an error before anything of it is built.
template <typename Tree, typename Seen>
Tree parse_tree(std::string_view text, std::string_view where, int deepest, Seen seen) {
  try {
    return Tree::parse(text, [&](int depth, typename Tree::parse_event_t event, Tree& value) {
      if (depth > deepest) throw FormatError(fmt::format("{}: nested deeper than {} levels", where, deepest));
      seen(event, value);
      return true;
    });
  } catch (const typename Tree::exception& error) {
    throw FormatError(fmt::format("{}: is not valid JSON: {}", where, without_origin(error.what())));
  }
}

Json object_of(Json value, std::string_view where) {
  if (!value.is_object()) throw FormatError(fmt::format("{}: is {}, expected a JSON object", where, describe(value)));
  return value;
}

constexpr auto kNobodyListens = [](const auto&, const auto&) {};

}  // namespace

Json parse_json(std::string_view text, std::string_view where) {
  return parse_tree<Json>(text, where, kDeepestJson, kNobodyListens);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view where) {
  return parse_tree<nlohmann::ordered_json>(text, where, kDeepestJson, kNobodyListens);
}

std::string json_text(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

JsonFields::JsonFields(Json object, std::string_view where, std::string prefix)
    : object_(std::make_shared<const Json>(std::move(object))), where_(where), prefix_(std::move(prefix)) {}

JsonFields JsonFields::parse(std::string_view text, std::string_view where) {
  return JsonFields(object_of(parse_tree<Json>(text, where, kDeepest, StrictKeys(where)), where), where);
}

JsonFields JsonFields::of(const nlohmann::ordered_json& tree, std::string_view where) {
  return JsonFields(object_of(tree, where), where);
}

bool JsonFields::has(std::string_view name) const { return object_->contains(std::string(name)); }

bool JsonFields::has_value(std::string_view name) { return has(name) && !take(name).is_null(); }

void JsonFields::refuse(std::string_view name, std::string_view what) const {
  throw FormatError(fmt::format("{}: field \"{}{}\" {}", where_, prefix_, name, what));
}

const Json& JsonFields::take(std::string_view name) {
  const auto found = object_->find(std::string(name));
  if (found == object_->end()) refuse(name, "is missing");
  taken_.emplace(name);
  return *found;
}

int64_t JsonFields::integer(std::string_view name, int64_t min, int64_t max) {
  const Json& value = take(name);
  if (!is_integer_within(value, min, max)) {
    refuse(name, fmt::format("is {}, expected an integer from {} to {}", describe(value), min, max));
  }
  return value.get<int64_t>();
}

uint64_t JsonFields::unsigned_integer(std::string_view name) {
  const Json& value = take(name);
  if (!value.is_number_unsigned()) refuse(name, fmt::format("is {}, expected an integer from 0 to 2^64 - 1", describe(value)));
  return value.get<uint64_t>();
}

double JsonFields::number(std::string_view name, double min, double max) {
  const Json& value = take(name);
  if (!value.is_number() || !(value.get<double>() >= min && value.get<double>() <= max)) {
    refuse(name, fmt::format("is {}, expected a number from {} to {}", describe(value), min, max));
  }
  return value.get<double>();
}

bool JsonFields::truth(std::string_view name) {
  const Json& value = take(name);
  if (!value.is_boolean()) refuse(name, fmt::format("is {}, expected true or false", describe(value)));
  return value.get<bool>();
}

std::string JsonFields::string(std::string_view name) {
  const Json& value = take(name);
  if (!value.is_string()) refuse(name, fmt::format("is {}, expected a string", describe(value)));
  return value.get<std::string>();
}

int64_t JsonFields::integer(std::string_view name, int64_t min, int64_t max, int64_t otherwise) {
  return has(name) ? integer(name, min, max) : otherwise;
}

uint64_t JsonFields::unsigned_integer(std::string_view name, uint64_t otherwise) {
  return has(name) ? unsigned_integer(name) : otherwise;
}

double JsonFields::number(std::string_view name, double min, double max, double otherwise) {
  return has(name) ? number(name, min, max) : otherwise;
}

template <typename Value, typename Fits>
std::vector<Value> JsonFields::list(std::string_view name, std::string_view expected, const Fits& fits) {
  const Json& value = take(name);
  if (!value.is_array()) refuse(name, fmt::format("is {}, expected a list of {}", describe(value), expected));
  std::vector<Value> result;
  result.reserve(value.size());
  for (const Json& entry : value) {
    if (!fits(entry)) refuse(name, fmt::format("has {} at index {}, expected {}", describe(entry), result.size(), expected));
    result.push_back(entry.get<Value>());
  }
  return result;
}

std::vector<std::string> JsonFields::strings(std::string_view name) {
  return list<std::string>(name, "strings", [](const Json& entry) { return entry.is_string(); });
}

std::vector<double> JsonFields::numbers(std::string_view name) {
  return list<double>(name, "finite numbers",
                      [](const Json& entry) { return entry.is_number() && std::isfinite(entry.get<double>()); });
}

std::vector<int64_t> JsonFields::integers(std::string_view name, int64_t min, int64_t max) {
  return list<int64_t>(name, fmt::format("integers from {} to {}", min, max),
                       [min, max](const Json& entry) { return is_integer_within(entry, min, max); });
}

JsonFields JsonFields::object(std::string_view name) {
  const Json& value = take(name);
  if (!value.is_object()) refuse(name, fmt::format("is {}, expected an object", describe(value)));
  return JsonFields(value, where_, fmt::format("{}{}.", prefix_, name));
}

std::vector<JsonFields> JsonFields::objects(std::string_view name) {
  std::vector<JsonFields> result;
  for (Json& entry : list<Json>(name, "objects", [](const Json& entry) { return entry.is_object(); })) {
    result.push_back(JsonFields(std::move(entry), where_, fmt::format("{}{}[{}].", prefix_, name, result.size())));
  }
  return result;
}

void JsonFields::expect_no_more() const {
  for (const auto& [name, value] : object_->items()) {
    if (!taken_.contains(name)) {
      throw FormatError(fmt::format("{}: field {} is unknown", where_, Json(prefix_ + name).dump(-1, ' ', true)));
    }
  }
}

void JsonFields::require_known(std::span<const std::string> known) {
  if (!has(kRequires)) return;
  for (const std::string& name : strings(kRequires)) {
    if (std::ranges::find(known, name) != known.end()) continue;
    refuse(kRequires,
           fmt::format("names {}, which this version does not know: a newer raffia is needed", Json(name).dump(-1, ' ', true)));
  }
}

void JsonFields::refuse_misspelled(std::span<const std::string> known) const {
  for (const auto& [name, value] : object_->items()) {
    if (std::ranges::find(known, name) != known.end()) continue;
    if (const std::string meant = suggestion(name, known); !meant.empty()) {
      throw FormatError(fmt::format("{}: field {} is unknown{}", where_, Json(prefix_ + name).dump(-1, ' ', true), meant));
    }
  }
}

}  // namespace raffia::internal
