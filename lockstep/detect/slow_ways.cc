#include "lockstep/detect/slow_ways.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "lockstep/detect/slow_blocks.h"

namespace lockstep::detect {
namespace {

// One end of ways: a port of a rank, a rank, or a node with all its ranks.
struct Place {
  int rank = -1, port = -1;  // -1: whichever
  std::string node;
  auto operator<=>(const Place&) const = default;
};

// Messages need credit, or a word that they come, which goes the other way: what is slow in one direction is so, if
// less, in the other.
struct Explanation {
  enum class Kind : uint8_t { kLink, kTransmit, kReceive, kBlock };
  Kind kind;
  Place place, other;  // other: of a link, which has no direction
  Block block{};

  std::string text() const;
  incident::Suspect suspect() const;
};

std::string NameOf(const Place& place) {
  if (!place.node.empty()) return place.node;
  return place.port < 0 ? std::to_string(place.rank) : fmt::format("{}:{}", place.rank, place.port);
}

std::string TextOf(const Place& place) {
  if (!place.node.empty()) return "node " + place.node;
  return place.port < 0 ? fmt::format("rank {}", place.rank)
                        : fmt::format("port {} of rank {}", place.port, place.rank);
}

// Of very many nodes, the first and the last.
std::string NameOf(const std::set<std::string>& nodes) {
  constexpr size_t kMostNamed = 32;
  if (nodes.size() <= kMostNamed) return fmt::format("{}", fmt::join(nodes, "+"));
  return fmt::format("{}+...+{} ({} nodes)", *nodes.begin(), *nodes.rbegin(), nodes.size());
}

std::string TextOf(const Block& block) {
  const std::string nodes = NameOf(block.nodes);
  if (block.crossing == Crossing::kBoth) return fmt::format("what lies between {} and all other nodes", nodes);
  return block.crossing == Crossing::kOut ? fmt::format("what leads from {} to all other nodes", nodes)
                                          : fmt::format("what leads from all other nodes to {}", nodes);
}

std::string Explanation::text() const {
  if (kind == Kind::kBlock) return TextOf(block);
  if (kind == Kind::kLink) return fmt::format("the link between {} and {}", TextOf(place), TextOf(other));
  return fmt::format("the {} side of {}", kind == Kind::kTransmit ? "transmit" : "receive", TextOf(place));
}

incident::Suspect Explanation::suspect() const {
  using incident::Suspect;
  if (kind == Kind::kBlock) return {Suspect::Kind::kBlock, NameOf(block.nodes)};
  if (kind == Kind::kLink) return {Suspect::Kind::kLink, NameOf(place) + "<->" + NameOf(other)};
  const auto level = !place.node.empty() ? Suspect::Kind::kNode
                     : place.port < 0    ? Suspect::Kind::kRank
                                         : Suspect::Kind::kNicPort;
  return {level, NameOf(place)};
}

// So many are no port's or node's doing, and to try all explanations would take long.
constexpr size_t kMostExplained = 64, kMostLines = 8;

std::string LineOf(const Way& way, const Slowness& slowness, bool several_ports) {
  return fmt::format(
      "rank {} to rank {}{}: a message takes {:.2f} ms, those of like ways {:.2f} ms; {:.1f} % of the time", way.from,
      way.to, several_ports ? fmt::format(" over port {}", way.port) : "", slowness.ns / 1e6, slowness.usual_ns / 1e6,
      100 * slowness.share);
}

incident::Finding OfAll(const Ways& ways) {
  incident::Finding finding;
  finding.syndrome = incident::Syndrome::kCommunicationSlow;
  finding.probe = "what these ways have in common: a switch, a spine, another job";
  finding.evidence = {fmt::format("{} of {} ways are slow", ways.slow.size(), ways.slow.size() + ways.fine.size())};
  for (const auto& [way, slowness] : ways.slow) {
    finding.price.share = std::max(finding.price.share, slowness.share);
    finding.price.at_least = finding.price.at_least || slowness.at_least;
    if (finding.evidence.size() <= kMostLines) finding.evidence.push_back(LineOf(way, slowness, true));
  }
  return finding;
}

class Explainer {
 public:
  Explainer(const Ways& ways, const std::map<int, std::string>& hosts) : ways_(ways), hosts_(hosts) {
    for (const auto& [way, slowness] : ways_.slow) Learn(way);
    for (const auto& [way, magnitude] : ways_.fine) Learn(way);
  }

  // By one block alone, however many ways there are.
  std::optional<incident::Finding> OfOneBlock() const {
    const std::vector<Explanation> blocks = Blocks();
    std::vector<Way> all;
    all.reserve(ways_.slow.size());
    for (const auto& [way, slowness] : ways_.slow) all.push_back(way);
    std::vector<Explanation> equal;
    for (const Explanation& block : blocks)
      if (std::all_of(all.begin(), all.end(), [&](const Way& way) { return Covers(block, way); }))
        equal.push_back(block);
    if (equal.empty()) return std::nullopt;
    return FindingOf(equal, all);
  }

