#include "lockstep/drill/hold.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "lockstep/agent/spec.h"
#include "lockstep/base/file.h"
#include "lockstep/drill/link_keeper.h"

namespace lockstep::drill {
namespace {

// Long enough to be met by the caller's ticks, and by the scheduler of a loaded machine.
constexpr Nanos kRunSlice{20'000'000};
constexpr int kFillTries = 20;

class Stopped : public Hold {
 public:
  Stopped(Process process, Nanos until) : process_(std::move(process)), until_(until) {}
  ~Stopped() override { (void)process_.Signal(SIGCONT); }
  bool GoesOn(Nanos now) override { return now < until_ && process_.Alive(); }

 protected:
  Process process_;
  Nanos until_;
};

class DutyCycle : public Stopped {
 public:
  DutyCycle(Process process, int share, Nanos until) : Stopped(std::move(process), until), share_(share) {}
  bool GoesOn(Nanos now) override {
    const bool run = now.value % (kRunSlice.value * 100 / share_) < kRunSlice.value;
    if (run != runs_) (void)process_.Signal(run ? SIGCONT : SIGSTOP);
    runs_ = run;
    return Stopped::GoesOn(now);
  }

 private:
  int share_;
  bool runs_ = true;
};

class InGroup : public Hold {
 public:
  InGroup(Process process, std::unique_ptr<Group> group, Nanos until)
      : process_(std::move(process)), group_(std::move(group)), until_(until) {}
  bool GoesOn(Nanos now) override { return now < until_ && process_.Alive(); }

 private:
  Process process_;
  std::unique_ptr<Group> group_;
  Nanos until_;
};

class CutOff : public Hold {
 public:
  CutOff(std::unique_ptr<LinkKeeper> keeper, Nanos until) : keeper_(std::move(keeper)), until_(until) {}
  bool GoesOn(Nanos now) override {
    if (now < until_) return true;
    failure_ = Message(keeper_->End());
    return false;
  }
  std::string Failure() const override { return failure_; }

 private:
  std::unique_ptr<LinkKeeper> keeper_;
  Nanos until_;
  std::string failure_;
};

class FullDisk : public Hold {
 public:
  FullDisk(Fd file, Nanos until) : file_(std::move(file)), until_(until) {}
  bool GoesOn(Nanos now) override { return now < until_; }

 private:
  Fd file_;
  Nanos until_;
};

class Asked : public Hold {
 public:
  Asked(Process process, std::string path, Nanos until)
      : process_(std::move(process)), path_(std::move(path)), until_(until) {}
  ~Asked() override { unlink(path_.c_str()); }
  absl::Status Signal(int signal) const { return process_.Signal(signal); }
  bool GoesOn(Nanos now) override {
    if (access(path_.c_str(), F_OK) != 0) return false;
    failed_ = now >= until_ || !process_.Alive();
    return !failed_;
  }
  std::string Failure() const override {
    return failed_
               ? fmt::format("process {} did not take the request: its main thread runs no Python code", process_.pid())
               : "";
  }
  bool Struck() const override { return !failed_; }

