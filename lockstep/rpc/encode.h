// The wire form (link.proto) of what agents and the coordinator say, and back. Included by the part's own sources only:
// the generated header is heavy.
#pragma once

#include "link.pb.h"
#include "lockstep/base/status.h"
#include "lockstep/control/link.h"
#include "lockstep/control/roster.h"

namespace lockstep::rpc {

FromAgent Encode(const control::Join& join);
control::Join Decode(const Join& wire);

FromAgent Encode(const control::Said& said);
// An error names what cannot be read; Join is no Said.
absl::StatusOr<control::Said> DecodeSaid(const FromAgent& wire);

// None for what is the coordinator's own business.
std::optional<FromCoordinator> Encode(const control::Told& told);
absl::StatusOr<control::Told> DecodeTold(const FromCoordinator& wire);

FromCoordinator EncodeWelcome(const control::Place& place, const std::string& run, int64_t term);
control::Place DecodePlace(const Welcome& wire);

// Moves every moment in it by `offset`; "none" (0) stays what it is.
void Shift(control::Said& said, Nanos offset);

}  // namespace lockstep::rpc
