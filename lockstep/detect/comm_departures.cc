#include "lockstep/detect/comm_departures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <set>
#include <unordered_map>

#include "lockstep/base/mix.h"
#include "lockstep/detect/comm_text.h"

namespace lockstep::detect {
namespace {

using trace::CommOp;

// What a rank launched, in its order. `sums[i]` is of the kinds of the first i: the order of threads does not matter.
struct Program {
  std::vector<const CommOp*> ops;
  std::vector<uint32_t> kinds;
  std::vector<uint64_t> sums = {0};
  std::unordered_map<uint32_t, const CommOp*> first_of;  // by kind
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
  bool Told(int64_t number) const { return first() <= number && number <= last(); }
  // Where a number that is told is in the program.
  size_t PlaceOf(int64_t number) const { return at[static_cast<size_t>(number - first())]; }
  // Null: that number is not told.
  const CommOp* OpOf(int64_t number) const { return Told(number) ? program->ops[PlaceOf(number)] : nullptr; }
  // Before the communicator's op with that number; null: not all of it is told.
  std::optional<Span> Before(int64_t number) const {
    if (number <= first() || number > last()) return std::nullopt;
    return Span{PlaceOf(number - 1) + 1, PlaceOf(number)};
  }
  // Behind all of the communicator's ops.
  Span Tail() const { return {at.back() + 1, program->ops.size()}; }
  // What was launched between two numbers that are told: of as many ops of each kind the same.
  uint64_t SumOf(int64_t from, int64_t to) const {
    return program->sums[PlaceOf(to)] - program->sums[PlaceOf(from) + 1];
  }
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

// The programs of a log's ranks, and who can be compared.
class Programs {
 public:
  explicit Programs(const trace::CommLog& log) : log_(log) {
    NumberCommunicators();
    std::map<int, Program> all;
    for (const CommOp& op : log_.ops)
      if (op.direction == trace::Direction::kCollective) all[op.rank].ops.push_back(&op);
    for (auto& [rank, program] : all) {
      std::stable_sort(program.ops.begin(), program.ops.end(),
                       [](const CommOp* a, const CommOp* b) { return a->order < b->order; });
      if (!IsWhole(program)) continue;
      NumberOps(program);
      programs_.emplace(rank, std::move(program));
    }
  }

  // Of communicators of one description and size those whose numbers run together, by their first. Not of several that
  // a rank is in two of: numbers of different ones don't go together.
  std::vector<std::vector<Member>> AlikeMembers() const {
    std::map<std::pair<uint32_t, std::optional<uint32_t>>, std::vector<Member>> alike;
    const std::set<uint32_t> several = Several();
    for (const auto& [rank, program] : programs_)
      for (auto& [communicator, at] : PlacesOf(program)) {
        const uint32_t kind = kinds_[communicator];
        alike[{kind, several.contains(kind) ? std::optional(communicator) : std::nullopt}].push_back(
            {rank, &program, std::move(at), {}});
      }
    std::vector<std::vector<Member>> together;
    for (auto& [key, members] : alike) {
      std::ranges::stable_sort(members, {}, &Member::first);
      int64_t last = 0;
      for (Member& member : members) {
        const bool is_apart = &member == &members.front() || member.first() >= last;
        last = is_apart ? member.last() : std::max(last, member.last());
        if (is_apart) together.emplace_back();
        together.back().push_back(std::move(member));
      }
    }
    return together;
  }

 private:
  void NumberCommunicators() {
    std::map<std::pair<std::string, size_t>, uint32_t> numbers;
    for (const trace::Communicator& in : log_.communicators)
      kinds_.push_back(
          numbers.emplace(std::pair(in.description, in.ranks.size()), static_cast<uint32_t>(numbers.size()))
              .first->second);
  }

  void NumberOps(Program& program) {
    for (const CommOp* op : program.ops) {
      const auto kind =
          op_kinds_.emplace(std::pair(kinds_[op->communicator], op->function), static_cast<uint32_t>(op_kinds_.size()));
      program.kinds.push_back(kind.first->second);
      program.sums.push_back(program.sums.back() + Mix(kind.first->second + 1));
      program.first_of.emplace(kind.first->second, op);
    }
  }