  std::vector<incident::Finding> Run() {
    std::set<Way> left;
    for (const auto& [way, slowness] : ways_.slow) left.insert(way);
    std::vector<Explanation> possible = Possible();
    std::ranges::move(Blocks(), std::back_inserter(possible));
    std::vector<incident::Finding> findings;
    // Each time those that explain most of what is left, and equally good ones together.
    while (!left.empty()) {
      std::map<std::vector<Way>, std::vector<Explanation>> by_covered;
      for (const Explanation& one : possible) {
        std::vector<Way> covered;
        std::copy_if(left.begin(), left.end(), std::back_inserter(covered),
                     [&](const Way& way) { return Covers(one, way); });
        if (!covered.empty()) by_covered[covered].push_back(one);
      }
      const auto most = std::max_element(by_covered.begin(), by_covered.end(),
                                         [](const auto& a, const auto& b) { return a.first.size() < b.first.size(); });
      findings.push_back(FindingOf(most->second, most->first));
      for (const Way& way : most->first) left.erase(way);
    }
    return findings;
  }

 private:
  using Kind = Explanation::Kind;

  void Learn(const Way& way) {
    for (const int rank : {way.from, way.to}) {
      ports_[rank].insert(way.port);
      if (const auto host = hosts_.find(rank); host != hosts_.end()) ranks_[host->second].insert(rank);
    }
  }

  bool Is(const Place& place, int rank, uint8_t port) const {
    if (!place.node.empty()) {
      const auto host = hosts_.find(rank);
      return host != hosts_.end() && host->second == place.node;
    }
    return place.rank == rank && (place.port < 0 || place.port == port);
  }
  bool IsFrom(const Place& place, const Way& way) const { return Is(place, way.from, way.port); }
  bool IsTo(const Place& place, const Way& way) const { return Is(place, way.to, way.port); }
  bool IsBetween(const Explanation& link, const Way& way) const {
    return (IsFrom(link.place, way) && IsTo(link.other, way)) || (IsFrom(link.other, way) && IsTo(link.place, way));
  }

  std::vector<Explanation> Blocks() const {
    std::vector<Explanation> blocks;
    for (Block& block : FindBlocks(ways_, hosts_)) blocks.push_back({Kind::kBlock, {}, {}, std::move(block)});
    return blocks;
  }

  std::set<std::pair<std::string, std::string>> PairsOfNodes(const std::vector<Way>& ways) const {
    std::set<std::pair<std::string, std::string>> pairs;
    for (const Way& way : ways) pairs.insert(std::minmax(hosts_.at(way.from), hosts_.at(way.to)));
    return pairs;
  }

  // Ways that are slow by it.
  bool Covers(const Explanation& one, const Way& way) const {
    if (one.kind == Kind::kBlock) return one.block.Covers(hosts_.at(way.from), hosts_.at(way.to));
    return one.kind == Kind::kLink ? IsBetween(one, way) : IsFrom(one.place, way) || IsTo(one.place, way);
  }
  // Ways that can't be fine if this is so. A link may be slow in one direction.
  bool Concerns(const Explanation& one, const Way& way, const Way& slow) const {
    if (one.kind == Kind::kLink) return IsBetween(one, way) && IsFrom(one.place, way) == IsFrom(one.place, slow);
    return one.kind == Kind::kTransmit ? IsFrom(one.place, way) : IsTo(one.place, way);
  }

  // A port, where the rank has several; the rank; its node, where several ranks of it are known.
  std::vector<Place> PlacesOf(int rank, uint8_t port) const {
    std::vector<Place> places;
    if (ports_.at(rank).size() > 1) places.push_back({rank, port, ""});
    places.push_back({rank, -1, ""});
    if (const auto host = hosts_.find(rank); host != hosts_.end() && ranks_.at(host->second).size() > 1)
      places.push_back({-1, -1, host->second});
    return places;
  }

