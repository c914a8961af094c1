// The first process of a container has duties of its own: to reap what other processes leave behind, and to pass
// signals on.
#pragma once

namespace lockstep::node {

// In the first process of a pid namespace: forks. The child returns and carries on; the parent stays in here, and exits
// as the child does. In any other process: does nothing. Before the first thread starts.
void StandBehindInit();

}  // namespace lockstep::node
