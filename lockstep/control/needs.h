// What a job wants of the scheduler of its cluster, from its state: as many machines as evictions and lost nodes lack
// standbys, and a drain for each machine that was evicted for a fault of its own. Pure; said anew at every look, it
// asks for nothing twice. A job that is over, only observed or run dry wants nothing. A node that was lost is not
// drained: nobody has said that its machine is broken, and a scheduler notices by itself what is down.
#pragma once

#include "lockstep/control/machine.h"
#include "lockstep/schedule/driver.h"

namespace lockstep::control {

schedule::Wanted NeedsOf(const State& state);

}  // namespace lockstep::control
