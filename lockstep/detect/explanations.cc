#include "lockstep/detect/explanations.h"

#include <algorithm>
#include <cmath>

namespace lockstep::detect {
namespace {

constexpr double kRare = 1e-6;
constexpr double kLinksPerJob = 0.01;
constexpr size_t kMostBad = 8;  // of one group; more look like so many
const double kNegligible = std::log(1e-6);

double Held(double chance) { return std::clamp(chance, kRare, 1 - kRare); }

// What one group's runs say: log P[failures | b bad], and whether they speak for a bad machine.
struct Evidence {
  double log_chance[kMostBad + 1];
  double most;  // of any b, for a group that is faulty; else that of b = 0
  bool faulty = false;

  double At(int bad) const { return log_chance[std::min(static_cast<size_t>(bad), kMostBad)] - most; }
};

Evidence EvidenceOf(const TestedGroup& group, const ReplayOdds& odds) {
  Evidence evidence{};
  for (size_t bad = 0; bad <= kMostBad; ++bad) {
    const double well = (1 - Held(odds.false_alarm)) * std::pow(1 - Held(odds.reproduces), static_cast<double>(bad));
    evidence.log_chance[bad] = group.failures * std::log1p(-well) + (group.runs - group.failures) * std::log(well);
  }
  evidence.faulty = evidence.log_chance[1] > evidence.log_chance[0];
  evidence.most =
      evidence.faulty ? *std::max_element(evidence.log_chance, std::end(evidence.log_chance)) : evidence.log_chance[0];
  return evidence;
}

// Goes through the minimal explanations, by the first faulty group that is not yet accounted for. A machine that was
// tried for a group is left out behind it, so no set comes twice.
class Search {
 public:
  Search(int machines, size_t first_groups, const std::vector<TestedGroup>& groups, const ReplayOdds& odds)
      : groups_(groups),
        log_machine_(-std::log(machines)),
        log_apart_(std::log(kLinksPerJob / static_cast<double>(std::max<size_t>(first_groups, 1)))),
        groups_of_(static_cast<size_t>(machines)),
        left_out_(static_cast<size_t>(machines), 0),
        bad_in_(groups.size(), 0),
        accounted_(groups.size(), 0) {
    for (const TestedGroup& group : groups) evidence_.push_back(EvidenceOf(group, odds));
    for (size_t g = 0; g < groups.size(); ++g) {
      for (const int x : groups[g].machines) groups_of_[static_cast<size_t>(x)].push_back(g);
      if (evidence_[g].faulty) faulty_.push_back(g);
    }
    std::stable_sort(faulty_.begin(), faulty_.end(),
                     [&](size_t a, size_t b) { return groups[a].machines.size() < groups[b].machines.size(); });
    for (const size_t g : faulty_) candidates_.push_back(Candidates(g));
  }

  Explanations Run() {
    Visit(0);
    double sum = 0;
    std::erase_if(found_.list, [&](const Explanation& one) { return one.chance < best_ + kNegligible; });
    for (Explanation& one : found_.list) sum += one.chance = std::exp(one.chance - best_);
    for (Explanation& one : found_.list) one.chance /= sum;
    std::stable_sort(found_.list.begin(), found_.list.end(),
                     [](const Explanation& a, const Explanation& b) { return a.chance > b.chance; });
    return std::move(found_);
  }

 private:
  // The likeliest first: by what its groups say of each machine alone.
  Machines Candidates(size_t group) const {
    std::vector<std::pair<double, int>> scored;
    for (const int x : groups_[group].machines) {
      double score = 0;
      for (const size_t g : groups_of_[static_cast<size_t>(x)]) score += evidence_[g].At(1) - evidence_[g].At(0);
      scored.emplace_back(-score, x);
    }
    std::sort(scored.begin(), scored.end());
    Machines candidates;
    for (const auto& [score, x] : scored) candidates.push_back(x);
    return candidates;
  }

  // Of what is chosen so far; what is still to be chosen only lowers it.
  void Visit(double bound) {
    if (bound < best_ + kNegligible) return;
    if (++nodes_ > kMostNodes) {
      found_.complete = false;
      return;
    }
    for (size_t i = 0; i < faulty_.size(); ++i) {
      if (bad_in_[faulty_[i]] == 0 && accounted_[faulty_[i]] == 0) return Account(i, bound);
    }
    Keep(bound);
  }

  void Account(size_t index, double bound) {
    const size_t group = faulty_[index];
    Machines tried;
    for (const int x : candidates_[index]) {
      char& left_out = left_out_[static_cast<size_t>(x)];
      if (left_out) continue;
      Visit(bound + Choose(x));
      Unchoose(x);
      left_out = 1;
      tried.push_back(x);
    }
    if (groups_[group].machines.size() > 1)
      TryWithout(group, chosen_.apart, bound + log_apart_ + evidence_[group].At(1));
    TryWithout(group, chosen_.false_alarms, bound + evidence_[group].At(0));
    for (const int x : tried) left_out_[static_cast<size_t>(x)] = 0;
  }

  void TryWithout(size_t group, std::vector<size_t>& kind, double bound) {
    accounted_[group] = 1;
    kind.push_back(group);
    Visit(bound);
    kind.pop_back();
    accounted_[group] = 0;
  }

  double Choose(int x) {
    double change = log_machine_;
    for (const size_t g : groups_of_[static_cast<size_t>(x)]) {
      if (!evidence_[g].faulty) change += evidence_[g].At(bad_in_[g] + 1) - evidence_[g].At(bad_in_[g]);
      ++bad_in_[g];
    }
    chosen_.bad.push_back(x);
    return change;
  }

  void Unchoose(int x) {
    for (const size_t g : groups_of_[static_cast<size_t>(x)]) --bad_in_[g];
    chosen_.bad.pop_back();
  }

  void Keep(double bound) {
    Explanation one = chosen_;
    one.chance = bound;  // its logarithm, until Run scales it
    for (const size_t g : faulty_) {
      if (accounted_[g] == 0) one.chance += evidence_[g].At(bad_in_[g]);
    }
    std::sort(one.bad.begin(), one.bad.end());
    best_ = std::max(best_, one.chance);
    found_.list.push_back(std::move(one));
  }

  const std::vector<TestedGroup>& groups_;
  const double log_machine_, log_apart_;
  std::vector<Evidence> evidence_;              // by group
  std::vector<std::vector<size_t>> groups_of_;  // by machine
  std::vector<size_t> faulty_;                  // groups, the smallest first
  std::vector<Machines> candidates_;            // of each of them
  std::vector<char> left_out_;                  // by machine
  std::vector<int> bad_in_;                     // of the chosen machines, by group
  std::vector<char> accounted_;                 // by group: as a fault of its own or a false alarm
  Explanation chosen_;
  Explanations found_;
  double best_ = -1e300;
  int nodes_ = 0;
};

}  // namespace

Explanations Explain(int machines, size_t first_groups, const std::vector<TestedGroup>& groups,
                     const ReplayOdds& odds) {
  return Search(machines, first_groups, groups, odds).Run();
}

}  // namespace lockstep::detect
