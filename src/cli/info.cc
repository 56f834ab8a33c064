// raffia info: what was built and what it runs on.
#include <fmt/format.h>
#include <hwy/highway.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/machine.h"
#include "cli/shared/command.h"
#include "core/dispatch.h"
#include "io/formats/json_fields.h"
#include "raffia/isa.h"
#include "raffia/threads.h"
#include "raffia/version.h"

namespace raffia::internal::cli {
namespace {

std::string compiler() {
#ifdef __clang__
  return __VERSION__;
#else
  return fmt::format("GCC {}", __VERSION__);
#endif
}

nlohmann::ordered_json describe_machine() {
  std::vector<std::string_view> isas;
  for (const Isa isa : available_isas()) isas.push_back(name_of(isa));
  nlohmann::ordered_json cache_bytes = nlohmann::ordered_json::object();
  for (const bench::Cache& cache : bench::caches()) cache_bytes[cache.name] = cache.bytes;
  nlohmann::ordered_json exceptions = nlohmann::ordered_json::object();
  for (const IsaException& exception : isa_exceptions()) exceptions[std::string(exception.op)] = name_of(exception.isa);
  return {
      {"version", raffia::version()},
      {"isa", name_of(active_isa())},
      {"isa_exceptions", exceptions},
      {"isas", isas},
      {"threads", default_executor().concurrency()},
      {"cpu", bench::cpu_name()},
      {"cache_bytes", cache_bytes},
      {"compiler", compiler()},
      {"highway", fmt::format("{}.{}.{}", HWY_MAJOR, HWY_MINOR, HWY_PATCH)},
      {"os", bench::os_name()},
  };
}

void print_text(const nlohmann::ordered_json& info) {
  std::vector<std::string> cache_sizes;
  for (const auto& [name, bytes] : info["cache_bytes"].items()) {
    cache_sizes.push_back(fmt::format("{} {} KiB", name, bytes.get<int64_t>() / 1024));
  }
  std::string isa = info["isa"];
  for (const auto& [op, narrower] : info["isa_exceptions"].items())
    isa += fmt::format(", {}: {}", op, narrower.get<std::string>());
  const std::vector<std::pair<const char*, std::string>> lines = {
      {"raffia", info["version"]},
      {"ISA", fmt::format("{} (available: {})", isa, fmt::join(info["isas"].get<std::vector<std::string>>(), ", "))},
      {"threads", fmt::format("{}", info["threads"].get<int>())},
      {"CPU", info["cpu"]},
      {"caches", fmt::format("{}", fmt::join(cache_sizes, ", "))},
      {"compiler", info["compiler"]},
      {"Highway", info["highway"]},
      {"OS", info["os"]},
  };
  for (const auto& [name, value] : lines) std::cout << fmt::format("{:<9} {}\n", name, value);
}

}  // namespace

Run add_info(CommandLine& command) {
  const auto json = std::make_shared<bool>(false);
  command.add_switch("--json", *json, "Print JSON");
  return [json] {
    const nlohmann::ordered_json info = describe_machine();
    if (*json) {
      std::cout << json_text(info, 2) << '\n';
    } else {
      print_text(info);
    }
  };
}

}  // namespace raffia::internal::cli
