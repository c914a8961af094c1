#include "lockstep/top/top.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "lockstep/agent/spec.h"
#include "lockstep/base/clock.h"
#include "lockstep/term/text.h"
#include "lockstep/top/channel.h"
#include "lockstep/top/frame.h"
#include "lockstep/top/keys.h"
#include "lockstep/top/screen.h"

namespace lockstep::top {
namespace {

constexpr Seconds kPeriod{0.5};
constexpr Seconds kSilence{3};  // of the watcher: then the picture is called old

std::string SocketOf(const Options& options) { return options.run_dir + "/" + agent::kControlSocket; }
Folding NodesOf(const Json& status) { return ByNode(status.value("ranks", Json::array())); }

class Top {
 public:
  explicit Top(const Options& options)
      : options_(options),
        status_(poller_, SocketOf(options), [this](Json answer) { TakeStatus(std::move(answer)); }),
        incidents_(poller_, SocketOf(options), [this](Json answer) { TakeIncidents(std::move(answer)); }),
        stacks_(poller_, SocketOf(options), [this](const Json& answer) { TakeStacks(answer); }),
        signals_(BlockedSignals()) {
    known_.status = Json::object();
    known_.incidents = Json::array();
    known_.folding = ByNode(Json::array());
  }
  void Run();

 private:
  void Refresh();
  void ReadJournal();
  void TakeStatus(Json answer);
  void TakeIncidents(Json answer);
  void TakeStacks(const Json& answer);
  void HearKeys();
  void HearSignals();
  void Suspend();
  void Obey(Key key);
  void Move(int by);
  void Page(int by);
  void Open();
  void Back();
  void NextFolding();
  void Paint();

  const Options& options_;
  SystemClock clock_;
  Poller poller_;
  Channel status_, incidents_, stacks_;
  Fd signals_;
  Terminal terminal_;
  Known known_;
  Look look_;
  Frame frame_;
  size_t folding_ = 0;  // 0: by node
  Nanos heard_;         // the newest answer
};

void Top::Run() {
  heard_ = clock_.Now();
  poller_.Watch(signals_.get(), [this] { HearSignals(); });
  poller_.Watch(STDIN_FILENO, [this] { HearKeys(); });
  Refresh();
  Paint();
  poller_.Run(kPeriod, [this] {
    Refresh();
    Paint();
  });
}

void Top::Refresh() {
  const bool watched = status_.Ask({{"op", "status"}}).ok() && incidents_.Ask({{"op", "incidents"}}).ok();
  if (!watched) return ReadJournal();
  const Seconds silence = ToSeconds(clock_.Now() - heard_);
  known_.trouble = silence > kSilence ? fmt::format("no answer from the watching process for {:.0f} s", silence.value)
                                      : known_.status.value("trouble", "");
}

void Top::ReadJournal() {
  absl::StatusOr<Json> status = options_.status(), incidents = options_.incidents();
  known_.trouble = status.ok() ? status->value("trouble", "") : Message(status.status());  // "": it has ended
  if (status.ok()) known_.status = *std::move(status);
  if (incidents.ok()) known_.incidents = *std::move(incidents);
  heard_ = clock_.Now();
}

void Top::TakeStatus(Json answer) {
  if (!answer.is_object() || answer.contains("error")) return;
  known_.status = std::move(answer);
  if (folding_ == 0) known_.folding = NodesOf(known_.status);
  known_.trouble = known_.status.value("trouble", "");
  heard_ = clock_.Now();
  Paint();
}

void Top::TakeIncidents(Json answer) {
  if (answer.is_array()) known_.incidents = std::move(answer);
}

void Top::TakeStacks(const Json& answer) {
  look_.stacks = answer.is_object() ? answer.value("stacks", answer.value("error", "no answer\n")) : "no answer\n";
  Paint();
}

void Top::HearKeys() {
  std::array<char, 256> bytes{};
  const ssize_t got = read(STDIN_FILENO, bytes.data(), bytes.size());
  if (got <= 0) return poller_.Stop();  // the terminal is gone
  for (const Key key : KeysIn({bytes.data(), static_cast<size_t>(got)})) Obey(key);
  Paint();
}

void Top::HearSignals() {
  signalfd_siginfo info{};
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGTSTP) {
      Suspend();
    } else if (info.ssi_signo == SIGWINCH) {
      terminal_.Forget();
    } else {
      poller_.Stop();
    }
  }
  Paint();
}

