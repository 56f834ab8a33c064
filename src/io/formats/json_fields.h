// Strict reading of JSON objects from untrusted files: every field is read by name, type and range. All throw FormatError, which
// names the file and the field.
//
//   JsonFields fields = JsonFields::parse(text, path.string());
//   config.width = fields.integer("width", 1, 65536);
//   fields.expect_no_more();
//
// Formats that can grow give a default to fields that may be missing, and ignore those that they do not know: they do without
// expect_no_more().
#ifndef RAFFIA_IO_FORMATS_JSON_FIELDS_H_
#define RAFFIA_IO_FORMATS_JSON_FIELDS_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace raffia::internal {

// Always use this to read untrusted JSON. Deep nesting would overflow the stack in recursive code and in the destructor of the
// tree. Throws FormatError, which begins with `where`, for text that is not JSON or nested deeper than kDeepestJson.
constexpr int kDeepestJson = 64;
nlohmann::json parse_json(std::string_view text, std::string_view where);
nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view where);

// JSON to print or store: in lines indented by `indent`, or in one line. Bytes of names and texts that are not UTF-8 cannot be in
// JSON strings: each becomes U+FFFD.
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

class JsonFields {
 public:
  // One object. Duplicate keys and nesting beyond a few levels are errors.
  static JsonFields parse(std::string_view text, std::string_view where);
  static JsonFields of(const nlohmann::ordered_json& tree, std::string_view where);  // that parse_ordered_json has read

  const std::string& where() const { return where_; }
  bool has(std::string_view name) const;
  bool has_value(std::string_view name);  // whether it exists and is not null; a null counts as read
  int64_t integer(std::string_view name, int64_t min, int64_t max);
  uint64_t unsigned_integer(std::string_view name);
  double number(std::string_view name, double min, double max);  // finite
  bool truth(std::string_view name);
  std::string string(std::string_view name);
  // The same; a missing field is `otherwise`.
  int64_t integer(std::string_view name, int64_t min, int64_t max, int64_t otherwise);
  uint64_t unsigned_integer(std::string_view name, uint64_t otherwise);
  double number(std::string_view name, double min, double max, double otherwise);

  std::vector<std::string> strings(std::string_view name);
  std::vector<double> numbers(std::string_view name);  // finite
  std::vector<int64_t> integers(std::string_view name, int64_t min, int64_t max);

  // Objects within the object; errors name their fields "outer.inner", or "outer[3].inner" in a list.
  JsonFields object(std::string_view name);
  std::vector<JsonFields> objects(std::string_view name);
  // A value of any type, for cases that the other functions do not cover.
  const nlohmann::json& value(std::string_view name) { return take(name); }

  void expect_no_more() const;
  // A file can list the names that its reader must understand, in the field kRequires. Throws if one of them is not known.
  static constexpr const char* kRequires = "requires";
  void require_known(std::span<const std::string> known);
  // Throws for a field that is not a known one but resembles it. Other unknown fields are ignored.
  void refuse_misspelled(std::span<const std::string> known) const;

  // Throws FormatError "<file>: field "name" <what>".
  [[noreturn]] void refuse(std::string_view name, std::string_view what) const;

 private:
  JsonFields(nlohmann::json object, std::string_view where, std::string prefix = "");
  const nlohmann::json& take(std::string_view name);
  template <typename Value, typename Fits>
  std::vector<Value> list(std::string_view name, std::string_view expected, const Fits& fits);

  std::shared_ptr<const nlohmann::json> object_;  // a pointer, so that this header does without the whole of nlohmann
  std::string where_, prefix_;
  std::set<std::string, std::less<>> taken_;
};

}  // namespace raffia::internal

#endif  // RAFFIA_IO_FORMATS_JSON_FIELDS_H_
