#include "lockstep/drill/fault.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>

#include "lockstep/drill/hold.h"

namespace lockstep::drill {
namespace {

constexpr std::array<const char*, 12> kNames = {"kill",     "stop",      "freeze",           "exit",
                                                "slow",     "nan",       "hang-python",      "hang-native",
                                                "cut-link", "fill-disk", "kill-coordinator", "kill-starter"};

}  // namespace

const char* KindName(Kind kind) { return kNames[static_cast<size_t>(kind)]; }

absl::StatusOr<Kind> KindFromName(const std::string& name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<Kind>(i);
  }
  return InvalidArgument("no fault \"{}\": expected one of {}", name, KindNames());
}

std::string KindNames() {
  std::string names;
  for (const char* name : kNames) names += names.empty() ? name : std::string(", ") + name;
  return names;
}

bool StrikesRank(Kind kind) {
  return kind != Kind::kFillDisk && kind != Kind::kKillCoordinator && kind != Kind::kKillStarter;
}

bool Takes(Kind kind, std::string_view option) {
  if (option == "rank") return StrikesRank(kind);
  if (option == "share") return kind == Kind::kSlow;
  if (option == "code") return kind == Kind::kExit;
  if (option == "for_s" &&
      (kind == Kind::kStop || kind == Kind::kFreeze || kind == Kind::kSlow || kind == Kind::kCutLink))
    return true;
  return kind == Kind::kFillDisk;  // for_s, dir, margin_bytes
}

bool IsInside(Kind kind) {
  return kind == Kind::kExit || kind == Kind::kNan || kind == Kind::kHangPython || kind == Kind::kHangNative;
}

Json ToJson(const Fault& fault) {
  Json json = {{"fault", KindName(fault.kind)}};
  json["rank"] = Takes(fault.kind, "rank") && fault.rank ? Json(*fault.rank) : Json();
  if (Takes(fault.kind, "for_s")) json["for_s"] = fault.hold.value;
  if (Takes(fault.kind, "share")) json["share"] = fault.share;
  if (Takes(fault.kind, "code")) json["code"] = fault.code;
  if (Takes(fault.kind, "dir")) json["dir"] = fault.directory;
  if (Takes(fault.kind, "margin_bytes")) json["margin_bytes"] = fault.margin.value;
  return json;
}

std::string Text(const Fault& fault) {
  if (fault.kind == Kind::kFillDisk) return fmt::format("fill-disk of {}", fault.directory);
  if (!StrikesRank(fault.kind)) return KindName(fault.kind);
  return fmt::format("{} of rank {}", KindName(fault.kind), fault.rank ? std::to_string(*fault.rank) : "?");
}

absl::Status CheckHold(Seconds hold) {
  if (hold >= kShortestHold && hold <= kLongestHold) return absl::OkStatus();
  return InvalidArgument("for_s must be {} to {}, found {}", kShortestHold.value, kLongestHold.value, hold.value);
}

absl::Status CheckFault(const Fault& fault) {
  LS_RETURN_IF_ERROR(CheckHold(fault.hold));
  if (fault.kind == Kind::kFreeze && geteuid() != 0)
    return FailedPrecondition("freeze needs root, for it makes a cgroup; `stop` does nearly the same without");
  if (fault.kind == Kind::kCutLink && geteuid() != 0)
    return FailedPrecondition("cut-link needs root, for it takes down the links of the node's network namespace");
  if (fault.kind != Kind::kFillDisk) return absl::OkStatus();
  if (fault.directory.empty()) return InvalidArgument("fill-disk needs a directory: --dir, or dir in the schedule");
  struct stat info{};
  if (stat(fault.directory.c_str(), &info) != 0 || !S_ISDIR(info.st_mode))
    return NotFound("fill-disk: {} is not a directory", fault.directory);
  if (access(fault.directory.c_str(), W_OK) != 0)
    return FailedPrecondition("fill-disk: {} is not writable", fault.directory);
  return CheckDisk(fault.directory, fault.margin);
}

}  // namespace lockstep::drill
