// What begins a run may take long (a store that says nothing, a data set that is opened), and whoever starts it has
// blocked the signals that end it: until somebody hears them, they wait. Looks; takes none of them.
#pragma once

namespace lockstep::agent {

// By a user or a scheduler, with SIGINT or SIGTERM. SIGHUP is not asked for: whether it ends a run depends on its
// terminal.
bool IsAskedToStop();

}  // namespace lockstep::agent
