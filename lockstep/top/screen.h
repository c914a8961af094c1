// The terminal while `lockstep top` has it: the alternate screen, keys one by one, and frames of which only changed
// lines are written, all of them in one write, so that nothing flickers. The destructor gives the terminal back as it
// was.
#pragma once

#include <termios.h>

#include <string>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/top/frame.h"

namespace lockstep::top {

class Terminal {
 public:
  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  void Show(const std::vector<std::string>& lines);
  // The next Show writes every line.
  void Forget() { shown_.clear(); }
  // Gives the terminal back for a while, and takes it again.
  void Leave();
  void Enter();

 private:
  termios before_{};
  std::vector<std::string> shown_;
};

// Those that a terminal sends, and those that end a process: from now on they are read there.
Fd BlockedSignals();
// Of standard output; 24 x 80 where it has none.
Size TerminalSize();
// What turns the lines on the screen into the new ones.
std::string Difference(const std::vector<std::string>& shown, const std::vector<std::string>& lines);

}  // namespace lockstep::top
