#include "lockstep/drill/link_keeper.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "lockstep/drill/link_cut.h"

namespace lockstep::drill {
namespace {

// Whether this thread is in the network namespace that the kernel began with: settings that hold for the whole machine
// are to be seen in that one only. Where settings can't be seen at all, it may be.
bool IsMachinesNetwork() {
  return access("/proc/sys/net/core/somaxconn", F_OK) != 0 || access("/proc/sys/net/core/netdev_budget", F_OK) == 0;
}

absl::Status Enter(pid_t pid) {
  const std::string path = fmt::format("/proc/{}/ns/net", pid);
  const Fd network(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!network.valid() || setns(network.get(), CLONE_NEWNET) != 0) return Errno(errno, "entering {}", path);
  return absl::OkStatus();
}

// Not a whole machine: people and other jobs need it.
absl::StatusOr<LinkCut> CutOff(pid_t pid) {
  LS_RETURN_IF_ERROR(Enter(pid));
  if (IsMachinesNetwork())
    return FailedPrecondition(
        "process {} uses the network of the whole machine: only a node in a network namespace of its own is cut off",
        pid);
  LS_ASSIGN_OR_RETURN(LinkCut cut, LinkCut::Prepare());
  if (absl::Status done = cut.Cut(); !done.ok()) {
    (void)cut.Mend();
    return done;
  }
  return cut;
}

// One line; empty: all is well.
void Say(const absl::Status& status) {
  const std::string line = Message(status) + "\n";
  (void)!write(STDOUT_FILENO, line.data(), line.size());
}

void AwaitEndOfInput() {
  char ignored = 0;
  for (ssize_t got = 1; got > 0 || (got < 0 && errno == EINTR);) got = read(STDIN_FILENO, &ignored, 1);
}

}  // namespace

int LinkKeeperMain(pid_t pid) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_IGN);
  absl::StatusOr<LinkCut> cut = CutOff(pid);
  Say(cut.status());
  if (!cut.ok()) return 1;
  AwaitEndOfInput();
  const absl::Status mended = cut->Mend();
  Say(mended);
  return mended.ok() ? 0 : 1;
}

absl::StatusOr<std::unique_ptr<LinkKeeper>> LinkKeeper::Start(pid_t pid, const std::string& binary) {
  LS_ASSIGN_OR_RETURN(Pipe orders, MakePipe());
  LS_ASSIGN_OR_RETURN(Pipe answers, MakePipe());
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, orders.read.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, answers.write.get(), STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::string name = "lockstep", verb = "cut-link", number = std::to_string(pid);
  std::array<char*, 4> argv = {name.data(), verb.data(), number.data(), nullptr};
  pid_t keeper_pid = 0;
  const int error = posix_spawn(&keeper_pid, binary.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return Errno(error, "{} cut-link {}", binary, pid);
  answers.write.Close();
  std::unique_ptr<LinkKeeper> keeper(new LinkKeeper(keeper_pid, std::move(orders.write), std::move(answers.read)));
  LS_RETURN_IF_ERROR(keeper->Answer());
  return keeper;
}

LinkKeeper::~LinkKeeper() {
  if (orders_.valid()) (void)End();
}

absl::Status LinkKeeper::End() {
  orders_.Close();
  const absl::Status mended = Answer();
  waitpid(pid_, nullptr, 0);
  return mended;
}

absl::Status LinkKeeper::Answer() {
  std::string line;
  char letter = 0;
  while (true) {
    const ssize_t got = read(answers_.get(), &letter, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return DataLoss("process {}, which keeps the links, died: they may be down", pid_);
    if (letter == '\n') break;
    line += letter;
  }
  return line.empty() ? absl::OkStatus() : MakeError(absl::StatusCode::kFailedPrecondition, line);
}

}  // namespace lockstep::drill
