// The starter: the small single-threaded process that owns what must outlive every watcher: worker processes and their
// exit statuses, the board and the checkpoint buffers, the zygote and the store host. An agent connects to <run
// dir>/starter.sock and tells it what to do; when no agent has been there for spec.adoption, it ends the job. It is a
// subreaper: whatever workers leave behind becomes its child and is killed with their epoch.
//
//   agent -> {"op": "spawn", "epoch", "restart_count"} | {"op": "kill", "epoch", "grace_s", "signal"} |
//            {"op": "signal", "signal"} | {"op": "end"}
//   starter -> what each rank has, {"event": "ring"} + [its ring] and {"event": "buffers"} + [its slots], then
//              {"event": "hello", ...whole state} + [board]; from then on "spawned", "spawn_failed", "exited",
//              "stopped", "ring", "buffers", "dropped", "note";
//              worker output as raw packets: 'O', stream digit, rank as 4 bytes, data; events overtake it where it
//              waits, but for "stopped"
#pragma once

#include <string>

#include "lockstep/base/status.h"

namespace lockstep::agent {

// Runs until the job is over. Returns the process's exit status. Called by the hidden subcommand `lockstep starter
// RUNDIR`.
int StarterMain(const std::string& run_dir);

}  // namespace lockstep::agent
