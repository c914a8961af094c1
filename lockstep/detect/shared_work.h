// What groups of ranks take longer for than other groups do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "lockstep/detect/comm_rounds.h"

namespace lockstep::detect {

// Ranks that send to each other outside of collectives are one pipeline: by rank, any of its ranks.
std::map<int, int> PipelinesOf(const trace::CommLog& log);

// By communicator: whether its members are of different pipelines, each of another. Stages of one differ by design.
std::vector<bool> AreAlike(const trace::CommLog& log, const std::map<int, int>& pipelines);

// How many hosts have members of it.
size_t CountHosts(const trace::Communicator& communicator, const trace::CommLog& log);

// What the members of a collective took alike before it: nobody among them waited for it. But where each of them then
// meets members of other such groups, as tensor-parallel ranks of one host meet other replicas, those wait for all of
// them. Not among stages of a pipeline, which differ by design. Rounds come in the order of ranks (round_order.h): else
// what a rank took would count in a round that it came to before.
class SharedWork {
 public:
  // By communicator: whether its members are alike.
  explicit SharedWork(std::vector<bool> alike) : meets_(std::move(alike)) {}

  // Before this round its members were by themselves for at least `alone_ns`, all of them. Returns of each part by how
  // much longer than of the others what its groups took alike was, since the communicator's round before: ns. From now
  // on all are even. 0: that of the others, or not known.
  std::vector<int64_t> Add(const Round& round, int64_t alone_ns);
  // Hardly a round is lost. Else groups differ by what is lost of them.
  bool IsWhole() const;

 private:
  struct Then {
    int64_t sum = 0, place = 0;  // the latter: Round::place
  };
  using Thens = absl::flat_hash_map<uint32_t, Then>;
  struct OfRank {
    int64_t sum = 0;  // of what its groups took alike
    Thens then;       // at the newest round of a communicator
  };

  std::vector<int64_t> BeyondOf(const Round& round) const;

  std::vector<bool> meets_;  // by communicator: whether what its members took is compared
  absl::flat_hash_map<int, OfRank> of_ranks_;
  int64_t added_ = 0, lost_ = 0;  // parts of rounds
};

}  // namespace lockstep::detect
