#include "lockstep/agent/native_stacks.h"

#include <cxxabi.h>
#include <elfutils/libdwfl.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "lockstep/agent/proc.h"
#include "lockstep/agent/syscalls.h"
#include "lockstep/base/file.h"

namespace lockstep::agent {
namespace {

using Steady = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kStopLimit{200};
constexpr std::chrono::microseconds kPoll{200};
constexpr size_t kMostFrames = 256;

std::string ReadLine(const std::string& path) {
  std::string text = ReadFile(path).value_or("");
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

char StateLetter(const std::string& stat) {
  const size_t close = stat.rfind(')');
  return close != std::string::npos && close + 2 < stat.size() ? stat[close + 2] : '?';
}

// What /proc tells without touching the thread. Read before it is interrupted: afterwards its system call looks like
// another one.
ThreadStack Describe(pid_t pid, pid_t tid) {
  const std::string task = fmt::format("/proc/{}/task/{}/", pid, tid);
  ThreadStack thread;
  thread.tid = tid;
  thread.comm = ReadLine(task + "comm");
  thread.state = StateLetter(ReadLine(task + "stat"));
  thread.wchan = ReadLine(task + "wchan");
  if (thread.wchan == "0") thread.wchan.clear();
  const SyscallState syscall = ParseSyscall(ReadLine(task + "syscall"));
  thread.syscall = syscall.number;
  thread.wait = WaitOf(syscall);
  if (syscall.number >= 0) thread.syscall_name = SyscallName(syscall.number);
  return thread;
}

std::vector<ThreadStack> Threads(pid_t pid) {
  std::vector<pid_t> tids;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid), ignored))
    tids.push_back(static_cast<pid_t>(std::atoi(entry.path().filename().c_str())));
  std::sort(tids.begin(), tids.end(),
            [pid](pid_t a, pid_t b) { return std::pair(a != pid, a) < std::pair(b != pid, b); });
  std::vector<ThreadStack> threads;
  threads.reserve(tids.size());
  for (const pid_t tid : tids) threads.push_back(Describe(pid, tid));
  return threads;
}

// Owns the tracing of the threads of one process.
class Hold {
 public:
  explicit Hold(const std::vector<ThreadStack>& threads) {
    for (const ThreadStack& thread : threads) Seize(thread.tid);
    const Steady::time_point deadline = Steady::now() + kStopLimit;
    while (std::any_of(seized_.begin(), seized_.end(), [](const auto& entry) { return !entry.second.stopped; }) &&
           Steady::now() < deadline) {
      for (auto& [tid, state] : seized_) Poll(tid, state);
      std::this_thread::sleep_for(kPoll);
    }
  }
  ~Hold() { Release(); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  bool Stands(pid_t tid) const {
    const auto it = seized_.find(tid);
    return it != seized_.end() && it->second.stopped;
  }
  int error() const { return error_; }
  void Release() {
    for (const auto& [tid, state] : seized_) ptrace(PTRACE_DETACH, tid, nullptr, state.signal);
    seized_.clear();
  }

 private:
  struct State {
    bool stopped = false;
    uintptr_t signal = 0;  // one that was about to be delivered when we stopped the thread
  };

  void Seize(pid_t tid) {
    if (ptrace(PTRACE_SEIZE, tid, nullptr, nullptr) != 0) {
      error_ = errno;
    } else if (ptrace(PTRACE_INTERRUPT, tid, nullptr, nullptr) == 0) {
      seized_[tid] = {};
    }
  }
  static void Poll(pid_t tid, State& state) {
    int status = 0;
    if (state.stopped || waitpid(tid, &status, __WALL | WNOHANG) != tid) return;
    state.stopped = WIFSTOPPED(status);
    const bool our_stop = status >> 16 == PTRACE_EVENT_STOP;
    if (state.stopped && !our_stop) state.signal = static_cast<uintptr_t>(WSTOPSIG(status));
  }

  std::map<pid_t, State> seized_;
  int error_ = 0;
};

// Debug files are not looked for: symbol tables name what we ask about, and a search may go to the network.
int NoDebugFile(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*, GElf_Word, char**) {
  return -1;
}

pid_t reading = 0;  // whose stacks this process reads; elfutils tells its callbacks only of modules

// The file that the process has mapped: in a container, the same path means another file to us.
int FindElf(Dwfl_Module* module, void** data, const char* name, Dwarf_Addr base, char** file_name, Elf** elf) {
  if (name[0] == '/') {
    const std::string path = fmt::format("/proc/{}/root{}", reading, name);
    struct stat info{};
    const bool regular =
        stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);  // a device may hang when it is opened
    const int fd = regular ? open(path.c_str(), O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
      *file_name = strdup(path.c_str());
      return fd;
    }
  }
  return dwfl_linux_proc_find_elf(module, data, name, base, file_name, elf);
}

