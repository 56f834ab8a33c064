// The commands of raffia-train. To add one: declare it here, list it in train_main.cc.
#ifndef RAFFIA_CLI_TRAIN_COMMANDS_H_
#define RAFFIA_CLI_TRAIN_COMMANDS_H_

#include "cli/shared/command.h"

namespace raffia::cli {

Run add_bench_train(CommandLine& command);
Run add_convert(CommandLine& command);
Run add_eval(CommandLine& command);
Run add_train_classify(CommandLine& command);
Run add_train_image(CommandLine& command);
Run add_train_lm(CommandLine& command);
Run add_train_recall(CommandLine& command);
Run add_train_translate(CommandLine& command);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_TRAIN_COMMANDS_H_
