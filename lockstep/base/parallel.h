// Work on several threads, this one among them.
#pragma once

#include <cstddef>
#include <functional>

namespace lockstep {

// Calls run(i, worker) once for each i in [0, count), in this order as far as they begin; at most `threads` at once,
// each with its own `worker` below that. Returns when all have. `run` must not throw.
void ParallelFor(size_t count, size_t threads, const std::function<void(size_t i, size_t worker)>& run);

}  // namespace lockstep
