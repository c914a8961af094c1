// What `lockstep drill` can break, with the options of each fault. Plain values.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep::drill {

enum class Kind {
  kKill,    // SIGKILL
  kStop,    // SIGSTOP, until `hold` is over
  kFreeze,  // cgroup freezer, until `hold` is over
  kExit,    // the worker's process ends with `code`
  kSlow,    // `share` percent of one processor, until `hold` is over
  kNan,     // a gradient becomes NaN before the next optimizer.step()
  kHangPython,
  kHangNative,
  kCutLink,   // of the network namespace that the rank is in, until `hold` is over
  kFillDisk,  // the file system of `directory` is full up to `margin`, until `hold` is over
  kKillCoordinator,
  kKillStarter,
};
const char* KindName(Kind kind);
absl::StatusOr<Kind> KindFromName(const std::string& name);
std::string KindNames();  // "kill, stop, ..." for help and errors

bool StrikesRank(Kind kind);
// Whether an option has an effect on it, by its key in a schedule: "rank", "for_s", "share", "code", "dir",
// "margin_bytes".
bool Takes(Kind kind, std::string_view option);
// By a request to the worker itself, which answers from Python.
bool IsInside(Kind kind);

inline constexpr Seconds kShortestHold{0.001}, kLongestHold{1e9};

struct Fault {
  Kind kind = Kind::kKill;
  std::optional<int> rank;  // nullopt: a random one; of no meaning unless StrikesRank
  Seconds hold{60};
  int share = 20;
  int code = 1;
  std::string directory;
  Bytes margin{64 << 20};
};
// {fault, rank, and the options that matter to this kind}
Json ToJson(const Fault& fault);
std::string Text(const Fault& fault);  // "slow of rank 2"

// What can be known before anything is broken: the rights and the place that the fault needs.
absl::Status CheckFault(const Fault& fault);
// Part of it. The error begins with the key of the schedule.
absl::Status CheckHold(Seconds hold);

}  // namespace lockstep::drill
