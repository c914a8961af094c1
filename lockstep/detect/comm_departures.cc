#include "lockstep/detect/comm_departures.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "lockstep/base/mix.h"

namespace lockstep::detect {
namespace {

using trace::CommOp;

// What a rank launched, in its order. `sums[i]` is of the kinds of the first i: the order of threads does not matter.
struct Program {
  std::vector<const CommOp*> ops;
  std::vector<uint32_t> kinds;
  std::vector<uint64_t> sums = {0};
};

// Of a program, what was launched between two ops of a communicator: [first, last).
struct Span {
  size_t first = 0, last = 0;
};
using Counts = std::map<uint32_t, int>;  // of a span, by kind

// A rank among those of a communicator: the places of its ops in its program, and the spans before, by their keys.
struct Member {
  int rank;
  const Program* program;
  std::vector<size_t> at;
  std::unordered_map<uint64_t, Span> seen;
  bool agreed = false;  // it launched something between two of them as all that are alike did

  int64_t first() const { return program->ops[at.front()]->sequence; }
  int64_t last() const { return program->ops[at.back()]->sequence; }
  // Before the communicator's op with that number; null: not all of it is told.
  std::optional<Span> Before(int64_t number) const {
    if (number <= first() || number > last()) return std::nullopt;
    const auto place = static_cast<size_t>(number - first());
    return Span{at[place - 1] + 1, at[place]};
  }
  // Behind all of the communicator's ops.
  Span Tail() const { return {at.back() + 1, program->ops.size()}; }
  // Alike of spans with as many ops of each kind, between ops of the same two kinds.
  uint64_t KeyOf(const Span& span) const {
    const uint64_t ends = Mix(uint64_t{program->kinds[span.first - 1]} << 32U | program->kinds[span.last]);
    return program->sums[span.last] - program->sums[span.first] + Mix(ends);
  }
  Counts CountsOf(const Span& span) const {
    Counts counts;
    for (size_t i = span.first; i < span.last; ++i) ++counts[program->kinds[i]];
    return counts;
  }
  // The tail is as a span begins.
  bool BeginsAlike(const Span& span) const {
    const Span tail = Tail();
    const auto kinds = program->kinds.begin();
    const auto place = [&](size_t i) { return kinds + static_cast<std::ptrdiff_t>(i); };
    return tail.last - tail.first <= span.last - span.first &&
           std::equal(place(tail.first), place(tail.last), place(span.first));
  }
  bool Has(uint64_t key) const { return seen.contains(key); }
};

bool IsWithin(const Counts& part, const Counts& whole) {
  return std::all_of(part.begin(), part.end(), [&](const auto& one) {
    const auto found = whole.find(one.first);
    return found != whole.end() && one.second <= found->second;
  });
}

class DepartureFinder {
 public:
  DepartureFinder(const trace::CommLog& log, const std::set<int>& ranks) : log_(log), ranks_(ranks) {
    ReadPrograms();
    for (const auto& [kind, communicators] : AlikeCommunicators()) Compare(MembersOf(communicators));
  }

  std::vector<Departure> Take() {
    std::vector<Departure> all;
    for (auto& [rank, departure] : first_) all.push_back(std::move(departure));
    return all;
  }

 private:
  using Class = std::vector<Member*>;  // alike so far

  void ReadPrograms() {
    std::map<int, Program> all;
    for (const CommOp& op : log_.ops)
      if (op.direction == trace::Direction::kCollective) all[op.rank].ops.push_back(&op);
    std::map<std::pair<Kind, uint32_t>, uint32_t> kinds;
    for (auto& [rank, program] : all) {
      std::stable_sort(program.ops.begin(), program.ops.end(),
                       [](const CommOp* a, const CommOp* b) { return a->order < b->order; });
      if (!IsWhole(program)) continue;
      for (const CommOp* op : program.ops) {
        const auto kind = kinds.emplace(std::pair(KindOf(*op), op->function), static_cast<uint32_t>(kinds.size()));
        program.kinds.push_back(kind.first->second);
        program.sums.push_back(program.sums.back() + Mix(kind.first->second + 1));
      }
      programs_.emplace(rank, std::move(program));
    }
  }

