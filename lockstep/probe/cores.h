// The processors this process may run on, and work pinned to them: a fault of one core shows only there.
//
//   OnEachCore(AllowedCores(), [&](size_t i) { rates[i] = Copy(parts[i]); });
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::probe {

std::vector<int> AllowedCores();
// Runs run(i) on cores[i], all at once, each in a thread of its own; returns when all have.
void OnEachCore(const std::vector<int>& cores, const std::function<void(size_t i)>& run);
// Bytes of the largest cache as the system tells it; 32 MiB where it doesn't.
uint64_t CacheBytes();
std::string ProcessorModel();  // "AMD EPYC 7763"
// "AMD EPYC 7763, 2 cores"
std::string ProcessorText();
std::string IsaText();  // "x86_64"

}  // namespace lockstep::probe
