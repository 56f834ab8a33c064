// Lines typed by the user: with editing and history if stdin and stdout are a terminal and libedit was available at build time;
// otherwise read as they are.
#ifndef RAFFIA_CLI_SHARED_LINE_EDITOR_H_
#define RAFFIA_CLI_SHARED_LINE_EDITOR_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cli/shared/interrupt.h"

namespace raffia::internal::cli {

class LineEditor {
 public:
  enum class Came : uint8_t { line, end, signal };

  // The prompt is shown on terminals only. A signal noted by `interrupts` ends the line that is being typed.
  LineEditor(std::string prompt, const Interrupts& interrupts);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  Came next(std::string& line);  // the line has no line end
  bool is_terminal() const;      // stdin is a terminal

 private:
  class Source;
  class PlainLines;
  class EditedLines;
  std::unique_ptr<Source> source_;
};

}  // namespace raffia::internal::cli

#endif  // RAFFIA_CLI_SHARED_LINE_EDITOR_H_