  // Numbers count launches: where one lacks, what was launched there is lost, or told of others alone.
  bool IsWhole(const Program& program) const {
    std::map<uint32_t, int64_t> newest;
    return std::all_of(program.ops.begin(), program.ops.end(), [&](const CommOp* op) {
      const auto [found, is_new] = newest.emplace(op->communicator, op->sequence);
      if (!is_new && (op->sequence <= found->second || op->sequence - 1 != found->second)) return false;
      found->second = op->sequence;
      return log_.communicators[op->communicator].told_one_of == 1;
    });
  }

  static std::map<uint32_t, std::vector<size_t>> PlacesOf(const Program& program) {
    std::map<uint32_t, std::vector<size_t>> places;
    for (size_t i = 0; i < program.ops.size(); ++i) places[program.ops[i]->communicator].push_back(i);
    return places;
  }

  // Kinds of communicators of which a rank is in two.
  std::set<uint32_t> Several() const {
    std::set<uint32_t> several;
    for (const auto& [rank, program] : programs_) {
      std::map<uint32_t, uint32_t> mine;
      for (const CommOp* op : program.ops) {
        const uint32_t kind = kinds_[op->communicator];
        if (mine.emplace(kind, op->communicator).first->second != op->communicator) several.insert(kind);
      }
    }
    return several;
  }

  const trace::CommLog& log_;
  std::vector<uint32_t> kinds_;                                 // of communicators
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> op_kinds_;  // of a communicator's kind and a function
  std::map<int, Program> programs_;
};

// Of members whose numbers run together, by the first of these.
class Comparison {
 public:
  Comparison(std::vector<Member> members, Departures& found) : members_(std::move(members)), found_(found) {}

  void Run() {
    if (members_.size() < 2) return;
    int64_t last = members_.back().first();
    for (const Member& member : members_) last = std::max(last, member.last());
    std::vector<Class> classes(1);
    size_t home = 0, told = 0;  // of those of whom nothing is told yet: they are taken to be like most
    for (int64_t number = members_.front().first(); number < last;) {
      ++number;
      while (told < members_.size() && members_[told].first() < number)
        classes[home].members.push_back(&members_[told++]);
      std::vector<Class> next;
      size_t next_home = 0;
      for (size_t i = 0; i < classes.size(); ++i) {
        const size_t before = next.size();
        Split(classes[i], number, i == home ? members_.size() - told : 0, next);
        if (i != home) continue;
        if (next.size() == before) next.emplace_back();
        next_home = before;
        for (size_t k = before; k < next.size(); ++k)
          if (next[k].members.size() > next[next_home].members.size()) next_home = k;
      }
      classes = std::move(next);
      home = next_home;
    }
    for (const Parting& parting : partings_) found_[parting.member->rank].push_back(DepartureOf(parting));
  }

 private:
  using Others = std::shared_ptr<const Departure::Others>;
  using ByKey = std::map<uint64_t, std::vector<Member*>>;
  struct Parting {
    Member* member;
    const Member* other;
    int64_t number;  // before which it was
    Others others;
    bool made_good = false;
  };
  // Alike so far.
  struct Class {
    std::vector<Member*> members;
    size_t gone = 0;              // those that launched no more
    std::vector<size_t> parting;  // whose members were, until the number before
  };

