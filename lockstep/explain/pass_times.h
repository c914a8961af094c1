// What the rules of compute do with passes: summaries over lanes, and other durations for a remedy.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/explain/passes.h"
#include "lockstep/explain/remedy.h"

namespace lockstep::explain {

using Lanes = std::vector<size_t>;

Lanes AllLanes(const trace::TracedJob& job);
std::string TimeText(double seconds);  // "4.2 ms", "1.30 s"
CauseSuspect WorkerSuspect(const trace::TracedJob& job, int dp, int stage);
// The workers, by dp and stage, with most pauses; of equal ones the lower rank.
std::vector<CauseSuspect> MostPaused(const trace::TracedJob& job, const std::map<std::pair<int, int>, size_t>& pauses);

// The median over lanes of how a worker does in a pass.
double Ratio(const Passes& passes, int pass, int stage, const Lanes& lanes);
// What an op takes of what is usual, in most of the lanes; 0: it is in none.
double Ratio(const Passes& passes, uint32_t op, const Lanes& lanes);
// How the lanes of a data-parallel rank vary in the first pass of the first stage, relative to what is usual; and those
// of most ranks.
double SpreadOfLanes(const Passes& passes, int dp);
double SpreadOfLanes(const Passes& passes);
// By how much the median of so many lanes may be off by chance: four standard deviations.
double ByChance(double spread, size_t lanes);

void Set(const Passes& passes, uint32_t op, size_t lane, double seconds, CellTimes& times);
// The durations of a stage's passes in some lanes.
void Divide(const Passes& passes, int pass, int stage, const Lanes& lanes, double ratio, CellTimes& times);
// Segments are long in their own ways: each is divided by its own ratio.
void DivideEach(const Passes& passes, int pass, int stage, const Lanes& lanes, CellTimes& times);

}  // namespace lockstep::explain
