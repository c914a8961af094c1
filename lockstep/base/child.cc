#include "lockstep/base/child.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>

#include "lockstep/base/file.h"
#include "lockstep/base/memory_file.h"
#include "lockstep/base/steady.h"

namespace lockstep {
namespace {

using Steady = std::chrono::steady_clock;

constexpr size_t kMostOutput = 16 << 20;
constexpr int kPollMs = 50, kEndsMs = 2;  // once its output has ended, it ends soon
constexpr Seconds kDies{1};               // in the kernel it may take longer: then it is left to itself

Steady::time_point After(Seconds seconds) { return Steady::now() + SteadyDuration(seconds); }

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// What posix_spawn is told.
struct Settings {
  Settings() {
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
  }
  Settings(const Settings&) = delete;
  Settings& operator=(const Settings&) = delete;
  ~Settings() {
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
  }
  void SetSignals(bool takes_signals) {
    sigset_t mask, all;
    takes_signals ? sigemptyset(&mask) : sigfillset(&mask);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &mask);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
};

// Whatever happens, it is gone when this is.
class Child {
 public:
  Child() = default;
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ == 0) return;
    kill(-pid_, SIGKILL);
    ChildEnd end;
    for (const Steady::time_point given_up = After(kDies); Steady::now() < given_up; poll(nullptr, 0, 1))
      if (HasEnded(end)) return;
  }

  absl::Status Start(const std::vector<std::string>& argv, const ChildOptions& options) {
    LS_ASSIGN_OR_RETURN(const Fd in, MemoryFile("input", options.input));
    LS_ASSIGN_OR_RETURN(Pipe out, MakePipe("a pipe to " + argv[0]));
    LS_ASSIGN_OR_RETURN(Pipe err, MakePipe("a pipe to " + argv[0]));
    Settings settings;
    posix_spawn_file_actions_adddup2(&settings.files, in.get(), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&settings.files, out.write.get(), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&settings.files, err.write.get(), STDERR_FILENO);
    if (options.hands_over >= 0) posix_spawn_file_actions_adddup2(&settings.files, options.hands_over, kHandedOver);
    settings.SetSignals(options.takes_signals);
    std::vector<std::string> words = argv, variables = options.environment;
    const std::vector<char*> arguments = Pointers(words), environment = Pointers(variables);
    const int error = posix_spawnp(&pid_, words[0].c_str(), &settings.files, &settings.attributes, arguments.data(),
                                   variables.empty() ? environ : environment.data());
    if (error != 0) pid_ = 0;
    if (error == ENOENT) return NotFound("there is no program {}", argv[0]);
    if (error != 0) return Errno(error, "{}", argv[0]);
    out_ = std::move(out.read);
    err_ = std::move(err.read);
    return absl::OkStatus();
  }

  // Waits at most so long for more of what it says. False: there is none now.
  bool Read(int at_most_ms, ChildEnd& end) {
    std::array<pollfd, 2> streams = {{{out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}}};
    const bool silent = !out_.valid() && !err_.valid();
    if (poll(streams.data(), streams.size(), silent ? std::min(at_most_ms, kEndsMs) : at_most_ms) <= 0) return false;
    if (streams[0].revents != 0) Take(out_, end.out);
    if (streams[1].revents != 0) Take(err_, end.err);
    return true;
  }

  bool HasEnded(ChildEnd& end) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
    kill(-pid_, SIGKILL);  // what it left behind
    pid_ = 0;
    if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
    if (WIFEXITED(status)) end.code = WEXITSTATUS(status);
    return true;
  }

 private:
  // Closes it at its end.
  static void Take(Fd& from, std::string& text) {
    std::array<char, 65536> buffer;
    const ssize_t size = read(from.get(), buffer.data(), buffer.size());
    if (size < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (size <= 0) return from.Close();
    text.append(buffer.data(), std::min(static_cast<size_t>(size), kMostOutput - text.size()));
  }

  pid_t pid_ = 0;
  Fd out_, err_;
};

}  // namespace

absl::StatusOr<ChildEnd> RunChild(const std::vector<std::string>& argv, const ChildOptions& options,
                                  const std::stop_token& stop) {
  Child child;
  LS_RETURN_IF_ERROR(child.Start(argv, options));
  const Steady::time_point deadline = After(options.at_most);
  ChildEnd end;
  while (!child.HasEnded(end)) {
    if (stop.stop_requested()) return MakeError(absl::StatusCode::kCancelled, fmt::format("{} was stopped", argv[0]));
    if (Steady::now() >= deadline)
      return MakeError(absl::StatusCode::kDeadlineExceeded,
                       fmt::format("{} has not answered within {:g} s", argv[0], options.at_most.value));
    child.Read(kPollMs, end);
  }
  while (child.Read(0, end)) {
  }
  return end;
}

std::string HowItEnded(const std::string& who, const ChildEnd& end) {
  if (end.signal != 0) return fmt::format("{} died of signal {} ({})", who, end.signal, strsignal(end.signal));
  return fmt::format("{} ended with status {}: {}", who, end.code, end.err.substr(0, 200));
}

absl::StatusOr<std::string> OwnBinary() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Unavailable("/proc/self/exe: {}", error.message());
  // Replaced while we run, by an upgrade: the file that we are is still to be had, by this name.
  if (path.native().ends_with(" (deleted)") && !std::filesystem::exists(path)) return "/proc/self/exe";
  return path.string();
}

}  // namespace lockstep
