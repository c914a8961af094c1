#include "lockstep/top/feed_top.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/poller.h"
#include "lockstep/term/text.h"
#include "lockstep/top/channel.h"
#include "lockstep/top/feed_frame.h"
#include "lockstep/top/keys.h"
#include "lockstep/top/screen.h"

namespace lockstep::top {
namespace {

constexpr Seconds kPeriod{1};
constexpr Seconds kSilence{3};  // of the service: then the picture is called old

class FeedTop {
 public:
  FeedTop(const FeedOptions& options, Json first)
      : options_(options),
        status_(poller_, options.socket, [this](Json answer) { TakeStatus(std::move(answer)); }),
        signals_(BlockedSignals()) {
    seen_.now = std::move(first);
    at_ = clock_.Now();
  }

  void Run() {
    poller_.Watch(signals_.get(), [this] { HearSignals(); });
    poller_.Watch(STDIN_FILENO, [this] { HearKeys(); });
    Paint();
    poller_.Run(kPeriod, [this] {
      Refresh();
      Paint();
    });
  }

 private:
  // The keys and signals of whoever looks don't wait for a service that stands still.
  void Refresh() {
    const Seconds silence = ToSeconds(clock_.Now() - at_);
    if (status_.waiting() && silence > kSilence)
      seen_.trouble = fmt::format("{}: no answer for {:.0f} s", options_.socket, silence.value);
    if (!status_.Ask({{"op", "status"}}).ok())
      seen_.trouble = fmt::format("{}: no data service answers", options_.socket);
  }

  void TakeStatus(Json status) {
    if (!status.is_object() || status.contains("error")) return;
    seen_.trouble.clear();
    const Nanos now = clock_.Now();
    const bool same = status.value("pid", 0) == seen_.now.value("pid", 0);  // else it was started anew
    seen_.before = same ? std::move(seen_.now) : Json();
    seen_.apart_s = ToSeconds(now - std::exchange(at_, now)).value;
    seen_.now = std::move(status);
    Paint();
  }

  void HearKeys() {
    std::array<char, 256> bytes{};
    const ssize_t got = read(STDIN_FILENO, bytes.data(), bytes.size());
    if (got <= 0) return poller_.Stop();  // the terminal is gone
    const std::vector<Key> keys = KeysIn({bytes.data(), static_cast<size_t>(got)});
    if (std::ranges::find(keys, Key::kQuit) != keys.end()) poller_.Stop();
  }

  void HearSignals() {
    signalfd_siginfo info{};
    while (read(signals_.get(), &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGTSTP) {
        terminal_.Leave();
        kill(getpid(), SIGSTOP);
        terminal_.Enter();
      } else if (info.ssi_signo == SIGWINCH) {
        terminal_.Forget();
      } else {
        poller_.Stop();
      }
    }
    Paint();
  }

  void Paint() { terminal_.Show(MakeFeedFrame(seen_, TerminalSize())); }

  const FeedOptions& options_;
  SystemClock clock_;
  Poller poller_;
  Channel status_;
  Fd signals_;
  Terminal terminal_;
  FeedSeen seen_;
  Nanos at_;  // when the newest status came
};

}  // namespace

absl::Status PrintFeedOnce(const FeedOptions& options) {
  FeedSeen seen;
  LS_ASSIGN_OR_RETURN(seen.now, options.status());
  for (const std::string& line : MakeFeedFrame(seen, TerminalSize()))
    fmt::print("{}\n", isatty(STDOUT_FILENO) == 1 ? line : term::Colourless(line));
  return absl::OkStatus();
}

absl::Status WatchFeed(const FeedOptions& options) {
  LS_ASSIGN_OR_RETURN(Json first, options.status());
  FeedTop(options, std::move(first)).Run();
  return absl::OkStatus();
}

}  // namespace lockstep::top