void Top::Suspend() {
  terminal_.Leave();
  kill(getpid(), SIGSTOP);
  terminal_.Enter();
}

void Top::Obey(Key key) {
  switch (key) {
    case Key::kUp:
      return Move(-1);
    case Key::kDown:
      return Move(1);
    case Key::kPageUp:
      return Page(-1);
    case Key::kPageDown:
      return Page(1);
    case Key::kOpen:
      return Open();
    case Key::kBack:
      return Back();
    case Key::kFold:
      return NextFolding();
    case Key::kIncidents:
      look_ = {.screen = Screen::kIncidents};
      return;
    case Key::kHelp:
      look_ = {.screen = Screen::kHelp};
      return;
    case Key::kQuit:
      return poller_.Stop();
  }
}

void Top::Move(int by) {
  size_t& where = look_.screen == Screen::kStacks ? look_.scroll : look_.selected;
  where = std::min(where, frame_.selectable > 0 ? frame_.selectable - 1 : 0);
  if (by < 0 && where > 0) --where;
  if (by > 0 && where + 1 < frame_.selectable) ++where;
}

void Top::Page(int by) {
  for (size_t i = 2; i < TerminalSize().rows; ++i) Move(by);
}

// A folded row: its ranks. A rank: its stacks.
void Top::Open() {
  if (look_.screen != Screen::kRanks || frame_.selected.ranks.empty()) return;
  if (frame_.selected.ranks.size() > 1) {
    look_ = {.within = frame_.selected.ranks, .within_name = frame_.selected.name};
    return;
  }
  look_.screen = Screen::kStacks;
  look_.scroll = 0;
  look_.stacks_of = frame_.selected.ranks.front();
  look_.stacks.clear();
  stacks_.Close();
  const absl::Status asked = stacks_.Ask({{"op", "stacks"}, {"rank", look_.stacks_of}});
  if (!asked.ok()) look_.stacks = Message(asked) + "\n";
}

// From stacks to the row from which they were opened; from anywhere else to all ranks.
void Top::Back() {
  if (look_.screen == Screen::kStacks) {
    look_.screen = Screen::kRanks;
  } else {
    look_ = {};
  }
}

void Top::NextFolding() {
  folding_ = (folding_ + 1) % (1 + options_.foldings.size());
  known_.folding = folding_ == 0 ? NodesOf(known_.status) : options_.foldings[folding_ - 1];
  look_ = {};
}

void Top::Paint() {
  frame_ = MakeFrame(known_, TerminalSize(), look_);
  terminal_.Show(frame_.lines);
}

}  // namespace

absl::Status PrintOnce(const Options& options) {
  LS_ASSIGN_OR_RETURN(Json status, options.status());
  absl::StatusOr<Json> incidents = options.incidents();
  Folding by_node = NodesOf(status);
  // That nobody watches, or such as that others know them.
  const std::string trouble = incidents.ok() ? status.value("trouble", "") : Message(incidents.status());
  const Known known{std::move(status), incidents.ok() ? *std::move(incidents) : Json::array(), std::move(by_node),
                    trouble};
  for (const std::string& line : MakeFrame(known, TerminalSize(), {}).lines)
    fmt::print("{}\n", isatty(STDOUT_FILENO) == 1 ? line : term::Colourless(line));
  return absl::OkStatus();
}

absl::Status Watch(const Options& options) {
  if (isatty(STDOUT_FILENO) != 1 || isatty(STDIN_FILENO) != 1) {
    return FailedPrecondition(
        "top needs a terminal on standard input and output; use --once for one frame, or lockstep status --json");
  }
  Top(options).Run();
  return absl::OkStatus();
}

}  // namespace lockstep::top
