// File systems that the job uses: whether they are still mounted, may be written to, answer, and have room. Remembered
// from the first reading on: what is not there then is not missed. statvfs(2) of a dead server may never come back, so
// each file system is asked in a thread of its own, and silence is what is seen.
//
//   MountJudge judge(settings, {"/data/checkpoints"});
//   judge.Judge(ParseMounts(mountinfo), answers, now, reading);
#pragma once

#include <map>

#include "lockstep/base/slow_call.h"
#include "lockstep/inspect/reader.h"

namespace lockstep::inspect {

struct Mount {
  std::string point, type, source, device;  // "/data", "nfs4", "server:/export", "0:52"
  bool read_only = false;                   // the mount, or the file system itself
};

// /proc/self/mountinfo, in its order; lines that are none are left out.
std::vector<Mount> ParseMounts(std::string_view mountinfo);
// On which `path` lies; nullptr: none. Of several on one point, the last hides the others.
const Mount* MountOf(const std::vector<Mount>& mounts, std::string_view path);
bool IsRemote(const Mount& mount);

// What statvfs(2) said.
struct Space {
  int error = 0;     // errno
  double total = 0;  // bytes for ordinary users, used ones too
  double free = 0;   // of these
  double files = 0;  // inodes; 0: the file system does not count them
  double files_free = 0;
};
Space AskSpace(const std::string& path);

struct Answer {
  std::optional<Space> space;  // none: it does not answer
  Seconds silent;              // for so long
};

class MountJudge {
 public:
  // `paths` empty: all that hold data.
  MountJudge(const Settings& settings, std::vector<std::string> paths)
      : settings_(settings), paths_(std::move(paths)) {}
  // The first call chooses whom to watch; whose answers are not there yet are judged without.
  void Judge(const std::vector<Mount>& mounts, const std::map<std::string, Answer>& answers, Nanos at,
             Reading& reading);
  // Whom to ask.
  const std::vector<Mount>& Watch(const std::vector<Mount>& mounts);

 private:
  bool JudgeMounted(const Mount& watched, const std::vector<Mount>& mounts, Reading& reading) const;
  void JudgeAnswer(const Mount& watched, const Answer& answer, Reading& reading) const;
  void JudgeSpace(const Mount& watched, const Space& space, Reading& reading) const;

  const Settings settings_;
  const std::vector<std::string> paths_;
  std::vector<Mount> watched_;
  bool chosen_ = false;
};

std::unique_ptr<Reader> MountReader(const Settings& settings, const Where& where,
                                    std::function<Space(const std::string&)> ask = AskSpace);

}  // namespace lockstep::inspect
