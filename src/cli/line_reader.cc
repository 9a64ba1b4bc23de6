// The one door to the line editor.
#include "cli/line_reader.h"

#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cwchar>
#include <utility>

#include "cli/interrupt.h"

namespace smoe::cli {

namespace {

constexpr int kHistoryLineCount = 500;

// While nothing is typed, `meanwhile` goes on. False: an interrupt.
bool WaitForInput(const LineReader::Meanwhile& meanwhile) {
  constexpr int kWaitMs = 2;  // about what a read of an expert takes
  pollfd input = {STDIN_FILENO, POLLIN, 0};
  while (meanwhile && !InterruptGuard::Requested() && meanwhile()) {
    const int ready = poll(&input, 1, kWaitMs);
    if (ready > 0 || (ready < 0 && errno != EINTR)) break;
  }
  return !InterruptGuard::Requested();
}

// Reads one character; an interrupt ends the line, where the library's own reader would go on.
int ReadCharacter(EditLine* editor, wchar_t* out) {
  std::mbstate_t state = {};
  for (;;) {
    char byte = 0;
    const ssize_t got = read(STDIN_FILENO, &byte, 1);
    if (got < 0 && errno == EINTR && !InterruptGuard::Requested()) {
      el_set(editor, EL_REFRESH);
      continue;
    }
    if (got <= 0) return got < 0 ? -1 : 0;
    const size_t used = std::mbrtowc(out, &byte, 1, &state);
    if (used == static_cast<size_t>(-2)) continue;  // more bytes of this character come
    if (used == static_cast<size_t>(-1)) {
      state = {};  // no UTF-8: drop the byte
      continue;
    }
    return 1;
  }
}

}  // namespace

struct LineReader::Editor {
  EditLine* editor = nullptr;
  History* history = nullptr;
  std::string prompt;
  Meanwhile meanwhile;

  ~Editor() {
    if (editor != nullptr) el_end(editor);
    if (history != nullptr) history_end(history);
  }
  static char* Prompt(EditLine* line) {
    Editor* self = nullptr;
    el_get(line, EL_CLIENTDATA, &self);
    return self->prompt.data();
  }
  static int Character(EditLine* line, wchar_t* out) {
    Editor* self = nullptr;
    el_get(line, EL_CLIENTDATA, &self);
    return WaitForInput(self->meanwhile) ? ReadCharacter(line, out) : -1;
  }
};

LineReader::LineReader(Console& console, Meanwhile meanwhile) : console_(console) {
  if (!IsTerminal(console.in) || !IsTerminal(console.err)) return;
  std::setlocale(LC_CTYPE, "");
  auto made = std::make_unique<Editor>();
  made->meanwhile = std::move(meanwhile);
  made->editor = el_init("smoe", console.in, console.err, console.err);
  made->history = history_init();
  if (made->editor == nullptr || made->history == nullptr) return;
  HistEvent event;
  history(made->history, &event, H_SETSIZE, kHistoryLineCount);
  el_set(made->editor, EL_CLIENTDATA, made.get());
  el_set(made->editor, EL_PROMPT, Editor::Prompt);
  el_set(made->editor, EL_EDITOR, "emacs");
  el_set(made->editor, EL_HIST, ::history, made->history);
  el_set(made->editor, EL_GETCFN, Editor::Character);
  editor_ = std::move(made);
}

LineReader::~LineReader() = default;

LineReader::Outcome LineReader::Read(const std::string& prompt, std::string* line) {
  return editor_ != nullptr ? ReadEdited(prompt, line) : ReadPlain(line);
}

LineReader::Outcome LineReader::ReadEdited(const std::string& prompt, std::string* line) {
  editor_->prompt = prompt;
  int count = 0;
  const char* text = el_gets(editor_->editor, &count);
  if (InterruptGuard::Requested()) {
    InterruptGuard::Clear();
    el_set(editor_->editor, EL_UNBUFFERED, 0);
    return Outcome::kInterrupted;
  }
  if (text == nullptr || count <= 0) return Outcome::kEnd;
  line->assign(text);
  while (!line->empty() && line->back() == '\n') line->pop_back();
  HistEvent event;
  if (!line->empty()) history(editor_->history, &event, H_ENTER, line->c_str());
  return Outcome::kLine;
}

LineReader::Outcome LineReader::ReadPlain(std::string* line) {
  line->clear();
  for (;;) {
    const int c = std::fgetc(console_.in);
    if (c == EOF) {
      if (InterruptGuard::Requested()) {
        InterruptGuard::Clear();
        std::clearerr(console_.in);
        return Outcome::kInterrupted;
      }
      return line->empty() ? Outcome::kEnd : Outcome::kLine;
    }
    if (c == '\n') return Outcome::kLine;
    if (line->size() == kLineBytesMax) return Outcome::kTooLong;
    line->push_back(static_cast<char>(c));
  }
}

}  // namespace smoe::cli
