#include "lockstep/trace/kineto_steps.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "lockstep/base/median.h"
#include "lockstep/trace/kineto_places.h"
#include "lockstep/trace/kineto_rings.h"

namespace lockstep::trace {
namespace {

int64_t OrderOf(const DeviceOp& op) { return op.launch_ns == kNoTime ? op.begin_ns : op.launch_ns; }

// [step number] of one rank. A trace without steps is one.
std::map<int64_t, RankStep> StepsOf(const KinetoRank& rank, uint64_t& outside) {
  std::map<int64_t, RankStep> steps;
  uint32_t last = kNoIndex;
  const auto ends_last = [&](uint32_t i) {
    if (last == kNoIndex || rank.ops[i].end_ns() > rank.ops[last].end_ns()) last = i;
  };
  for (uint32_t i = 0; i < rank.ops.size(); ++i) {
    const DeviceOp& op = rank.ops[i];
    int64_t number = 0;
    if (!rank.steps.empty()) {
      const auto behind = std::upper_bound(rank.steps.begin(), rank.steps.end(), OrderOf(op),
                                           [](int64_t time, const ProfilerStep& step) { return time < step.begin_ns; });
      const bool in_last =
          behind == rank.steps.end() && OrderOf(op) >= rank.steps.back().begin_ns + rank.steps.back().duration_ns;
      if (behind == rank.steps.begin() || in_last) {
        if (!in_last) ends_last(i);
        ++outside;
        continue;
      }
      number = std::prev(behind)->number;
    }
    (op.collective == kNoIndex ? steps[number].computes : steps[number].collectives).push_back(i);
  }
  for (auto& [number, step] : steps) {
    step.last_before = last;
    for (const auto* ops : {&step.computes, &step.collectives}) std::ranges::for_each(*ops, ends_last);
    std::stable_sort(step.computes.begin(), step.computes.end(),
                     [&](uint32_t a, uint32_t b) { return rank.ops[a].begin_ns < rank.ops[b].begin_ns; });
    std::stable_sort(step.collectives.begin(), step.collectives.end(),
                     [&](uint32_t a, uint32_t b) { return OrderOf(rank.ops[a]) < OrderOf(rank.ops[b]); });
  }
  return steps;
}

// What must agree for two steps, or two ranks, to be of one form: of each communication its name and kind of group, and
// of a transfer the rank's stage, or place in the group: stages of a pipeline do alike, but at different times. Sizes
// need not: tokens are routed to experts, and sequences are as long as they are, on each rank in each step otherwise.
using Form = std::vector<std::tuple<std::string, std::string, size_t, int64_t>>;

int64_t PlaceOf(int rank, const ProcessGroup& group) {
  const auto own = std::find(group.ranks.begin(), group.ranks.end(), rank);
  return own == group.ranks.end() ? rank : own - group.ranks.begin();
}

// Even or odd, as neighbours in a ring wait for each other; in one of an odd number the last two are neither.
int64_t PlaceInRing(int rank, const ProcessGroup& group) {
  const int64_t place = PlaceOf(rank, group), from_end = std::ssize(group.ranks) - place;
  return group.ranks.size() % 2 == 1 && from_end <= 2 ? 1 + from_end : place % 2;
}

// stage: -1: not told. described: with what the kinds of groups are called.
Form FormOf(const KinetoRank& rank, const RankStep& step, int stage, const std::vector<bool>& rings, bool described) {
  const ProcessGroup none;
  Form form;
  form.reserve(step.collectives.size());
  for (const uint32_t op : step.collectives) {
    const Collective& one = rank.collectives[rank.ops[op].collective];
    const ProcessGroup& group = one.group == kNoIndex ? none : rank.groups[one.group];
    form.emplace_back(one.name, described ? group.description : "", group.ranks.size(),
                      one.peer < 0                                ? -1
                      : one.group != kNoIndex && rings[one.group] ? PlaceInRing(rank.rank, group)
                      : stage >= 0                                ? stage
                                                                  : PlaceOf(rank.rank, group));
  }
  return form;
}

// rings: [rank][group].
std::optional<Pipelines> PipelinesOf(const std::vector<KinetoRank>& ranks, const std::vector<const RankStep*>& steps,
                                     const std::vector<std::vector<bool>>& rings) {
  std::vector<int> numbers;
  std::vector<Transfers> transfers(ranks.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const KinetoRank& one = ranks[rank];
    numbers.push_back(one.rank);
    std::vector<uint32_t> ops = steps[rank]->collectives;
    std::stable_sort(ops.begin(), ops.end(),
                     [&](uint32_t a, uint32_t b) { return one.ops[a].end_ns() < one.ops[b].end_ns(); });
    for (const uint32_t op : ops)
      if (const Collective& transfer = one.collectives[one.ops[op].collective];
          transfer.peer >= 0 && (transfer.group == kNoIndex || !rings[rank][transfer.group]))
        transfers[rank].push_back(&transfer);
  }
  return Pipelines::Find(numbers, transfers);
}

template <typename Value>
Value MostCommon(const std::vector<Value>& values) {
  std::map<Value, size_t> counts;
  for (const Value& value : values) ++counts[value];
  return std::max_element(counts.begin(), counts.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

// The steps of a role, and what they have in common.
class Role {
 public:
  void Add(const KinetoRank& rank, RankStep& step) { steps_.push_back({&rank, &step}); }

  // Also cuts the steps.
  RoleForm Find() {
    const auto& [first_rank, first_step] = steps_.front();
    RoleForm form;
    for (const uint32_t index : first_step->collectives) {
      const DeviceOp& op = first_rank->ops[index];
      form.names.push_back(first_rank->collectives[op.collective].name);
      form.streams.push_back(first_rank->streams[op.stream] == kHostStream ? kNoIndex : op.stream);
    }
    const bool on_host = std::count(form.streams.begin(), form.streams.end(), kNoIndex) == std::ssize(form.streams);
    if (on_host && first_rank->parts.empty()) host_.emplace(steps_);
    FindCuts(form);
    for (const auto& [rank, step] : steps_) CutStep(*rank, *step);
    NameParts(form);
    return form;
  }

 private:
  // By the first compute of each segment, in the usual step.
  void NameParts(RoleForm& form) const {
    const auto& [rank, step] = *usual_;
    if (rank->parts.empty()) return;
    for (size_t i = 0; i + 1 < step->cuts.size(); ++i) {
      const size_t first = step->cuts[i];
      const uint32_t part = first < step->cuts[i + 1] ? rank->ops[step->computes[first]].part : kNoIndex;
      form.parts.push_back(part == kNoIndex ? "" : rank->parts[part]);
    }
  }

  // Where compute is cut, in the usual step, and by what.
  struct Cut {
    size_t at;
    size_t collective;
    bool awaited;              // else its input is ready
    uint32_t part = kNoIndex;  // begins here; then the two above say nothing
  };

  // At the median over the steps of the most common length. The usual step is the first of them.
  Places UsualPlaces() {
    std::vector<size_t> lengths;
    lengths.reserve(steps_.size());
    for (const auto& [rank, step] : steps_) lengths.push_back(step->computes.size());
    usual_ = steps_.begin() + (std::find(lengths.begin(), lengths.end(), MostCommon(lengths)) - lengths.begin());
    const size_t count = steps_.front().step->collectives.size();
    std::vector<std::vector<size_t>> inputs(count), awaited(count), behind(count);
    for (const auto& [rank, step] : steps_) {
      if (step->computes.size() != UsualLength()) continue;
      const Places own = DevicePlaces(*rank, *step);
      for (size_t i = 0; i < count; ++i) {
        inputs[i].push_back(own.inputs[i]);
        if (own.awaited[i] != RoleForm::kNever) awaited[i].push_back(own.awaited[i]);
        if (own.behind[i] != RoleForm::kNever) behind[i].push_back(own.behind[i]);
      }
    }
    const std::vector<size_t> none(count, RoleForm::kNever);
    Places places{{}, none, none};
    for (size_t i = 0; i < count; ++i) {
      places.inputs.push_back(std::max(i == 0 ? 0 : places.inputs.back(), UpperMedian(inputs[i])));
      if (IsAwaited(awaited[i].size(), inputs[i].size()))
        places.awaited[i] = std::max(UpperMedian(awaited[i]), places.inputs[i]);
      if (IsAwaited(behind[i].size(), inputs[i].size())) places.behind[i] = MostCommon(behind[i]);
    }
    return places;
  }

  void FindCuts(RoleForm& form) {
    usual_ = steps_.begin();
    const Places places = host_ ? host_->In(*usual_->rank, *usual_->step) : UsualPlaces();
    for (size_t i = 0; i < form.names.size(); ++i) {
      AddCut({places.inputs[i], i, false});
      AddCut({places.awaited[i], i, true});
    }
    AddParts(*usual_->rank, *usual_->step);
    form.cuts = cuts_.size() + 2;
    std::map<size_t, size_t> places_of_cuts;
    for (const auto& [at, cut] : cuts_) places_of_cuts.emplace(at, places_of_cuts.size() + 1);
    const auto place_of = [&](size_t at) {
      if (at == 0 || at == RoleForm::kNever) return at;
      const auto found = places_of_cuts.find(at);
      return found == places_of_cuts.end() ? cuts_.size() + 1 : found->second;  // behind all of them: the end
    };
    for (size_t i = 0; i < form.names.size(); ++i) {
      form.input_cut.push_back(place_of(places.inputs[i]));
      form.awaited_cut.push_back(place_of(places.awaited[i]));
      form.behind.push_back(places.behind[i]);
    }
  }

  void AddParts(const KinetoRank& rank, const RankStep& step) {
    for (size_t i = 1; i < step.computes.size(); ++i) {
      const uint32_t part = rank.ops[step.computes[i]].part;
      if (part != kNoIndex && part != rank.ops[step.computes[i - 1]].part) AddCut({i, 0, false, part});
    }
  }

  static size_t BeginOf(uint32_t part, const KinetoRank& rank, const RankStep& step) {
    const auto first = std::find_if(step.computes.begin(), step.computes.end(),
                                    [&](uint32_t op) { return rank.ops[op].part == part; });
    return first == step.computes.end() ? RoleForm::kNever : static_cast<size_t>(first - step.computes.begin());
  }

  // Of several at one place the first.
  void AddCut(const Cut& cut) {
    if (cut.at > 0 && cut.at < UsualLength()) cuts_.emplace(cut.at, cut);
  }

  size_t UsualLength() const { return usual_->step->computes.size(); }

  // In a step of another length, and on a host in each, a cut is looked for by what makes it.
  void CutStep(const KinetoRank& rank, RankStep& step) const {
    const size_t count = step.computes.size();
    const bool usual = !host_ && count == UsualLength();
    const Places places = usual ? Places() : host_ ? host_->In(rank, step) : DevicePlaces(rank, step);
    step.cuts = {0};
    for (const auto& [place, cut] : cuts_) {
      size_t at = cut.at;
      if (!usual && cut.part != kNoIndex) {
        at = BeginOf(cut.part, rank, step);
      } else if (!usual) {
        at = (cut.awaited ? places.awaited : places.inputs)[cut.collective];
      }
      if (at == RoleForm::kNever) at = count - std::min(count, UsualLength() - cut.at);  // as far from the end
      step.cuts.push_back(std::clamp(at, step.cuts.back(), count));
    }
    step.cuts.push_back(count);
  }

  std::vector<StepOfRank> steps_;
  std::vector<StepOfRank>::const_iterator usual_;
  std::optional<HostPlaces> host_;  // without devices
  std::map<size_t, Cut> cuts_;      // by `at`
};

}  // namespace

absl::Status OrderAsOneJob(std::vector<KinetoRank>& ranks) {
  if (ranks.empty()) return InvalidArgument("no rank files");
  std::ranges::sort(ranks, {}, &KinetoRank::rank);
  const KinetoRank* told = nullptr;  // the first that tells of which job it is
  for (size_t i = 0; i < ranks.size(); ++i) {
    const KinetoRank& one = ranks[i];
    if (i > 0 && one.rank == ranks[i - 1].rank)
      return InvalidArgument("{} and {} are both of rank {}", ranks[i - 1].path, one.path, one.rank);
    if (one.world_size <= 0) continue;
    if (told == nullptr) told = &one;
    if (one.world_size != told->world_size || one.backend != told->backend)
      return InvalidArgument("{} and {} are of different jobs: {} ranks with \"{}\" and {} with \"{}\"", told->path,
                             one.path, told->world_size, told->backend, one.world_size, one.backend);
  }
  for (const KinetoRank& one : ranks)
    if (told != nullptr && one.rank >= told->world_size)
      return InvalidArgument("{}: rank {} of a job of {}", one.path, one.rank, told->world_size);
  return absl::OkStatus();
}

// "3 to 12"
static std::string SpanText(const std::map<int64_t, RankStep>& steps) {
  return steps.empty() ? "none" : fmt::format("{} to {}", steps.begin()->first, steps.rbegin()->first);
}

// Which ranks do alike, and in which steps all do as in most.
struct Forms {
  std::vector<size_t> role_of;  // [rank]
  size_t roles = 0;
  std::vector<bool> as_usual;  // [step]
};

static Forms FormsOf(const std::vector<KinetoRank>& ranks, const std::vector<int64_t>& numbers,
                     const std::vector<std::map<int64_t, RankStep>>& steps, const std::vector<std::vector<bool>>& rings,
                     const std::optional<Pipelines>& pipelines, bool described) {
  Forms found;
  found.as_usual.assign(numbers.size(), true);
  std::map<Form, size_t> roles;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    std::vector<Form> forms;
    forms.reserve(numbers.size());
    const int stage = pipelines ? pipelines->StageOf(rank) : -1;
    for (const int64_t number : numbers)
      forms.push_back(FormOf(ranks[rank], steps[rank].at(number), stage, rings[rank], described));
    const Form usual = MostCommon(forms);
    for (size_t i = 0; i < forms.size(); ++i)
      if (forms[i] != usual) found.as_usual[i] = false;
    found.role_of.push_back(roles.emplace(usual, roles.size()).first->second);
  }
  found.roles = roles.size();
  return found;
}

absl::StatusOr<KinetoSteps> FindSteps(const std::vector<KinetoRank>& ranks, const std::vector<StepRange>& wanted) {
  KinetoSteps found;
  uint64_t outside = 0;
  std::vector<std::map<int64_t, RankStep>> all;
  std::map<int64_t, size_t> seen;  // how many ranks have each step
  for (const KinetoRank& rank : ranks) {
    all.push_back(StepsOf(rank, outside));
    for (const auto& [number, step] : all.back())
      if (IsWanted(wanted, number)) ++seen[number];
  }
  std::vector<int64_t> common;
  for (const auto& [number, count] : seen)
    if (count == ranks.size()) common.push_back(number);
  if (common.empty() && !wanted.empty())
    return InvalidArgument("none of the steps of --steps is one that all {} ranks have", ranks.size());
  if (common.empty()) {
    std::string others;
    for (size_t rank = 1; rank < ranks.size() && others.empty(); ++rank)
      if (const std::string span = SpanText(all[rank]); span != SpanText(all[0]))
        others = fmt::format(": {} has {}, {} has {}", ranks[0].path, SpanText(all[0]), ranks[rank].path, span);
    return InvalidArgument("no step that all {} ranks have{}; expected traces of the same steps", ranks.size(), others);
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    if (std::ranges::any_of(seen, [&](const auto& step) { return !all[rank].contains(step.first); }))
      found.lacking.push_back(ranks[rank].rank);

  std::vector<const RankStep*> first;
  first.reserve(all.size());
  for (const auto& of_rank : all) first.push_back(&of_rank.at(common.front()));
  const std::vector<std::vector<bool>> rings = FindRings(ranks, first);
  found.pipelines = PipelinesOf(ranks, first, rings);
  Forms forms = FormsOf(ranks, common, all, rings, found.pipelines, true);
  // Where each group is called otherwise, no two ranks seem to do alike.
  if (ranks.size() > 1 && forms.roles == ranks.size())
    forms = FormsOf(ranks, common, all, rings, found.pipelines, false);
  found.role_of = std::move(forms.role_of);
  for (size_t i = 0; i < common.size(); ++i) {
    if (!forms.as_usual[i]) continue;
    found.numbers.push_back(common[i]);
    std::vector<RankStep>& step = found.ops.emplace_back();
    for (auto& of_rank : all) step.push_back(std::move(of_rank.at(common[i])));
  }
  if (found.numbers.empty())
    return InvalidArgument("in each of the {} steps some rank communicates otherwise than in most of its steps",
                           common.size());
  for (size_t role = 0; role < forms.roles; ++role) {
    Role steps;
    for (auto& step : found.ops)
      for (size_t rank = 0; rank < ranks.size(); ++rank)
        if (found.role_of[rank] == role) steps.Add(ranks[rank], step[rank]);
    found.roles.push_back(steps.Find());
  }
  Count(found.counters, "ops_outside_of_steps", outside);
  Count(found.counters, "steps_not_on_all_ranks", seen.size() - common.size());
  Count(found.counters, "steps_of_another_form", common.size() - found.numbers.size());
  return found;
}

}  // namespace lockstep::trace
