// JSON objects of untrusted files, read strictly: every field is asked for by name, type and range, and what nobody asked for is
// an error. All throw FormatError that names the file and the field.
//
//   JsonFields fields = JsonFields::parse(text, path.string());
//   config.width = fields.integer("width", 1, 65536);
//   fields.expect_no_more();
#ifndef RAFFIA_IO_JSON_FIELDS_H_
#define RAFFIA_IO_JSON_FIELDS_H_

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace raffia {

class JsonFields {
 public:
  // One object; a key that comes twice and nesting beyond a few levels are refused.
  static JsonFields parse(std::string_view text, std::string_view where);

  bool has(std::string_view name) const;
  int64_t integer(std::string_view name, int64_t least, int64_t most);
  uint64_t unsigned_integer(std::string_view name);
  double number(std::string_view name, double least, double most);  // finite
  bool truth(std::string_view name);
  std::string string(std::string_view name);
  std::vector<std::string> strings(std::string_view name);

  void expect_no_more() const;

  // Throws FormatError "<file>: field "name" <what>".
  [[noreturn]] void refuse(std::string_view name, std::string_view what) const;

 private:
  JsonFields(nlohmann::json object, std::string_view where);
  const nlohmann::json& take(std::string_view name);

  nlohmann::json object_;
  std::string where_;
  std::set<std::string, std::less<>> taken_;
};

}  // namespace raffia

#endif  // RAFFIA_IO_JSON_FIELDS_H_
