// Of whoever takes the place of a node that was lost: gets its part of a checkpoint from its keeper, by up to 16
// connections that take slot after slot, and verifies each slot's CRC32C. Where a connection fails, rather than the
// keeper says no, it asks again over another one. Blocks; for a thread of its own.
//
//   LS_ASSIGN_OR_RETURN(const Outline outline, Fetch(address, token, node, point, stop, make));
#pragma once

#include <functional>
#include <span>
#include <stop_token>
#include <string>

#include "lockstep/keep/connection.h"
#include "lockstep/keep/outline.h"

namespace lockstep::keep {

// Where a slot's content goes: told its index and header, answers memory for so many bytes. Called in order, by one
// thread.
using MakeRoom = std::function<absl::StatusOr<std::span<std::byte>>(size_t slot, const SlotHeader& header)>;

// For so long after a connection has failed it is tried again.
inline constexpr Seconds kFetchPatience{10};

// NotFound: it is not kept there (as FailedPrecondition), or nobody listens there: the keeper's process is gone, and
// what it kept with it. DataLoss: what came is damaged. Unavailable: the keeper could not be talked to, for all of
// `patience`.
absl::StatusOr<Outline> Fetch(const Address& keeper, const std::string& token, int node, const checkpoint::Point& point,
                              const std::stop_token& stop, const MakeRoom& make, Seconds patience = kFetchPatience);

}  // namespace lockstep::keep
