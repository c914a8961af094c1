#include "lockstep/schedule/command.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include <algorithm>

namespace lockstep::schedule {
namespace {

constexpr size_t kMostComplaint = 300;

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// The first line that says something.
std::string FirstLine(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos) return "";
  const size_t end = text.find_first_of("\r\n", begin);
  return text.substr(begin, std::min(end == std::string::npos ? end : end - begin, kMostComplaint));
}

std::string Failure(const std::string& program, const ChildEnd& end) {
  const std::string how =
      end.signal != 0 ? fmt::format("killed by signal {}", end.signal) : fmt::format("exit status {}", end.code);
  const std::string line = FirstLine(end.err.empty() ? end.out : end.err);
  if (line.starts_with(program)) return line;
  return fmt::format("{}: {}", program, line.empty() ? how : line);
}

}  // namespace

absl::StatusOr<std::string> RunCommand(const std::vector<std::string>& arguments, const ChildOptions& options,
                                       const std::stop_token& stop) {
  LS_ASSIGN_OR_RETURN(ChildEnd end, RunChild(arguments, options, stop));
  if (end.signal != 0 || end.code != 0) return Unavailable("{}", Failure(arguments.front(), end));
  return std::move(end.out);
}

absl::Status Detach(const std::vector<std::string>& arguments) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    posix_spawn_file_actions_addopen(&actions, stream, "/dev/null", O_RDWR, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t all;
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
  pid_t pid = 0;
  std::vector<char*> argv = Pointers(arguments);
  const int error = posix_spawnp(&pid, argv.front(), &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? absl::OkStatus() : Errno(error, "{}", arguments.front());
}

}  // namespace lockstep::schedule
