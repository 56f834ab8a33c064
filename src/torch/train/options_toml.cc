// Options from a TOML file.
#include <fmt/format.h>
#include <toml++/toml.h>

#include <string>

#include "raffia/error.h"
#include "torch/train/options.h"

namespace raffia::internal::train {
namespace {

std::string place(const std::filesystem::path& path, const toml::source_region& source) {
  return fmt::format("{}:{}", path.string(), source.begin.line);
}

// As the text of a flag; nullopt for tables and arrays.
std::optional<std::string> text_of(const toml::node& node) {
  if (const auto text = node.value_exact<std::string>()) return *text;
  if (const auto integer = node.value_exact<int64_t>()) return fmt::format("{}", *integer);
  if (const auto number = node.value_exact<double>()) return fmt::format("{}", *number);
  if (const auto truth = node.value_exact<bool>()) return *truth ? "true" : "false";
  return std::nullopt;
}

void read_table(TrainOptions& options, const toml::table& table, const std::filesystem::path& path) {
  for (const auto& [key, node] : table) {
    if (const toml::table* inner = node.as_table()) {
      read_table(options, *inner, path);
      continue;
    }
    std::string name(key.str());
    for (char& c : name) c = c == '_' ? '-' : c;
    const OptionInfo* info = find_option(options.kind, name);
    if (info == nullptr) {
      throw InvalidArgument(fmt::format("{}: '{}' is not an option of raffia train {}; see raffia train {} --help",
                                        place(path, key.source()), key.str(), name_of(options.kind), name_of(options.kind)));
    }
    try {
      const auto text = text_of(node);
      if (!text) throw InvalidArgument("is an array or a date, expected one value");
      set_from_text(options, *info, *text);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format("{}: {}: {}", place(path, node.source()), key.str(), error.what()));
    }
  }
}

}  // namespace

void read_toml(TrainOptions& options, const std::filesystem::path& path) {
  toml::table table;
  try {
    table = toml::parse_file(path.string());
  } catch (const toml::parse_error& error) {
    if (error.source().begin.line == 0) throw IoError(fmt::format("{}: {}", path.string(), error.description()));
    throw FormatError(fmt::format("{}: {}", place(path, error.source()), error.description()));
  }
  read_table(options, table, path);
}

}  // namespace raffia::internal::train
