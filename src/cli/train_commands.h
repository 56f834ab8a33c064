// The commands of raffia-train. To add one: declare it here, list it in train_main.cc.
#ifndef RAFFIA_CLI_TRAIN_COMMANDS_H_
#define RAFFIA_CLI_TRAIN_COMMANDS_H_

#include "cli/command.h"

namespace raffia::cli {

Run add_train_lm(CLI::App& app);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_TRAIN_COMMANDS_H_
