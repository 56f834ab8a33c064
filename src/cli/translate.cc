// raffia translate: translates line by line.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/shared/command.h"
#include "cli/shared/flags.h"
#include "cli/shared/input.h"
#include "cli/shared/model_commands.h"
#include "cli/shared/progress.h"
#include "cli/shared/unknown_tokens.h"
#include "core/message.h"
#include "io/formats/json_fields.h"
#include "io/formats/text.h"
#include "raffia/error.h"
#include "raffia/model.h"

namespace raffia::internal::cli {
namespace {

struct TranslateFlags {
  ModelToRun model;
  TranslateOptions options;
  int64_t best = 0;  // 0: only the best, as text
  bool json = false;
};

void print(const std::string& source, const std::vector<Translation>& found, int64_t line, const TranslateFlags& flags,
           const Tokenizer& tokenizer) {
  const size_t count = std::min(static_cast<size_t>(std::max<int64_t>(flags.best, 1)), found.size());
  if (flags.json) {
    Json translations = Json::array();
    for (const Translation& each : std::span(found).first(count)) {
      translations.push_back({{"text", tokenizer.decode(each.ids)},
                              {"ids", each.ids},
                              {"log_probability", each.log_probability},
                              {"score", each.score}});
    }
    const Json json = {{"line", line}, {"source", source}, {"translations", translations}};
    std::cout << json_text(json) << '\n';
  } else if (flags.best > 0) {
    for (const Translation& each : std::span(found).first(count)) {
      std::cout << fmt::format("{}\t{:.4f}\t{}\n", line, each.score, tokenizer.decode(each.ids));
    }
  } else {
    std::cout << (found.empty() ? "" : tokenizer.decode(found[0].ids)) << '\n';
  }
  std::cout.flush();
}

void run(const TranslateFlags& flags) {
  if (flags.best > flags.options.beam) {
    throw UsageError(fmt::format("--n-best: {} is more than the {} hypotheses of --beam", flags.best, flags.options.beam));
  }
  const std::shared_ptr<const Model> model = load_model(flags.model, {Task::translate});
  const Tokenizer& tokenizer = model->tokenizer();
  Input input;
  // No progress bar if the text is printed on the same terminal.
  std::optional<Progress> progress;
  if (isatty(STDERR_FILENO) == 1 && isatty(STDOUT_FILENO) == 0) {
    progress.emplace(static_cast<double>(input.size().value_or(0)), kQuietAtFirst);
    progress->begin("translating");
  }
  UnknownTokens unknown(tokenizer);
  int64_t number = 0;
  while (const auto line = input.line()) {
    ++number;
    std::vector<Translation> found;
    try {
      const std::vector<int32_t> ids = tokenizer.encode(*line);
      unknown.add(*line, ids);
      if (!ids.empty()) found = translate(*model, ids, flags.options);
    } catch (const Error& error) {
      throw Error(fmt::format("line {}: {}", number, error.what()));
    }
    print(*line, found, number, flags, tokenizer);
    if (!std::cout) return;
    if (progress) {
      progress->describe("translating, " + counted(number, "line"));
      progress->advance(static_cast<double>(line->size() + 1));
    }
  }
  progress.reset();
  if (const std::string summary = unknown.summary(); !summary.empty()) say("{}", summary);
  model->require_unchanged();
}

}  // namespace

Run add_translate(CommandLine& command) {
  const auto flags = std::make_shared<TranslateFlags>();
  constexpr double kHighestPenalty = 100;
  add_model(command, flags->model);
  add_positive(command, "--beam", flags->options.beam, "Number of hypotheses; 1: greedy", TranslateOptions::kMaxBeam);
  add_number(command, "--length-penalty", flags->options.length_penalty, 0, kHighestPenalty,
             "Above 0: longer translations are preferred");
  add_positive(command, "--max-tokens,--most-tokens", flags->options.max_tokens,
               "Maximum length of a translation in tokens (default: twice the source, plus 16)");
  add_positive(command, "--n-best", flags->best,
               "Print the N best translations of each line: line number, score and text, separated by tabs");
  command.add_switch("--json", flags->json, "Print one JSON object per line");
  add_threads(command, flags->options.run.threads);
  return [flags] { run(*flags); };
}

}  // namespace raffia::internal::cli