  // Numbers count launches: where one lacks, what was launched there is lost, or told of others alone.
  bool IsWhole(const Program& program) const {
    std::map<uint32_t, int64_t> newest;
    return std::all_of(program.ops.begin(), program.ops.end(), [&](const CommOp* op) {
      const auto [found, is_new] = newest.emplace(op->communicator, op->sequence);
      if (!is_new && op->sequence != ++found->second) return false;
      return log_.communicators[op->communicator].told_one_of == 1;
    });
  }

  using Kind = std::pair<std::string, size_t>;
  Kind KindOf(const CommOp& op) const {
    const trace::Communicator& in = log_.communicators[op.communicator];
    return {in.description, in.ranks.size()};
  }

  // Those of one description and size, unless a rank is in several: numbers of different ones don't go together.
  std::map<std::pair<Kind, uint32_t>, std::set<uint32_t>> AlikeCommunicators() const {
    std::map<Kind, std::set<uint32_t>> of_kind;
    std::set<Kind> several;
    for (const auto& [rank, program] : programs_) {
      std::map<Kind, uint32_t> mine;
      for (const CommOp* op : program.ops) {
        const Kind kind = KindOf(*op);
        of_kind[kind].insert(op->communicator);
        if (mine.emplace(kind, op->communicator).first->second != op->communicator) several.insert(kind);
      }
    }
    std::map<std::pair<Kind, uint32_t>, std::set<uint32_t>> alike;
    for (const auto& [kind, communicators] : of_kind)
      for (const uint32_t one : communicators) alike[{kind, several.contains(kind) ? one : 0}].insert(one);
    return alike;
  }

  std::vector<Member> MembersOf(const std::set<uint32_t>& communicators) const {
    std::vector<Member> members;
    for (const auto& [rank, program] : programs_) {
      Member member{rank, &program, {}, {}};
      for (size_t i = 0; i < program.ops.size(); ++i)
        if (communicators.contains(program.ops[i]->communicator)) member.at.push_back(i);
      if (!member.at.empty()) members.push_back(std::move(member));
    }
    return members;
  }

  void Compare(std::vector<Member> members) {
    if (members.size() < 2) return;
    int64_t first = INT64_MAX, last = 0;
    std::vector<Class> classes(1);
    for (Member& member : members) {
      first = std::min(first, member.first());
      last = std::max(last, member.last());
      classes.front().push_back(&member);
    }
    for (int64_t number = first + 1; number <= last; ++number) {
      std::vector<Class> next;
      for (const Class& alike : classes) Split(alike, number, next);
      classes = std::move(next);
    }
  }

  // By what each launched before the op with that number.
  void Split(const Class& alike, int64_t number, std::vector<Class>& next) {
    std::map<uint64_t, Class> by_key;
    Class untold, behind;
    for (Member* member : alike) {
      if (const std::optional<Span> span = member->Before(number))
        by_key[member->KeyOf(*span)].push_back(member);
      else if (member->first() >= number)
        untold.push_back(member);
      else if (member->last() + 1 == number)
        behind.push_back(member);
    }
    const auto usual = by_key.size() == 1 ? by_key.begin() : UsualOf(by_key);
    if (usual != by_key.end()) LookAtTails(behind, usual->second, number);
    const size_t before = next.size();
    for (const auto& [key, members] : by_key) {
      const bool departs = usual != by_key.end() && key != usual->first;
      for (Member* member : members) {
        if (departs && (member->Has(key) || member->Has(usual->first)))
          Tell(*member, *member->Before(number), usual->second, number);
        member->seen.emplace(key, *member->Before(number));
        const Span& span = member->seen.at(key);
        member->agreed = member->agreed || (by_key.size() == 1 && members.size() > 1 && span.first < span.last);
      }
      if (!departs) next.push_back(members);
    }
    // Of those nobody knows yet: they are taken to be like most.
    if (untold.empty()) return;
    if (next.size() == before) next.emplace_back();
    Class& most = *std::max_element(next.begin() + static_cast<std::ptrdiff_t>(before), next.end(),
                                    [](const Class& a, const Class& b) { return a.size() < b.size(); });
    most.insert(most.end(), untold.begin(), untold.end());
  }

