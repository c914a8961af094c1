// Our collectors (collect/) in the workers of a run: whether they may be there, how they get there, what they leave.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/agent/launch.h"
#include "lockstep/agent/spec.h"
#include "lockstep/trace/trail_file.h"

namespace lockstep::agent {

// Tries it: the interpreter starts with the library preloaded, loads libgloo where that is a library of its own, and
// neither it nor the loader complains. Takes as long as Python needs to start. Without a library, false at once.
bool CanPreload(const std::string& library, const std::string& python);

// For processes that are started by exec; those of the zygote have what it has.
void AddCollectors(const RunSpec& spec, Environment& environment);

// Of so many of its newest collectives, about, a rank of a job of that size tells the coordinator.
size_t OpsToTell(int world_size);

// Those of processes that run.
std::vector<trace::TrailFile> AliveTrails(const RunSpec& spec);

// What the ranks of this node noted lately, of about so many of their newest collectives.
std::vector<trace::TrailSnapshot> TakeTrails(const RunSpec& spec);

// Trails of epochs before `epoch` go, but for those of workers that live on.
void RemoveTrails(const RunSpec& spec, uint64_t epoch);

}  // namespace lockstep::agent
