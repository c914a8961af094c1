#include "lockstep/top/screen.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/base/status.h"

namespace lockstep::top {
namespace {

constexpr int kPatienceMs = 1000;  // for a terminal that takes nothing, such as a stopped one

// Without auto-wrap a line that is wider than we think is cut and not continued below.
constexpr char kEnter[] = "\033[?1049h\033[?25l\033[?7l\033[2J";
constexpr char kLeave[] = "\033[?7h\033[?25h\033[?1049l";

bool IsReady() {
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  return poll(&out, 1, kPatienceMs) == 1;
}

// False: the terminal did not take it all, so what it shows is not known.
bool Write(std::string_view text) {
  while (!text.empty()) {
    if (!IsReady()) return false;
    const ssize_t wrote = write(STDOUT_FILENO, text.data(), text.size());
    if (wrote < 0 && errno != EINTR) return false;
    if (wrote > 0) text.remove_prefix(static_cast<size_t>(wrote));
  }
  return true;
}

}  // namespace

Terminal::Terminal() {
  tcgetattr(STDIN_FILENO, &before_);
  Enter();
}

Terminal::~Terminal() { Leave(); }

// Signals from the keyboard stay on: Ctrl-C and Ctrl-Z come as signals.
void Terminal::Enter() {
  termios mode = before_;
  mode.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  mode.c_cc[VMIN] = 1;
  mode.c_cc[VTIME] = 0;
  tcsetattr(STDIN_FILENO, TCSADRAIN, &mode);
  Write(kEnter);
  Forget();
}

void Terminal::Leave() {
  Write(kLeave);
  tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
}

void Terminal::Show(const std::vector<std::string>& lines) {
  shown_ = Write(Difference(shown_, lines)) ? lines : std::vector<std::string>();
}

std::string Difference(const std::vector<std::string>& shown, const std::vector<std::string>& lines) {
  std::string text;
  if (shown.size() != lines.size()) text = "\033[2J";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (shown.size() == lines.size() && shown[i] == lines[i]) continue;
    text += fmt::format("\033[{};1H{}\033[K", i + 1, lines[i]);
  }
  return text;
}

Fd BlockedSignals() {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH}) sigaddset(&mask, signal);
  sigprocmask(SIG_BLOCK, &mask, nullptr);
  return Fd(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
}

Size TerminalSize() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0) return {};
  return {size.ws_row, size.ws_col};
}

}  // namespace lockstep::top
