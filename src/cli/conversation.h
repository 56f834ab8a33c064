// raffia generate --interactive: a person writes a line, the model writes on.
#ifndef RAFFIA_CLI_CONVERSATION_H_
#define RAFFIA_CLI_CONVERSATION_H_

#include <memory>

#include "cli/interrupt.h"
#include "raffia/session.h"

namespace raffia::cli {

// Answers go to stdout, all else to stderr. Ctrl-C ends an answer, Ctrl-D the conversation; commands begin with a slash. Returns
// when it is over, at SIGTERM too. `session_options` are those of sessions that are loaded.
void converse(Session& session, std::shared_ptr<const Model> model, const GenerateOptions& options,
              const SessionOptions& session_options, Interrupts& interrupts);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_CONVERSATION_H_
