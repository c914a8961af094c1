#include "lockstep/drill/inject.h"

#include <signal.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"

namespace lockstep::drill {
namespace {

constexpr Seconds kRequestTimeout{10};

absl::StatusOr<HoldPtr> Kill(const Process& process) {
  LS_RETURN_IF_ERROR(process.Signal(SIGKILL));
  return HoldPtr();
}

}  // namespace

absl::StatusOr<pid_t> VictimOf(const Fault& fault, const Target& target) {
  if (fault.kind == Kind::kFillDisk) return 0;
  if (fault.kind == Kind::kKillCoordinator) return target.watcher;
  return fault.kind == Kind::kKillStarter ? StarterOf(target.worker) : target.worker;
}

absl::StatusOr<HoldPtr> Inject(const Fault& fault, const agent::RunSpec& spec, const Target& target, Nanos now) {
  const Nanos until = now + ToNanos(fault.hold);
  if (fault.kind == Kind::kFillDisk) return HoldDisk(fault.directory, fault.margin, until);
  LS_ASSIGN_OR_RETURN(const pid_t victim, VictimOf(fault, target));
  LS_ASSIGN_OR_RETURN(Process process, Process::Open(victim));
  if (IsInside(fault.kind)) {
    const std::string path = agent::DrillPath(spec, target.epoch, fault.rank.value() - spec.place.first_rank);
    return AskWorker(std::move(process), path, OneLine(ToJson(fault)), now + ToNanos(kRequestTimeout));
  }
  switch (fault.kind) {
    case Kind::kStop:
      return HoldStopped(std::move(process), until);
    case Kind::kFreeze:
      return HoldFrozen(std::move(process), until);
    case Kind::kSlow:
      return HoldSlow(std::move(process), fault.share, until);
    case Kind::kCutLink:
      return HoldCutOff(process, until);
    default:
      return Kill(process);
  }
}

}  // namespace lockstep::drill