 private:
  Process process_;
  std::string path_;
  Nanos until_;
  bool failed_ = false;
};

struct Disk {
  Bytes free;
  bool is_memory = false;  // a full one leaves none to the processes
};

absl::StatusOr<Disk> LookAt(const std::string& directory) {
  struct statfs space{};
  if (statfs(directory.c_str(), &space) != 0) return Errno(errno, "{}", directory);
  return Disk{Bytes{space.f_bavail * static_cast<uint64_t>(space.f_frsize)},
              space.f_type == TMPFS_MAGIC || space.f_type == RAMFS_MAGIC};
}

// Others write there, too: where they were quicker, a tmpfs gives all back that it had reserved for us, and other file
// systems keep it.
absl::Status Fill(int file, const std::string& directory, Bytes margin) {
  for (int i = 0; i < kFillTries; ++i) {
    LS_ASSIGN_OR_RETURN(const Disk disk, LookAt(directory));
    if (disk.free <= margin) return absl::OkStatus();
    struct stat info{};
    if (fstat(file, &info) != 0) return Errno(errno, "filling {}", directory);
    if (fallocate(file, 0, info.st_blocks * 512, static_cast<off_t>(disk.free.value - margin.value)) == 0)
      return absl::OkStatus();
    if (errno != ENOSPC) return Errno(errno, "filling {}", directory);
  }
  return Unavailable(
      "{} did not become full: others write there all the time, or its file system has less than it says", directory);
}

}  // namespace

absl::StatusOr<HoldPtr> HoldStopped(Process process, Nanos until) {
  LS_RETURN_IF_ERROR(process.Signal(SIGSTOP));
  return std::make_unique<Stopped>(std::move(process), until);
}

absl::StatusOr<HoldPtr> HoldFrozen(Process process, Nanos until) {
  LS_ASSIGN_OR_RETURN(std::unique_ptr<Group> group, Group::Make(Controller::kFreezer, process.pid()));
  LS_RETURN_IF_ERROR(group->Freeze());
  return std::make_unique<InGroup>(std::move(process), std::move(group), until);
}

absl::StatusOr<HoldPtr> HoldSlow(Process process, int share, Nanos until) {
  absl::StatusOr<std::unique_ptr<Group>> group = Group::Make(Controller::kCpu, process.pid());
  if (!group.ok()) return std::make_unique<DutyCycle>(std::move(process), share, until);
  LS_RETURN_IF_ERROR((*group)->Limit(share));
  return std::make_unique<InGroup>(std::move(process), *std::move(group), until);
}

absl::StatusOr<HoldPtr> HoldCutOff(const Process& process, Nanos until) {
  LS_ASSIGN_OR_RETURN(std::unique_ptr<LinkKeeper> keeper, LinkKeeper::Start(process.pid(), "/proc/self/exe"));
  return std::make_unique<CutOff>(std::move(keeper), until);
}

absl::Status CheckDisk(const std::string& directory, Bytes margin, const checkpoint::MemoryRoots& roots) {
  LS_ASSIGN_OR_RETURN(const Disk disk, LookAt(directory));
  if (disk.free <= margin)
    return FailedPrecondition("{} has {} bytes free, which is no more than the margin of {}", directory,
                              disk.free.value, margin.value);
  if (!disk.is_memory) return absl::OkStatus();
  const Bytes taken{disk.free.value - margin.value};
  LS_ASSIGN_OR_RETURN(const Bytes available, checkpoint::AvailableMemory(roots));
  if (taken.value <= available.value / 2) return absl::OkStatus();
  return FailedPrecondition(
      "{}: this disk is memory, and to fill it would take {}, more than half of the {} that are available: it would be "
      "processes that end, not the disk; give a larger --margin, or another disk",
      directory, checkpoint::HumanBytes(taken), checkpoint::HumanBytes(available));
}

absl::StatusOr<HoldPtr> HoldDisk(const std::string& directory, Bytes margin, Nanos until) {
  LS_RETURN_IF_ERROR(CheckDisk(directory, margin));
  Fd file(open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file.valid()) return Errno(errno, "a file without a name in {}", directory);
  LS_RETURN_IF_ERROR(Fill(file.get(), directory, margin));
  return std::make_unique<FullDisk>(std::move(file), until);
}

absl::StatusOr<HoldPtr> AskWorker(Process process, const std::string& path, const std::string& request, Nanos until) {
  const int signal = SIGRTMIN + agent::kDrillSignal;
  if (!process.Handles(signal))
    return FailedPrecondition("process {} takes no requests: it runs no Python with Lockstep's package, or not yet",
                              process.pid());
  LS_RETURN_IF_ERROR(WriteFileAtomically(path, request));
  auto asked = std::make_unique<Asked>(std::move(process), path, until);  // from here on the file goes with it
  LS_RETURN_IF_ERROR(asked->Signal(signal));
  return asked;
}

}  // namespace lockstep::drill
