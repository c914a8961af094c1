#include "lockstep/control/comm_motion.h"

#include <algorithm>

#include "lockstep/detect/comm_patience.h"

namespace lockstep::control {
namespace {

constexpr Seconds kLately{30};        // agents tell of their trails every 5 s
constexpr Seconds kWorthAsking{0.5};  // what is quiet for less nobody asks about (detect::HangLimits::least_stall)

// For as long as it is under way; a failed one has ended.
bool IsWaitedIn(const trace::CommOp& op) { return op.state != trace::OpState::kCompleted && op.duration_ns < 0; }

}  // namespace

CommMotion::Place CommMotion::PlaceOf(const trace::TrailSnapshot& trail) {
  Place place;
  for (const ls_communicator& own : trail.communicators) {
    place.launched += own.launched;
    place.ended += own.ended;
  }
  for (const ls_record& record : trail.ended) place.newest_ns = std::max(place.newest_ns, record.time_ns);
  for (const ls_record& record : trail.under_way)
    if (record.kind == LS_RECORD_OP) place.under_way.emplace_back(record.time_ns, record.body.op.messages);
  return place;
}

void CommMotion::Look(const Trails& trails, const trace::CommLog& log, Nanos now) {
  std::map<std::pair<uint32_t, std::string>, Place> places;
  for (const auto& [owner, trail] : trails) {
    Place& place = places.emplace(owner, PlaceOf(trail)).first->second;
    // Agents leave out what is old: that it is not told any more is no move.
    if (const auto before = places_.find(owner); before != places_.end())
      place.newest_ns = std::max(place.newest_ns, before->second.newest_ns);
  }
  if (places != places_) moved_ = now;
  places_ = std::move(places);
  looked_ = now;
  waits_ = log.doubt.empty() && !log.unseen && !log.moving && std::ranges::any_of(log.ops, IsWaitedIn);
  quiet_ = waits_ ? detect::QuietFor(log).value_or(Seconds{}) : Seconds{};
  usual_quiet_ = quiet_ >= kWorthAsking ? detect::UsualQuiet(log) : std::nullopt;
}

std::optional<detect::CommWait> CommMotion::Wait(Nanos now) const {
  if (!waits_ || now - looked_ > ToNanos(kLately)) return std::nullopt;
  return detect::CommWait{moved_, looked_ - ToNanos(quiet_), quiet_, usual_quiet_};
}

}  // namespace lockstep::control
