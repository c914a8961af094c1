#include "lockstep/base/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>

namespace lockstep {
namespace {

using Steady = std::chrono::steady_clock;

constexpr size_t kMostOutput = 16 << 20;
constexpr int kPollMs = 50, kEndsMs = 2;  // once its output has ended, it ends soon
constexpr Seconds kDies{1};               // in the kernel it may take longer: then it is left to itself

Steady::time_point After(Seconds seconds) {
  return Steady::now() + std::chrono::duration_cast<Steady::duration>(std::chrono::duration<double>(seconds.value));
}

class Child {
 public:
  static absl::StatusOr<Child> Start(const std::vector<std::string>& argv);
  Child(Child&& other) noexcept
      : pid_(std::exchange(other.pid_, 0)), out_(std::move(other.out_)), err_(std::move(other.err_)) {}
  Child& operator=(Child&&) = delete;
  ~Child() { Kill(); }

  // False: `until` holds and it has not ended.
  bool Await(ChildEnd& end, const std::function<bool()>& until);

 private:
  Child(pid_t pid, Fd out, Fd err) : pid_(pid), out_(std::move(out)), err_(std::move(err)) {}
  bool Reaped(ChildEnd& end);
  void Kill();

  pid_t pid_;
  Fd out_, err_;
};

// What a spawned process has of ours: its output, and nothing of our signals.
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
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
};

absl::StatusOr<Child> Child::Start(const std::vector<std::string>& argv) {
  LS_ASSIGN_OR_RETURN(Pipe out, MakePipe("a pipe to " + argv[0]));
  LS_ASSIGN_OR_RETURN(Pipe err, MakePipe("a pipe to " + argv[0]));
  Settings settings;
  posix_spawn_file_actions_addopen(&settings.files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&settings.files, out.write.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&settings.files, err.write.get(), STDERR_FILENO);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&settings.attributes, &none);
  posix_spawnattr_setsigdefault(&settings.attributes, &all);
  posix_spawnattr_setpgroup(&settings.attributes, 0);
  posix_spawnattr_setflags(&settings.attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::vector<std::string> words = argv;
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  pid_t pid = 0;
  const int error =
      posix_spawnp(&pid, words[0].c_str(), &settings.files, &settings.attributes, pointers.data(), environ);
  if (error == ENOENT) return NotFound("there is no program {}", argv[0]);
  if (error != 0) return Errno(error, "{}", argv[0]);
  return Child(pid, std::move(out.read), std::move(err.read));
}

// Closes it at its end.
void Take(Fd& from, std::string& text) {
  std::array<char, 65536> buffer;
  const ssize_t size = read(from.get(), buffer.data(), buffer.size());
  if (size < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (size <= 0) return from.Close();
  text.append(buffer.data(), std::min(static_cast<size_t>(size), kMostOutput - text.size()));
}

bool Child::Reaped(ChildEnd& end) {
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
  pid_ = 0;
  if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
  if (WIFEXITED(status)) end.code = WEXITSTATUS(status);
  return true;
}

// Whoever it has started may keep its output open after its end.
bool Child::Await(ChildEnd& end, const std::function<bool()>& until) {
  while (!until()) {
    std::array<pollfd, 2> ends = {pollfd{out_.valid() ? out_.get() : -1, POLLIN, 0},
                                  pollfd{err_.valid() ? err_.get() : -1, POLLIN, 0}};
    const bool closed = !out_.valid() && !err_.valid();
    poll(ends.data(), ends.size(), closed ? kEndsMs : kPollMs);
    if (ends[0].revents != 0) Take(out_, end.out);
    if (ends[1].revents != 0) Take(err_, end.err);
    const bool quiet = ends[0].revents == 0 && ends[1].revents == 0;
    if ((closed || quiet) && Reaped(end)) return true;
  }
  return false;
}

void Child::Kill() {
  if (pid_ == 0) return;
  kill(-pid_, SIGKILL);
  ChildEnd end;
  for (const Steady::time_point given_up = After(kDies); Steady::now() < given_up; poll(nullptr, 0, 1))
    if (Reaped(end)) return;
}

}  // namespace

absl::StatusOr<ChildEnd> RunChild(const std::vector<std::string>& argv, Seconds at_most, const std::stop_token& stop) {
  LS_ASSIGN_OR_RETURN(Child child, Child::Start(argv));
  const Steady::time_point deadline = After(at_most);
  ChildEnd end;
  if (child.Await(end, [&] { return stop.stop_requested() || Steady::now() >= deadline; })) return end;
  if (stop.stop_requested()) return MakeError(absl::StatusCode::kCancelled, fmt::format("{} was stopped", argv[0]));
  return MakeError(absl::StatusCode::kDeadlineExceeded,
                   fmt::format("{} has not ended within {:g} s", argv[0], at_most.value));
}

}  // namespace lockstep