  // By what each launched before the op with that number. `untold`: members of whom nothing is told yet.
  void Split(const Class& alike, int64_t number, size_t untold, std::vector<Class>& next) {
    if (alike.members.size() + alike.parting.size() + untold < 2) return;
    ByKey by_key;
    std::vector<Member*> behind;
    for (Member* member : alike.members) {
      if (const std::optional<Span> span = member->Before(number))
        by_key[member->KeyOf(*span)].push_back(member);
      else
        behind.push_back(member);
    }
    const size_t all = alike.members.size() + alike.gone + untold;
    const auto usual = by_key.size() == 1 ? by_key.begin() : UsualOf(by_key, all);
    Others others;  // of whom departs
    if (usual != by_key.end()) LookAtTails(behind, usual->second, number, all);
    const size_t before = partings_.size();
    for (const auto& [key, members] : by_key) {
      const bool departs = usual != by_key.end() && key != usual->first;
      for (Member* member : members) {
        if (departs && (member->Has(key) || member->Has(usual->first)))
          Tell(*member, usual->second, behind, number, others);
        const Span& span = member->seen.emplace(key, *member->Before(number)).first->second;
        member->agreed = member->agreed || (by_key.size() == 1 && members.size() > 1 && span.first < span.last);
      }
      if (departs) continue;
      next.push_back({members, alike.gone + behind.size(), {}});
      for (const size_t i : alike.parting) TakeBack(partings_[i], next.back().members, number);
    }
    if (usual != by_key.end())
      for (size_t i = before; i < partings_.size(); ++i) next.back().parting.push_back(i);
  }

  // Who has made good by now what it did otherwise before the number before is alike again.
  static void TakeBack(Parting& parting, std::vector<Member*>& members, int64_t number) {
    if (parting.made_good || !parting.member->Told(number)) return;
    const auto other = std::ranges::find_if(members, [&](const Member* member) { return member->Told(number - 2); });
    if (other == members.end() || (*other)->SumOf(number - 2, number) != parting.member->SumOf(number - 2, number))
      return;
    parting.made_good = true;
    members.push_back(parting.member);
  }

  // What more than half of `all` did, or else what all that came had done before. End: neither.
  static ByKey::iterator UsualOf(ByKey& by_key, size_t all) {
    for (auto one = by_key.begin(); one != by_key.end(); ++one)
      if (2 * one->second.size() > all) return one;
    return std::ranges::find_if(by_key, [&](const auto& one) {
      return std::ranges::all_of(by_key, [&](const auto& other) {
        return std::ranges::all_of(other.second, [&](const Member* member) {
          return member->Has(one.first) && (other.first == one.first || !member->Has(other.first));
        });
      });
    });
  }

  // `behind` have not launched the op before which `others` launched the same, and may have launched a part of that.
  // Where one has launched more: those depart with whom more than half of `all` don't go, or else those that did not do
  // what had been done before.
  void LookAtTails(std::vector<Member*> behind, const std::vector<Member*>& others, int64_t number, size_t all) {
    const Span span = *others.front()->Before(number);
    const uint64_t key = others.front()->KeyOf(span);
    const Counts counts = others.front()->CountsOf(span);
    std::erase_if(behind, [&](Member* member) { return IsWithin(member->CountsOf(member->Tail()), counts); });
    if (behind.empty()) return;
    const auto all_know = [&](const std::vector<Member*>& some) {
      return std::ranges::all_of(some, [&](const Member* member) { return member->Has(key); });
    };
    const auto is_usual = [](const Member* member) {
      return std::ranges::any_of(member->seen, [&](const auto& one) { return member->BeginsAlike(one.second); });
    };
    const bool usual = std::ranges::all_of(behind, is_usual), known = all_know(behind);
    Others of_behind, of_others;
    const bool fewer = 2 * others.size() > all, more = 2 * behind.size() > all;
    if (known && (fewer || (!more && all_know(others) && !usual)))
      for (Member* member : behind) Tell(*member, others, {}, number, of_behind);
    if (usual && (more || (!fewer && !known)))
      for (Member* member : others) Tell(*member, behind, {}, number, of_others);
  }

  // `list` is of the others, and of those behind, once there is one.
  void Tell(Member& member, const std::vector<Member*>& others, const std::vector<Member*>& behind, int64_t number,
            Others& list) {
    if (!member.agreed) return;
    if (list == nullptr) {
      Departure::Others all;
      for (const Member* other : others) all.ranks.push_back(other->rank);
      std::ranges::sort(all.ranks);
      for (const auto* some : {&others, &behind})
        for (const Member* other : *some) all.to.emplace(other->rank, other->OpOf(number));
      list = std::make_shared<const Departure::Others>(std::move(all));
    }
    partings_.push_back({&member, others.front(), number, list});
  }

