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

  struct Compared {
    std::vector<int64_t> beyond_ns;  // of each part: by how much longer than usual; 0: not, or not known. Empty: it is
    int64_t usual_ns = 0;            // not compared. 0: nothing is told of what they took
  };
  // Before this round its members were by themselves for at least `alone_ns`, all of them. Returns what their groups
  // took alike since the communicator's round before; what was compared elsewhere meanwhile is no longer beyond. From
  // now on all are even.
  Compared Add(const Round& round, int64_t alone_ns);
  // Hardly a round is lost. Else groups differ by what is lost of them.
  bool IsWhole() const;

 private:
  struct OfRank {
    int64_t sum = 0;       // of what its groups took alike; what it took beyond others is taken out where they meet
    bool has_met = false;  // others, with whom it is even since
    absl::flat_hash_map<uint32_t, int64_t> places;  // of the newest round of a communicator: Round::place
  };

  Compared MakeEven(const Round& round);

  std::vector<bool> meets_;  // by communicator: whether what its members took is compared
  absl::flat_hash_map<int, OfRank> of_ranks_;
  absl::flat_hash_map<uint32_t, int64_t> even_at_;  // by communicator: the sum of all its members, at its newest round
  int64_t added_ = 0, lost_ = 0;                    // parts of rounds
};

}  // namespace lockstep::detect
