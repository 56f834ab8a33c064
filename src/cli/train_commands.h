// The commands of raffia-train. To add one: declare it here, list it in train_main.cc.
#ifndef RAFFIA_CLI_TRAIN_COMMANDS_H_
#define RAFFIA_CLI_TRAIN_COMMANDS_H_

#include "cli/command.h"

namespace raffia::cli {

Run add_bench_train(CLI::App& app);
Run add_convert(CLI::App& app);
Run add_eval(CLI::App& app);
Run add_train_classify(CLI::App& app);
Run add_train_image(CLI::App& app);
Run add_train_lm(CLI::App& app);
Run add_train_recall(CLI::App& app);
Run add_train_translate(CLI::App& app);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_TRAIN_COMMANDS_H_
