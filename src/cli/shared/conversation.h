// raffia generate --interactive: the user types a line, the model continues it.
#ifndef RAFFIA_CLI_SHARED_CONVERSATION_H_
#define RAFFIA_CLI_SHARED_CONVERSATION_H_

#include <memory>

#include "cli/shared/interrupt.h"
#include "raffia/session.h"

namespace raffia::internal::cli {

// Answers go to stdout, everything else to stderr. Ctrl-C stops an answer, Ctrl-D ends the conversation; commands begin with a
// slash. Returns at the end, also after SIGHUP or SIGTERM. `session_options` are used for sessions that are loaded.
void converse(Session& session, std::shared_ptr<const Model> model, const GenerateOptions& options,
              const SessionOptions& session_options, Interrupts& interrupts);

}  // namespace raffia::internal::cli

#endif  // RAFFIA_CLI_SHARED_CONVERSATION_H_
