#include "lockstep/trace/trail_recorder.h"

#include "lockstep/trace/trail_file.h"
#include "lockstep/trace/trails.h"

namespace lockstep::trace {

bool IsToBeToldAgain(const TrailSnapshot& snapshot, Nanos told) {
  constexpr Seconds kUnderWay{5}, kQuiet{30};
  const Seconds after = snapshot.under_way.empty() ? kQuiet : kUnderWay;
  return snapshot.alive && Nanos{snapshot.taken_ns} - told >= ToNanos(after);
}

absl::Status TrailRecorder::Look(bool all) {
  alive_ = 0;
  damaged_.clear();
  for (const std::string& path : TrailsIn(directory_)) {
    const absl::StatusOr<TrailFile> file = TrailFile::Open(path);
    if (!file.ok()) {  // it may be in the making
      damaged_.emplace_back(Message(file.status()));
      continue;
    }
    Followed& followed = followed_[path];
    const TrailSnapshot snapshot = TakeSnapshot(*file, &followed.at);
    alive_ += snapshot.alive;
    overwritten_ += snapshot.missed;
    const bool again = IsToBeToldAgain(snapshot, followed.told);
    const bool same = snapshot.under_way.size() == followed.under_way && snapshot.alive == followed.alive &&
                      snapshot.stopped == followed.stopped;
    if (!all && !again && snapshot.ended.empty() && same) continue;
    LS_RETURN_IF_ERROR(file_.Write(snapshot));
    followed.under_way = snapshot.under_way.size();
    followed.alive = snapshot.alive;
    followed.stopped = snapshot.stopped;
    followed.told = Nanos{snapshot.taken_ns};
    kept_ += snapshot.ended.size();
  }
  return absl::OkStatus();
}

}  // namespace lockstep::trace
