#include "lockstep/agent/stacks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "lockstep/agent/native_stacks.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json_text.h"
#include "lockstep/base/steady.h"

namespace lockstep::agent {
namespace {

using Steady = std::chrono::steady_clock;

constexpr std::array<const char*, 5> kWaits = {"unknown", "running", "timed", "external", "forever"};

Wait WaitFromName(const std::string& name) {
  const auto it = std::find(kWaits.begin(), kWaits.end(), name);
  return it == kWaits.end() ? Wait::kUnknown : static_cast<Wait>(it - kWaits.begin());
}

Json ThreadToJson(const ThreadStack& thread) {
  return {{"tid", thread.tid},
          {"comm", thread.comm},
          {"state", std::string(1, thread.state)},
          {"syscall", thread.syscall},
          {"syscall_name", thread.syscall_name},
          {"wait", kWaits[static_cast<size_t>(thread.wait)]},
          {"wchan", thread.wchan},
          {"frames", thread.frames}};
}

ThreadStack ThreadFromJson(const Json& json) {
  ThreadStack thread;
  thread.tid = json.at("tid").get<pid_t>();
  thread.comm = json.at("comm").get<std::string>();
  thread.state = json.at("state").get<std::string>().at(0);
  thread.syscall = json.at("syscall").get<int64_t>();
  thread.syscall_name = json.at("syscall_name").get<std::string>();
  thread.wait = WaitFromName(json.at("wait").get<std::string>());
  thread.wchan = json.at("wchan").get<std::string>();
  thread.frames = json.at("frames").get<std::vector<std::string>>();
  return thread;
}

// A reader process that writes its dump into a pipe.
class Reader {
 public:
  static absl::StatusOr<Reader> Start(pid_t target, const std::string& binary);
  Reader(Reader&& other) noexcept = default;
  Reader& operator=(Reader&&) = delete;
  // The process is ours to end: a reader that hangs holds nothing once it is dead.
  ~Reader() {
    if (!pipe_.valid()) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  int fd() const { return pipe_.get(); }
  bool done() const { return done_; }
  void Read() {
    std::array<char, 65536> buffer;
    const ssize_t size = read(pipe_.get(), buffer.data(), buffer.size());
    if (size > 0) text_.append(buffer.data(), static_cast<size_t>(size));
    if (size == 0 || (size < 0 && errno != EINTR && errno != EAGAIN)) done_ = true;
  }
  absl::StatusOr<StackDump> Result() const {
    if (!done_) return Unavailable("the stacks of process {} could not be read in time", target_);
    const Json json = ParseJson(text_);
    if (json.is_discarded())
      return Unavailable("the reader of the stacks of process {} died: it wrote \"{}\"", target_, text_.substr(0, 80));
    return StackDumpFromJson(json);
  }

 private:
  Reader(pid_t target, pid_t pid, Fd pipe) : target_(target), pid_(pid), pipe_(std::move(pipe)) {}

  pid_t target_, pid_;
  Fd pipe_;
  std::string text_;
  bool done_ = false;
};

absl::StatusOr<Reader> Reader::Start(pid_t target, const std::string& binary) {
  LS_ASSIGN_OR_RETURN(Pipe pipe, MakePipe(fmt::format("pipe for the stacks of process {}", target)));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe.write.get(), STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::string number = std::to_string(target), name = "lockstep", verb = "stacks";
  std::array<char*, 4> argv = {name.data(), verb.data(), number.data(), nullptr};
  pid_t pid = 0;
  const int error = posix_spawn(&pid, binary.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return Errno(error, "{} stacks {}", binary, target);
  return Reader(target, pid, std::move(pipe.read));
}

// Reads from all pipes until they end or the time is up.
void ReadAll(std::vector<absl::StatusOr<Reader>>& readers, Steady::time_point deadline) {
  while (true) {
    std::vector<pollfd> waiting;
    std::vector<Reader*> order;
    for (absl::StatusOr<Reader>& reader : readers) {
      if (!reader.ok() || reader->done()) continue;
      waiting.push_back({reader->fd(), POLLIN, 0});
      order.push_back(&*reader);
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Steady::now()).count();
    if (waiting.empty() || left <= 0) return;
    poll(waiting.data(), waiting.size(), static_cast<int>(left));
    for (size_t i = 0; i < waiting.size(); ++i)
      if (waiting[i].revents != 0) order[i]->Read();
  }
}

}  // namespace

Json ToJson(const StackDump& dump) {
  Json threads = Json::array();
  for (const ThreadStack& thread : dump.threads) threads.push_back(ThreadToJson(thread));
  return {{"pid", dump.pid}, {"unreadable", dump.unreadable}, {"threads", std::move(threads)}};
}

absl::StatusOr<StackDump> StackDumpFromJson(const Json& json) {
  // nlohmann reports a missing or wrong field by an exception; it ends here.
  try {
    StackDump dump;
    dump.pid = json.at("pid").get<pid_t>();
    dump.unreadable = json.at("unreadable").get<std::string>();
    for (const Json& thread : json.at("threads")) dump.threads.push_back(ThreadFromJson(thread));
    return dump;
  } catch (const std::exception& error) {
    return InvalidArgument("stack dump: {}", error.what());
  }
}

int StacksMain(pid_t pid) {
  // Symbols may hold any bytes; JSON may not.
  const std::string text = OneLine(ToJson(ReadNative(pid)));
  return std::puts(text.c_str()) >= 0 && std::fflush(stdout) == 0 ? 0 : 1;
}

std::vector<absl::StatusOr<StackDump>> CollectNative(std::span<const pid_t> pids, const std::string& lockstep_binary,
                                                     Seconds timeout) {
  const Steady::time_point deadline = Steady::now() + SteadyDuration(timeout);
  std::vector<absl::StatusOr<Reader>> readers;
  readers.reserve(pids.size());
  for (const pid_t pid : pids) readers.push_back(Reader::Start(pid, lockstep_binary));
  ReadAll(readers, deadline);
  std::vector<absl::StatusOr<StackDump>> dumps;
  dumps.reserve(readers.size());
  for (const absl::StatusOr<Reader>& reader : readers)
    dumps.push_back(reader.ok() ? reader->Result() : absl::StatusOr<StackDump>(reader.status()));
  return dumps;
}

absl::StatusOr<StackDump> CollectNative(pid_t pid, const std::string& lockstep_binary, Seconds timeout) {
  return std::move(CollectNative(std::span(&pid, 1), lockstep_binary, timeout).front());
}

}  // namespace lockstep::agent