const Dwfl_Callbacks kCallbacks = {FindElf, NoDebugFile, nullptr, nullptr};
using DwflPtr = std::unique_ptr<Dwfl, decltype(&dwfl_end)>;

DwflPtr Open(pid_t pid) {
  reading = pid;
  DwflPtr dwfl(dwfl_begin(&kCallbacks), &dwfl_end);
  if (!dwfl || dwfl_linux_proc_report(dwfl.get(), pid) != 0 || dwfl_report_end(dwfl.get(), nullptr, nullptr) != 0 ||
      dwfl_linux_proc_attach(dwfl.get(), pid, true) != 0)
    dwfl.reset();
  return dwfl;
}

int KeepFrame(Dwfl_Frame* frame, void* argument) {
  auto& addresses = *static_cast<std::vector<Dwarf_Addr>*>(argument);
  Dwarf_Addr pc = 0;
  bool activation = false;
  if (!dwfl_frame_pc(frame, &pc, &activation)) return DWARF_CB_ABORT;
  // A return address may already belong to the next function.
  addresses.push_back(pc - (activation ? 0 : 1));
  return addresses.size() < kMostFrames ? DWARF_CB_OK : DWARF_CB_ABORT;
}

std::string Demangle(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(symbol, nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? text.get() : symbol;
}

// Without the parameter list: the first parenthesis that no template argument, "operator()" or "(anonymous namespace)"
// accounts for.
std::string WithoutParameters(std::string name) {
  int depth = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    if (name[i] == '>' && depth > 0) --depth;
    if (name[i] != '(' || depth > 0) continue;
    if (name.compare(i, 11, "(anonymous ") == 0) continue;
    if (i < 8 || name.compare(i - 8, 10, "operator()") != 0) return name.substr(0, i);
  }
  return name;
}

std::string ModuleName(Dwfl_Module* module) {
  const char* name = dwfl_module_info(module, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
  const char* slash = name != nullptr ? std::strrchr(name, '/') : nullptr;
  return slash != nullptr ? slash + 1 : name != nullptr ? name : "?";
}

std::string Name(Dwfl* dwfl, Dwarf_Addr address) {
  Dwfl_Module* module = dwfl_addrmodule(dwfl, address);
  if (module == nullptr) return fmt::format("?+{:#x}", address);
  GElf_Off offset = 0;
  GElf_Sym symbol;
  const char* name = dwfl_module_addrinfo(module, address, &offset, &symbol, nullptr, nullptr, nullptr);
  // The nearest symbol below is no answer when its function ends before the address.
  if (name != nullptr && (symbol.st_size == 0 || offset < symbol.st_size))
    return fmt::format("{} ({})", WithoutParameters(Demangle(name)), ModuleName(module));
  Dwarf_Addr begin = 0;
  dwfl_module_info(module, nullptr, &begin, nullptr, nullptr, nullptr, nullptr, nullptr);
  return fmt::format("{}+{:#x}", ModuleName(module), address - begin);
}

std::string WhyUnreadable(const StackDump& dump, const Hold& hold) {
  if (dump.threads.empty()) return "the process is gone";
  if (hold.Stands(dump.pid)) return {};
  if (hold.error() != 0) return fmt::format("no right to trace the process: {}", std::strerror(hold.error()));
  detect::RankSample sample;
  SampleCheap(dump.pid, sample);
  if (sample.frozen) return "the process is frozen by a cgroup, so its threads don't stop for us";
  return fmt::format("the main thread did not stop within 0.2 s (state {})", dump.threads.front().state);
}

// Naming takes longest, so it comes when the threads run again.
void AddFrames(StackDump& dump, Dwfl* dwfl, Hold& hold) {
  std::map<pid_t, std::vector<Dwarf_Addr>> addresses;
  for (const ThreadStack& thread : dump.threads)
    if (hold.Stands(thread.tid)) dwfl_getthread_frames(dwfl, thread.tid, KeepFrame, &addresses[thread.tid]);
  hold.Release();
  std::map<Dwarf_Addr, std::string> names;
  for (ThreadStack& thread : dump.threads) {
    for (const Dwarf_Addr address : addresses[thread.tid]) {
      const auto [name, fresh] = names.try_emplace(address);
      if (fresh) name->second = Name(dwfl, address);
      thread.frames.push_back(name->second);
    }
  }
}

}  // namespace

StackDump ReadNative(pid_t pid) {
  StackDump dump;
  dump.pid = pid;
  dump.threads = Threads(pid);
  const DwflPtr dwfl = Open(pid);
  const std::string trouble = dwfl ? "" : fmt::format("elfutils can't read the process: {}", dwfl_errmsg(-1));
  Hold hold(dump.threads);
  dump.unreadable = WhyUnreadable(dump, hold);
  if (dump.unreadable.empty()) dump.unreadable = trouble;
  if (dump.unreadable.empty()) AddFrames(dump, dwfl.get(), hold);
  return dump;
}

}  // namespace lockstep::agent
