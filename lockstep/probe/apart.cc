#include "lockstep/probe/apart.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/base/json_text.h"

namespace lockstep::probe {
namespace {

constexpr int kPollMs = 20;

[[noreturn]] void BeTheTest(int out, const std::function<std::vector<Measurement>()>& test) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  NodeReport report{.node = "child"};
  report.measurements = test();
  const std::string text = OneLine(ReportJson(report));
  for (size_t at = 0; at < text.size();) {
    const ssize_t wrote = write(out, text.data() + at, text.size() - at);
    if (wrote <= 0) break;
    at += static_cast<size_t>(wrote);
  }
  _exit(0);
}

// Reads to the end; false: time ran out or somebody stops us.
bool ReadAll(int in, const Budget& until, std::string& text) {
  while (!until.Over()) {
    pollfd ready{.fd = in, .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, kPollMs) <= 0) continue;
    char chunk[4096];
    const ssize_t got = read(in, chunk, sizeof chunk);
    if (got <= 0) return true;
    text.append(chunk, static_cast<size_t>(got));
  }
  return false;
}

std::vector<Measurement> Failed(const std::string& name, std::string why) {
  return {{.name = name, .unit = "errors", .ok = false, .text = std::move(why)}};
}

// A process that hangs in the kernel can't be killed; it is left behind, and dies when the kernel lets it.
std::string EndOf(pid_t child) {
  kill(child, SIGKILL);
  for (int looks = 0; looks < 10; ++looks, poll(nullptr, 0, kPollMs)) {
    if (waitpid(child, nullptr, WNOHANG) != 0) return "killed";
  }
  return "it hangs in the kernel and can't be killed";
}

}  // namespace

std::vector<Measurement> RunApart(const std::string& name, const Budget& budget, Seconds grace,
                                  const std::function<std::vector<Measurement>()>& test) {
  absl::StatusOr<Pipe> pipe = MakePipe("a pipe to the test " + name);
  if (!pipe.ok()) return Failed(name, Message(pipe.status()));
  const pid_t child = fork();
  if (child < 0) return Failed(name, Message(Errno(errno, "fork")));
  if (child == 0) BeTheTest(pipe->write.get(), test);
  pipe->write.Close();
  const Seconds limit = budget.Left() + grace;
  std::string text;
  if (!ReadAll(pipe->read.get(), budget.Of(limit), text)) {
    return Failed(name, fmt::format("no answer within {:.1f} s: {}", limit.value, EndOf(child)));
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) {
    return Failed(name, fmt::format("died of signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status))));
  }
  absl::StatusOr<std::vector<NodeReport>> reports = ParseReports(text, "the test " + name);
  if (!reports.ok()) return Failed(name, Message(reports.status()));
  return reports->empty() ? Failed(name, "said nothing") : std::move(reports->front().measurements);
}

}  // namespace lockstep::probe