  std::vector<Explanation> Possible() const {
    std::map<std::tuple<Kind, Place, Place>, Explanation> all;
    const auto add = [&](Kind kind, const Place& place, const Place& other, const Way& slow) {
      const bool link = kind == Kind::kLink;  // which has no direction
      const Explanation wanted{kind, link ? std::min(place, other) : place, link ? std::max(place, other) : Place{}};
      const int magnitude = ways_.slow.at(slow).magnitude;
      const bool cleared = std::any_of(ways_.fine.begin(), ways_.fine.end(), [&](const auto& fine) {
        return Concerns(wanted, fine.first, slow) && ways_.Clears(fine.first, magnitude);
      });
      if (!cleared) all.try_emplace({kind, wanted.place, wanted.other}, wanted);
    };
    for (const auto& [way, slowness] : ways_.slow) {
      const std::vector<Place> from = PlacesOf(way.from, way.port), to = PlacesOf(way.to, way.port);
      for (const Place& place : from) add(Kind::kTransmit, place, {}, way);
      for (const Place& place : to) add(Kind::kReceive, place, {}, way);
      for (const Place& one : from)
        for (const Place& other : to)
          if (IsSameLevel(one, other)) add(Kind::kLink, one, other, way);
    }
    std::vector<Explanation> possible;
    possible.reserve(all.size());
    for (auto& [key, one] : all) possible.push_back(std::move(one));
    return WithoutCoarser(possible);
  }

  static bool IsSameLevel(const Place& a, const Place& b) {
    return a.node.empty() == b.node.empty() && (a.port < 0) == (b.port < 0);
  }

  // Of explanations of one kind that cover the same, the one that names the smallest place.
  std::vector<Explanation> WithoutCoarser(const std::vector<Explanation>& all) const {
    constexpr int kCoarsest = 2;
    const auto level = [](const Place& place) { return !place.node.empty() ? kCoarsest : place.port < 0 ? 1 : 0; };
    std::map<std::pair<Kind, std::vector<Way>>, int> finest;
    std::vector<int*> finest_of;  // each of `all`
    for (const Explanation& one : all) {
      std::vector<Way> covered;
      for (const auto& [way, slowness] : ways_.slow)
        if (Covers(one, way)) covered.push_back(way);
      int& known = finest.try_emplace({one.kind, std::move(covered)}, kCoarsest).first->second;
      known = std::min(known, level(one.place));
      finest_of.push_back(&known);
    }
    std::vector<Explanation> rest;
    for (size_t i = 0; i < all.size(); ++i)
      if (level(all[i].place) == *finest_of[i]) rest.push_back(all[i]);
    return rest;
  }

  incident::Finding FindingOf(const std::vector<Explanation>& equal, const std::vector<Way>& covered) const {
    incident::Finding finding;
    finding.syndrome = incident::Syndrome::kCommunicationSlow;
    finding.suspects = {equal.front().suspect()};
    std::string names = equal.front().text();
    for (size_t i = 1; i < equal.size(); ++i) {
      const incident::Suspect other = equal[i].suspect();
      const auto& known = finding.ambiguous_with;
      if (other != finding.suspects.front() && std::find(known.begin(), known.end(), other) == known.end())
        finding.ambiguous_with.push_back(other);
      names += (i + 1 == equal.size() ? " or " : ", ") + equal[i].text();
    }
    if (equal.back().kind == Kind::kBlock) TellOfBlock(covered, finding);
    finding.certain = finding.ambiguous_with.empty();
    for (const Way& way : covered) {
      const Slowness& slowness = ways_.slow.at(way);
      finding.price.share = std::max(finding.price.share, slowness.share);  // beside each other
      finding.price.at_least = finding.price.at_least || slowness.at_least;
      const bool several = ports_.at(way.from).size() > 1;
      finding.evidence.push_back(LineOf(way, slowness, several));
    }
    finding.evidence.push_back("which " + names + " would explain");
    if (!finding.certain && finding.probe.empty())
      finding.probe =
          fmt::format("messages between rank {0} and another rank than {1}, and between rank {1} and another than {0}",
                      covered.front().from, covered.front().to);
    return finding;
  }

  // Where only two links lead out of it, these may be slow each for itself.
  void TellOfBlock(const std::vector<Way>& covered, incident::Finding& finding) const {
    constexpr size_t kFew = 2;
    finding.probe = "messages between other nodes of both sides";
    const std::set<std::pair<std::string, std::string>> pairs = PairsOfNodes(covered);
    for (const auto& [one, other] : pairs)
      if (pairs.size() <= kFew) finding.ambiguous_with.push_back({incident::Suspect::Kind::kLink, one + "<->" + other});
  }

  const Ways& ways_;
  const std::map<int, std::string>& hosts_;
  std::map<int, std::set<uint8_t>> ports_;      // by rank
  std::map<std::string, std::set<int>> ranks_;  // that are known to communicate, by host
};

}  // namespace

std::vector<incident::Finding> ExplainSlowWays(const Ways& ways, const std::map<int, std::string>& hosts) {
  if (ways.slow.empty()) return {};
  Explainer explainer(ways, hosts);
  if (ways.slow.size() <= kMostExplained) return explainer.Run();
  return {explainer.OfOneBlock().value_or(OfAll(ways))};
}

}  // namespace lockstep::detect
