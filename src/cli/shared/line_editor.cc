#include "cli/shared/line_editor.h"

#include <unistd.h>

#include <iostream>
#include <utility>

#include "cli/shared/input.h"
#include "raffia/error.h"

#ifdef RAFFIA_HAS_LIBEDIT
#include <histedit.h>

#include <clocale>
#include <cstdio>
#include <cwchar>
#endif

namespace raffia::internal::cli {

class LineEditor::Source {
 public:
  virtual ~Source() = default;
  virtual Came next(std::string& line) = 0;
};

class LineEditor::PlainLines : public Source {
 public:
  PlainLines(std::string prompt, const Interrupts& interrupts) : interrupts_(interrupts) {
    if (input_.is_terminal()) prompt_ = std::move(prompt);
  }

  Came next(std::string& line) override {
    std::cout << prompt_ << std::flush;
    auto found = input_.line();
    if (!found) return interrupts_.signal() != 0 ? Came::signal : Came::end;
    line = std::move(*found);
    return Came::line;
  }

 private:
  Input input_;
  std::string prompt_;
  const Interrupts& interrupts_;
};

#ifdef RAFFIA_HAS_LIBEDIT

class LineEditor::EditedLines : public Source {
 public:
  EditedLines(std::string prompt, const Interrupts& interrupts)
      : prompt_(std::move(prompt)),
        interrupts_(interrupts),
        history_(history_init(), history_end),
        editor_(el_init("raffia", stdin, stdout, stderr), el_end) {
    if (history_ == nullptr || editor_ == nullptr) throw Error("libedit cannot be started");
    std::setlocale(LC_CTYPE, "");  // for multi-byte characters; UTF-8 is assumed if the locale is not set
    if (MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
    constexpr int kLines = 1000;
    HistEvent event;
    history(history_.get(), &event, H_SETSIZE, kLines);
    history(history_.get(), &event, H_SETUNIQUE, 1);
    el_set(editor_.get(), EL_CLIENTDATA, this);
    el_set(
        editor_.get(), EL_PROMPT, +[](EditLine* editor) { return owner(editor).prompt_.data(); });
    el_set(editor_.get(), EL_GETCFN, read_character);
    el_set(editor_.get(), EL_HIST, history, history_.get());
    el_set(editor_.get(), EL_EDITOR, "emacs");
    // A Ctrl-D typed while the model was writing arrives as a zero byte: the terminal mode of that time stored it as end of
    // input.
    el_set(editor_.get(), EL_BIND, "^@", "em-delete-or-list", nullptr);
    el_source(editor_.get(), nullptr);  // the user's ~/.editrc
  }

  Came next(std::string& line) override {
    // Before the prompt: libedit shows it in the old terminal mode, in which an early Ctrl-D would be lost.
    el_set(editor_.get(), EL_PREP_TERM, 1);
    int count = 0;
    const char* found = el_gets(editor_.get(), &count);
    if (found == nullptr || count <= 0) {
      std::cout << '\n' << std::flush;
      return interrupts_.signal() != 0 ? Came::signal : Came::end;
    }
    line = found;
    while (line.ends_with('\n') || line.ends_with('\r')) line.pop_back();
    HistEvent event;
    if (!line.empty()) history(history_.get(), &event, H_ENTER, line.c_str());
    return Came::line;
  }

 private:
  static EditedLines& owner(EditLine* editor) {
    void* data = nullptr;
    el_get(editor, EL_CLIENTDATA, &data);
    return *static_cast<EditedLines*>(data);
  }

  // Like libedit's own function, but a noted signal ends the line.
  static int read_character(EditLine*, wchar_t* character) {
    std::mbstate_t partial = {};
    while (true) {
      if (!await_input(STDIN_FILENO)) return -1;
      char byte = 0;
      const ssize_t n = ::read(STDIN_FILENO, &byte, 1);
      if (n <= 0) return static_cast<int>(n);
      const size_t size = std::mbrtowc(character, &byte, 1, &partial);
      if (size == 0 || size == 1) return 1;
      if (size == static_cast<size_t>(-1)) partial = {};  // not valid in this locale: skipped
    }
  }

  std::string prompt_;
  const Interrupts& interrupts_;
  std::unique_ptr<History, decltype(&history_end)> history_;
  std::unique_ptr<EditLine, decltype(&el_end)> editor_;
};

#endif

LineEditor::LineEditor(std::string prompt, const Interrupts& interrupts) {
#ifdef RAFFIA_HAS_LIBEDIT
  if (::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1) {
    source_ = std::make_unique<EditedLines>(std::move(prompt), interrupts);
    return;
  }
#endif
  source_ = std::make_unique<PlainLines>(std::move(prompt), interrupts);
}

LineEditor::~LineEditor() = default;

bool LineEditor::is_terminal() const { return ::isatty(STDIN_FILENO) == 1; }

LineEditor::Came LineEditor::next(std::string& line) { return source_->next(line); }

}  // namespace raffia::internal::cli