  static Departure DepartureOf(const Parting& parting) {
    const Member &member = *parting.member, &other = *parting.other;
    return {member.rank,
            parting.others,
            member.OpOf(parting.number - 1),
            member.OpOf(parting.number),
            DifferencesOf(member, other, parting.number),
            parting.made_good};
  }

  static std::vector<std::pair<const CommOp*, int>> DifferencesOf(const Member& member, const Member& other,
                                                                  int64_t number) {
    std::map<uint32_t, int> more;  // by kind
    const CommOp *to = member.OpOf(number), *theirs = other.OpOf(number);
    const bool ends_differ = to != nullptr && theirs != nullptr && to->function != theirs->function;
    const auto count = [&](const Member& whose, int sign) {
      const Span span = whose.Before(number).value_or(whose.Tail());
      for (size_t i = span.first; i < span.last + (ends_differ ? 1 : 0); ++i) more[whose.program->kinds[i]] += sign;
    };
    count(other, -1);
    count(member, 1);
    std::vector<std::pair<const CommOp*, int>> differences;
    for (const auto& [kind, times] : more) {
      // What is still open may have more to come.
      if (times == 0 || (to == nullptr && times < 0) || (theirs == nullptr && times > 0)) continue;
      const auto mine = member.program->first_of.find(kind);
      differences.emplace_back(mine != member.program->first_of.end() ? mine->second : other.program->first_of.at(kind),
                               times);
    }
    return differences;
  }

  std::vector<Member> members_;
  Departures& found_;
  std::vector<Parting> partings_;
};

}  // namespace

Departures FindDepartures(const trace::CommLog& log) {
  const Programs programs(log);
  Departures found;
  for (std::vector<Member>& members : programs.AlikeMembers()) Comparison(std::move(members), found).Run();
  const auto end = [](const Departure& one) {
    return std::pair(one.to == nullptr ? std::numeric_limits<int64_t>::max() : one.to->order, one.from->order);
  };
  for (auto& [rank, departures] : found) std::ranges::stable_sort(departures, {}, end);
  return found;
}

const Departures& LazyDepartures::all() const {
  if (!all_) all_ = FindDepartures(log_);
  return *all_;
}

const Departure* LazyDepartures::OpenOf(int rank) const {
  const auto found = all().find(rank);
  if (found == all().end()) return nullptr;
  const auto open = std::ranges::find_if(found->second, [](const Departure& departure) {
    return departure.to == nullptr || departure.to->state != trace::OpState::kCompleted;
  });
  return open == found->second.end() ? nullptr : &*open;
}

std::vector<int> LazyDepartures::Open() const {
  std::vector<int> ranks;
  for (const auto& [rank, departures] : all())
    if (OpenOf(rank) != nullptr) ranks.push_back(rank);
  return ranks;
}

std::vector<std::string> LazyDepartures::TextsOf(const std::vector<int>& ranks) const {
  std::vector<std::string> lines;
  for (const int rank : ranks)
    if (const Departure* open = OpenOf(rank); open != nullptr && lines.size() < kMostLines)
      lines.push_back(TextOf(log_, *open));
  return lines;
}

std::string TextOf(const trace::CommLog& log, const Departure& departure) {
  const auto& [rank, others, from, to, more, made_good] = departure;
  const bool with_end = to != nullptr && std::ranges::any_of(more, [&](const auto& one) {
                          return one.first->communicator == to->communicator;
                        });
  const std::string where = to == nullptr ? fmt::format("after {}", NameOf(log, *from))
                            : with_end    ? fmt::format("after {}, up to {},", NameOf(log, *from), to->sequence)
                                          : fmt::format("between {} and {}", NameOf(log, *from), to->sequence);
  std::string what;
  for (size_t i = 0; i < std::min(kMostLines, more.size()); ++i) {
    const auto& [op, times] = more[i];
    what += fmt::format("{}{} {} of {} {}", i == 0 ? "" : ", ", std::abs(times), log.functions[op->function],
                        NameOf(log.communicators[op->communicator]), times < 0 ? "fewer" : "more");
  }
  return fmt::format("rank {} launched {} {} than {}, which had launched the same until then", rank, where, what,
                     RanksText(others->ranks));
}

}  // namespace lockstep::detect
