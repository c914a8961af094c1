#include "lockstep/detect/slow_blocks.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace lockstep::detect {
namespace {

using Node = size_t;
using Nodes = std::set<Node>;
using Pair = std::pair<Node, Node>;  // from, to

class BlockFinder {
 public:
  BlockFinder(const Ways& ways, const std::map<int, std::string>& hosts) {
    int least = std::numeric_limits<int>::max();
    for (const auto& [way, slowness] : ways.slow) {
      least = std::min(least, slowness.magnitude);
      slow_.insert(PairOf(way, hosts));
    }
    std::set<Pair> fine;
    for (const auto& [way, magnitude] : ways.fine) {
      const Pair pair = PairOf(way, hosts);
      if (pair.first != pair.second && ways.Clears(way, least)) fine.insert(pair);
    }
    next_.resize(names_.size());
    before_.resize(names_.size());
    for (const auto& [from, to] : fine) next_[from].push_back(to), before_[to].push_back(from);
  }

  std::vector<Block> Run() {
    if (unknown_) return {};
    const std::set<Nodes> joined = Joined();
    for (const Nodes& nodes : joined) Consider(nodes, Crossing::kBoth);
    for (const Crossing crossing : {Crossing::kOut, Crossing::kIn})
      for (const Nodes& nodes : Closed(crossing))
        if (!joined.contains(nodes)) Consider(nodes, crossing);
    std::vector<Block> blocks;
    for (auto& [covered, equal] : by_covered_)
      if (equal.front().nodes.size() > 1) std::ranges::copy(equal, std::back_inserter(blocks));
    return blocks;
  }

 private:
  Pair PairOf(const Way& way, const std::map<int, std::string>& hosts) {
    return {NodeOf(way.from, hosts), NodeOf(way.to, hosts)};
  }

  Node NodeOf(int rank, const std::map<int, std::string>& hosts) {
    const auto host = hosts.find(rank);
    if (host == hosts.end()) {
      unknown_ = true;
      return 0;
    }
    const auto [known, is_new] = numbers_.try_emplace(host->second, names_.size());
    if (is_new) names_.push_back(host->second);
    return known->second;
  }

  using Neighbours = std::vector<std::vector<Node>>;
  // Where one comes to from there, along all of these.
  static Nodes Reach(const Nodes& begin, const std::vector<const Neighbours*>& along) {
    Nodes seen = begin;
    std::vector<Node> left(begin.begin(), begin.end());
    while (!left.empty()) {
      const Node node = left.back();
      left.pop_back();
      for (const Neighbours* neighbours : along)
        for (const Node next : (*neighbours)[node])
          if (seen.insert(next).second) left.push_back(next);
    }
    return seen;
  }

  // By fine ways, in whichever direction.
  std::set<Nodes> Joined() const {
    std::set<Nodes> groups;
    Nodes told;
    for (Node node = 0; node < names_.size(); ++node) {
      if (told.contains(node)) continue;
      Nodes group = Reach({node}, {&next_, &before_});
      told.insert(group.begin(), group.end());
      groups.insert(std::move(group));
    }
    return groups;
  }

  // What no fine way leads out of (or, into): behind each slow way's begin (end) all that fine ways lead to from there
  // (lead there from), if its other end is not among them. What overlaps is one.
  std::vector<Nodes> Closed(Crossing crossing) const {
    const bool out = crossing == Crossing::kOut;
    const Neighbours& along = out ? next_ : before_;
    std::map<Node, Nodes> ends;  // of the slow ways from (to) a node, the others
    for (const auto& [from, to] : slow_) ends[out ? from : to].insert(out ? to : from);
    constexpr size_t kMostEnds = 64;
    if (ends.size() > kMostEnds) {  // all together or not at all: there are far too many for two faults
      Nodes all;
      for (const auto& [node, others] : ends) all.insert(node);
      return {Reach(all, {&along})};
    }
    std::vector<Nodes> closed;
    for (const auto& [node, others] : ends) {
      Nodes reached = Reach({node}, {&along});
      if (std::ranges::any_of(others, [&](Node other) { return reached.contains(other); })) continue;
      std::erase_if(closed, [&](Nodes& other) {
        const bool overlaps = std::ranges::any_of(other, [&](Node one) { return reached.contains(one); });
        if (overlaps) reached.merge(other);
        return overlaps;
      });
      closed.push_back(std::move(reached));
    }
    return closed;
  }

  void Consider(const Nodes& nodes, Crossing crossing) {
    Block block{{}, crossing};
    for (const Node node : nodes) block.nodes.insert(names_[node]);
    std::set<Pair> covered, links;
    for (const auto& [from, to] : slow_) {
      if (!block.Covers(names_[from], names_[to])) continue;
      covered.insert({from, to});
      links.insert(std::minmax(from, to));
    }
    if (links.size() < 2) return;
    std::vector<Block>& known = by_covered_[std::move(covered)];
    if (!known.empty() && block.nodes.size() > known.front().nodes.size()) return;
    if (!known.empty() && block.nodes.size() < known.front().nodes.size()) known.clear();
    if (std::ranges::none_of(known, [&](const Block& one) { return one.nodes == block.nodes; }))
      known.push_back(std::move(block));
  }

  std::map<std::string, Node> numbers_;
  std::vector<std::string> names_;
  bool unknown_ = false;  // the host of a rank
  std::set<Pair> slow_;
  Neighbours next_, before_;  // by fine ways
  std::map<std::set<Pair>, std::vector<Block>> by_covered_;
};

}  // namespace

std::vector<Block> FindBlocks(const Ways& ways, const std::map<int, std::string>& hosts) {
  return hosts.empty() ? std::vector<Block>() : BlockFinder(ways, hosts).Run();
}

}  // namespace lockstep::detect