  // What more did than all others together, or else what all had done before. End: neither.
  static std::map<uint64_t, Class>::iterator UsualOf(std::map<uint64_t, Class>& by_key) {
    size_t all = 0;
    for (const auto& [key, members] : by_key) all += members.size();
    auto usual = by_key.end();
    for (auto one = by_key.begin(); one != by_key.end(); ++one)
      if (2 * one->second.size() > all) return one;
    for (auto one = by_key.begin(); one != by_key.end(); ++one) {
      const bool known = std::ranges::all_of(by_key, [&](const auto& other) {
        return std::ranges::all_of(other.second, [&](const Member* member) {
          return member->Has(one->first) && (other.first == one->first || !member->Has(other.first));
        });
      });
      if (known) usual = one;
    }
    return usual;
  }

  // `behind` have not launched the op before which `others` launched the same, and may have launched a part of that.
  // Where one has launched more: the fewer depart, or of as many those that did not do what had been done before.
  void LookAtTails(Class behind, const Class& others, int64_t number) {
    const Span span = *others.front()->Before(number);
    const uint64_t key = others.front()->KeyOf(span);
    const Counts counts = others.front()->CountsOf(span);
    std::erase_if(behind, [&](Member* member) { return IsWithin(member->CountsOf(member->Tail()), counts); });
    const auto all_know = [&](const Class& some) {
      return std::ranges::all_of(some, [&](const Member* member) { return member->Has(key); });
    };
    const auto is_usual = [](const Member* member) {
      return std::ranges::any_of(member->seen, [&](const auto& one) { return member->BeginsAlike(one.second); });
    };
    const bool usual = std::ranges::all_of(behind, is_usual), known = all_know(behind);
    const bool fewer = behind.size()<others.size(), more = behind.size()> others.size();
    if (known && (fewer || (!more && all_know(others) && !usual)))
      for (const Member* member : behind) Tell(*member, member->Tail(), others, number);
    if (usual && !behind.empty() && (more || (!fewer && !known)))
      for (const Member* member : others) Tell(*member, span, behind, number);
  }

  void Tell(const Member& member, const Span& span, const Class& others, int64_t number) {
    if (!ranks_.contains(member.rank) || !member.agreed) return;
    const auto known = ends_.find(member.rank);
    if (known != ends_.end() && known->second <= span.last) return;
    ends_[member.rank] = span.last;
    Departure& one = first_[member.rank] = {member.rank, {}, nullptr, nullptr, {}};
    const auto place = static_cast<size_t>(number - member.first());
    one.from = member.program->ops[member.at[place - 1]];
    if (place < member.at.size()) one.to = member.program->ops[member.at[place]];
    for (const Member* other : others) one.others.push_back(other->rank);
    std::sort(one.others.begin(), one.others.end());
    const Member& other = *others.front();
    const Span theirs = other.Before(number).value_or(other.Tail());
    AddDifferences(member, span, other, theirs, one);
  }

  static void AddDifferences(const Member& member, const Span& span, const Member& other, const Span& theirs,
                             Departure& one) {
    // What is still open may have more to come.
    const bool is_open = one.to == nullptr, others_are = theirs.last == other.program->ops.size();
    std::map<uint32_t, std::pair<const CommOp*, int>> more;
    const auto count = [&](const Member& whose, const Span& of, int sign) {
      for (size_t i = of.first; i < of.last; ++i) {
        auto& [op, times] = more[whose.program->kinds[i]];
        op = whose.program->ops[i];
        times += sign;
      }
    };
    count(other, theirs, -1);
    count(member, span, 1);
    for (const auto& [kind, difference] : more)
      if (difference.second != 0 && !(is_open && difference.second < 0) && !(others_are && difference.second > 0))
        one.more.push_back(difference);
  }

  const trace::CommLog& log_;
  const std::set<int>& ranks_;
  std::map<int, Program> programs_;
  std::map<int, size_t> ends_;  // of the first departures, in the programs
  std::map<int, Departure> first_;
};

}  // namespace

std::vector<Departure> FindDepartures(const trace::CommLog& log, const std::set<int>& ranks) {
  return DepartureFinder(log, ranks).Take();
}

}  // namespace lockstep::detect
