#include "lockstep/inspect/mount.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>

#include "lockstep/base/cgroup.h"

namespace lockstep::inspect {
namespace {

constexpr Seconds kPatience{0.05};  // for each of those that do not answer
constexpr std::array kRemote = {"nfs",  "nfs4",   "lustre",    "ceph", "cifs",     "smb3",           "smbfs",     "9p",
                                "gpfs", "beegfs", "glusterfs", "afs",  "orangefs", "fuse.glusterfs", "fuse.sshfs"};
constexpr std::array kLocal = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay", "bcachefs"};

template <typename List>
bool IsAmong(const List& list, const std::string& type) {
  return std::any_of(list.begin(), list.end(), [&](const char* one) { return type == one; });
}

// Space, tab, newline and backslash stand as three octal digits behind a backslash.
std::string Unescaped(std::string_view text) {
  std::string plain;
  const auto digit = [&](size_t at) { return text[at] >= '0' && text[at] <= '7'; };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && digit(i + 1) && digit(i + 2) && digit(i + 3)) {
      plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

// 36 35 98:0 /root /point rw,noatime shared:1 - ext3 /dev/root rw,errors=continue
std::optional<Mount> ParseMount(std::string_view line) {
  const std::vector<std::string_view> word = Words(line);
  const auto dash = std::find(word.begin(), word.end(), "-");
  if (dash - word.begin() < 6 || word.end() - dash < 3) return std::nullopt;
  Mount mount{Unescaped(word[4]), std::string(dash[1]), Unescaped(dash[2]), std::string(word[2])};
  mount.read_only = IsListed(word[5], "ro") || (word.end() - dash > 3 && IsListed(dash[3], "ro"));
  return mount;
}

bool HoldsData(const Mount& mount) {
  return IsRemote(mount) || IsAmong(kLocal, mount.type) || (mount.type == "tmpfs" && mount.point == "/dev/shm");
}

// What a file system says that can't be used any more. Others (no right to look) say nothing of it.
bool IsBroken(int error) {
  constexpr std::array kBroken = {ESTALE, EIO, ENOTCONN, ENODEV, ENXIO, ESHUTDOWN, EHOSTDOWN, ETIMEDOUT};
  return std::find(kBroken.begin(), kBroken.end(), error) != kBroken.end();
}

std::string SizeText(double bytes) {
  constexpr double kGib = 1 << 30, kMib = 1 << 20;
  return bytes < kGib ? fmt::format("{:.4g} MiB", bytes / kMib) : fmt::format("{:.4g} GiB", bytes / kGib);
}

class SystemMounts final : public Reader {
 public:
  SystemMounts(const Settings& settings, const Where& where, std::function<Space(const std::string&)> ask)
      : settings_(settings), tree_(where.tree), judge_(settings, where.paths), ask_(std::move(ask)) {}

  Reading Read(Nanos now) override {
    Reading reading{.source = Source::kMount, .at = now};
    const std::optional<std::string> text = tree_.OwnProc("mountinfo");
    if (!text) {
      MissAll(settings_, "there is no mountinfo in " + tree_.Path("/proc"), reading);
      return reading;
    }
    const std::vector<Mount> mounts = ParseMounts(*text);
    judge_.Judge(mounts, AskAll(judge_.Watch(mounts), now), now, reading);
    return reading;
  }

 private:
  std::map<std::string, Answer> AskAll(const std::vector<Mount>& watched, Nanos now) {
    std::map<std::string, Answer> answers;
    for (const Mount& mount : watched) {
      const auto call = [ask = ask_, path = tree_.Path(mount.point)] { return ask(path); };
      calls_.try_emplace(mount.point, call).first->second.Begin(now);
    }
    for (auto& [point, call] : calls_) {
      // Who is known not to answer is not waited for.
      answers[point].space = call.Await(call.Silent(now).value > 0 ? Seconds{0} : kPatience);
      answers[point].silent = call.Silent(now);
    }
    return answers;
  }

  const Settings settings_;
  const Tree tree_;
  MountJudge judge_;
  const std::function<Space(const std::string&)> ask_;
  std::map<std::string, SlowCall<Space>> calls_;
};

}  // namespace

std::vector<Mount> ParseMounts(std::string_view mountinfo) {
  std::vector<Mount> mounts;
  for (const std::string_view line : Lines(mountinfo))
    if (std::optional<Mount> mount = ParseMount(line)) mounts.push_back(*std::move(mount));
  return mounts;
}

const Mount* MountOf(const std::vector<Mount>& mounts, std::string_view path) {
  const Mount* best = nullptr;
  for (const Mount& mount : mounts) {
    const std::string_view point = mount.point;
    const bool holds =
        path.starts_with(point) && (point == "/" || path.size() == point.size() || path[point.size()] == '/');
    if (holds && (best == nullptr || point.size() >= best->point.size())) best = &mount;
  }
  return best;
}

bool IsRemote(const Mount& mount) { return IsAmong(kRemote, mount.type); }

Space AskSpace(const std::string& path) {
  struct statvfs stat = {};
  if (statvfs(path.c_str(), &stat) != 0) return {.error = errno};
  const auto unit = static_cast<double>(stat.f_frsize);
  Space space;
  space.free = static_cast<double>(stat.f_bavail) * unit;
  space.total = static_cast<double>(stat.f_blocks - stat.f_bfree) * unit + space.free;
  space.files = static_cast<double>(stat.f_files);
  space.files_free = static_cast<double>(stat.f_favail);
  return space;
}

const std::vector<Mount>& MountJudge::Watch(const std::vector<Mount>& mounts) {
  if (std::exchange(chosen_, true)) return watched_;
  std::set<std::string> points, devices;
  const auto add = [&](const Mount* mount, bool once) {
    if (mount == nullptr || (once && !devices.insert(mount->device).second)) return;
    if (points.insert(mount->point).second) watched_.push_back(*mount);
  };
  for (const std::string& path : paths_) add(MountOf(mounts, path), false);
  // Bind mounts show one file system at many places; the first will do.
  for (const Mount& mount : mounts)
    if (paths_.empty() && HoldsData(mount)) add(MountOf(mounts, mount.point), true);
  return watched_;
}

void MountJudge::Judge(const std::vector<Mount>& mounts, const std::map<std::string, Answer>& answers, Nanos at,
                       Reading& reading) {
  reading.at = at;
  for (const Mount& watched : Watch(mounts)) {
    const auto answer = answers.find(watched.point);
    if (JudgeMounted(watched, mounts, reading) && answer != answers.end())
      JudgeAnswer(watched, answer->second, reading);
  }
}

bool MountJudge::JudgeMounted(const Mount& watched, const std::vector<Mount>& mounts, Reading& reading) const {
  const Mount* now = MountOf(mounts, watched.point);
  if (now == nullptr || now->point != watched.point) {
    reading.conditions.push_back(
        {"mount_lost", watched.point, fmt::format("{} ({}) is not mounted any more", watched.source, watched.type)});
    return false;
  }
  if (now->source != watched.source || now->type != watched.type) {
    reading.conditions.push_back({"mount_lost", watched.point,
                                  fmt::format("{} ({}) is mounted in the place of {} ({})", now->source, now->type,
                                              watched.source, watched.type)});
    return false;
  }
  if (now->read_only && !watched.read_only)
    reading.conditions.push_back(
        {"disk_read_only", watched.point, fmt::format("{} ({}) can only be read now", watched.source, watched.type)});
  return true;
}

void MountJudge::JudgeAnswer(const Mount& watched, const Answer& answer, Reading& reading) const {
  const auto fault = IsRemote(watched) ? std::nullopt : std::optional(FaultClass::kMachine);
  if (!answer.space) {
    reading.figures.push_back({watched.point, fmt::format("{}, no answer", watched.type)});
    if (answer.silent.value >= *settings_["mount_silent"].threshold)
      reading.conditions.push_back(
          {"mount_silent", watched.point,
           fmt::format("{} ({}) does not answer for {:.0f} s", watched.source, watched.type, answer.silent.value),
           fault});
  } else if (IsBroken(answer.space->error)) {
    reading.conditions.push_back(
        {"mount_lost", watched.point,
         fmt::format("{} ({}): {}", watched.source, watched.type, std::strerror(answer.space->error)), fault});
  } else if (answer.space->error == 0) {
    JudgeSpace(watched, *answer.space, reading);
  }
}

void MountJudge::JudgeSpace(const Mount& watched, const Space& space, Reading& reading) const {
  if (space.total <= 0) return;  // nothing can be stored there anyway
  reading.figures.push_back(
      {watched.point, fmt::format("{}{}, {:.1f} % of {} free", watched.type, watched.read_only ? ", read-only" : "",
                                  100 * space.free / space.total, SizeText(space.total))});
  const double least = *settings_["disk_full"].threshold;
  // Other machines see a remote one as full as this one does.
  const auto fault = IsRemote(watched) ? std::optional(FaultClass::kSoftware) : std::nullopt;
  if (watched.read_only) return;
  if (space.free <= least * space.total) {
    reading.conditions.push_back({"disk_full", watched.point,
                                  fmt::format("{:.2f} % of {} ({}) is free", 100 * space.free / space.total,
                                              SizeText(space.total), watched.type),
                                  fault});
  } else if (space.files > 0 && space.files_free <= least * space.files) {
    reading.conditions.push_back({"disk_full", watched.point,
                                  fmt::format("{:.0f} of {:.0f} inodes are free", space.files_free, space.files),
                                  fault});
  }
}

std::unique_ptr<Reader> MountReader(const Settings& settings, const Where& where,
                                    std::function<Space(const std::string&)> ask) {
  return std::make_unique<SystemMounts>(settings, where, std::move(ask));
}

}  // namespace lockstep::inspect
