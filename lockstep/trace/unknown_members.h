// Of process groups whose ranks no dump tells: the default one has all, others at least those that used it.
#pragma once

#include "lockstep/trace/comm_log.h"

namespace lockstep::trace {

// A number that different ranks use for groups of different calls becomes several communicators. Where one rank alone
// differs from all others, and each that told anything uses the number, it stays with them, and the communicator's
// doubt says so; as it does where calls are alike and some have ended one that needs all, but others have not. Who
// reported and told nothing of the number may be in any of them.
void FillUnknownMembers(CommLog& log);

}  // namespace lockstep::trace
