// Lines that a person types: edited, with a history, where stdin and stdout are a terminal and libedit was there to build with;
// read as they are elsewhere.
#ifndef RAFFIA_CLI_LINE_EDITOR_H_
#define RAFFIA_CLI_LINE_EDITOR_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cli/interrupt.h"

namespace raffia::cli {

class LineEditor {
 public:
  enum class Came : uint8_t { line, end, signal };

  // The prompt appears on terminals only. A signal that `interrupts` notes ends the line that is being typed.
  LineEditor(std::string prompt, const Interrupts& interrupts);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  Came next(std::string& line);  // the line comes without its end
  bool is_terminal() const;      // someone is typing

 private:
  class Source;
  class PlainLines;
  class EditedLines;
  std::unique_ptr<Source> source_;
};

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_LINE_EDITOR_H_
