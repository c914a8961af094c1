// Ctrl-C ends a command that would go on for ever, with what it has.
#pragma once

namespace lockstep::cli {

// From here on SIGINT and SIGTERM interrupt a sleep, and are remembered.
void EndAtInterrupt();
bool Interrupted();

}  // namespace lockstep::cli
