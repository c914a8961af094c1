#include "lockstep/drill/process.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace lockstep::drill {
namespace {

// The text behind "KEY:" in /proc/PID/status; empty when the process is gone.
std::string StatusField(pid_t pid, const std::string& key) {
  const absl::StatusOr<std::string> status = ReadFile(fmt::format("/proc/{}/status", pid));
  if (!status.ok()) return "";
  const size_t at = status->find("\n" + key + ":");
  if (at == std::string::npos) return "";
  const size_t begin = at + key.size() + 2;
  return status->substr(begin, status->find('\n', begin) - begin);
}

}  // namespace

absl::StatusOr<Process> Process::Open(pid_t pid) {
  Fd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!fd.valid()) return Errno(errno, "process {}", pid);
  return Process(pid, std::move(fd));
}

bool Process::Alive() const {
  pollfd ended{fd_.get(), POLLIN, 0};
  return poll(&ended, 1, 0) == 0;
}

absl::Status Process::Signal(int signal) const {
  if (syscall(SYS_pidfd_send_signal, fd_.get(), signal, nullptr, 0) == 0) return absl::OkStatus();
  return Errno(errno, "signal {} to process {}", signal, pid_);
}

bool Process::Handles(int signal) const {
  const uint64_t mask = std::strtoull(StatusField(pid_, "SigCgt").c_str(), nullptr, 16);
  return (mask >> (signal - 1)) & 1;
}

absl::StatusOr<pid_t> StarterOf(pid_t worker) {
  const pid_t parent = std::atoi(StatusField(worker, "PPid").c_str());
  LS_ASSIGN_OR_RETURN(const std::string command, ReadFile(fmt::format("/proc/{}/cmdline", parent)));
  const size_t first = command.find('\0');
  if (first == std::string::npos || command.compare(first + 1, 8, std::string("starter\0", 8)) != 0)
    return NotFound("the parent of worker {} is no starter", worker);
  return parent;
}

}  // namespace lockstep::drill
