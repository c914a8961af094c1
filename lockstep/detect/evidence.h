// Findings in words: one observation a line, with its figures; of many ranks some (incident/some.h).
#pragma once

#include <string>
#include <vector>

#include "lockstep/detect/conduct.h"
#include "lockstep/incident/incident.h"

namespace lockstep::detect {

std::vector<incident::Suspect> Suspects(const Ranks& ranks);
// "rank 0 is in evaluate.py:33 in evaluate, 0.97 of a core", of some of them.
void TellPlaces(const Situation& job, const Ranks& ranks, std::vector<std::string>& evidence);
// "the job last stepped 2.3 s ago, its step takes 0.21 s"
std::string JobLine(const Situation& job);
// "3 ranks wait for the others"
std::string WaitLine(size_t count);
// "rank 2: state T for 2.1 s"
std::string HaltLine(const Situation& job, const RankView& view, Nanos since);
// A finding without evidence, not certain.
incident::Finding Open(incident::Syndrome syndrome, const Ranks& suspects, Nanos since);
// A finding, not yet certain, that began with the stall: where the suspects are, how many wait, how the job stands.
incident::Finding Describe(const Situation& job, incident::Syndrome syndrome, const Ranks& suspects);
// The same with nobody to suspect: where every rank is.
incident::Finding DescribeStall(const Situation& job);

}  // namespace lockstep::detect
