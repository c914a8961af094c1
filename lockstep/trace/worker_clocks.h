// Clocks of workers that disagree, of a job of rows: each transfer then seems to end before its last peer came, on one
// side, and to take far too long on the other.
#pragma once

#include <vector>

#include "lockstep/trace/traced_job.h"

namespace lockstep::trace {

// Of a worker's communications come out below zero: no chance. Sends don't count: one that is buffered ends before its
// receiver comes, while nothing is received before it is sent.
inline constexpr double kClocksDisagree = 0.1;

inline constexpr float kOffClock = 0.01F;  // s: a clock that is less off does no harm

// [dp * pp + stage]: of the worker's collectives and receives, those whose transfer came out below zero and was taken
// as 0.
std::vector<double> MendedShares(const TracedJob& job);

// [step][dp * pp + stage]: s that are added to the worker's times. Empty: no clock is off.
using ClockShifts = std::vector<std::vector<float>>;

// Where in a step a tenth of a worker's receives, or of its collectives, came out below zero, or all its collectives
// end 10 ms or more before or behind those of their groups, by about as much (three at least; of a worker with rows in
// doubt all that are certain): puts the times of each worker that is so far off in some step onto the others', step by
// step, and measures the parts anew. A step in which no recorded communication of a worker tells is as the nearest
// ones. Leaves a worker as it is that begins its steps, and what follows its collectives, with the others by the clock
// that it was recorded with and would not by the other one; and leaves all as it is where that does not make at least
// half of it right.
ClockShifts MendClocks(TracedJob& job, size_t threads);

// Tells in the job of whom the times were shifted, and by how much.
void TellClocks(TracedJob& job, const ClockShifts& shifts);

// Has each step begin at 0, with its first op, and tells how long it takes.
void TimeSteps(TracedJob& job, size_t threads);

}  // namespace lockstep::trace
