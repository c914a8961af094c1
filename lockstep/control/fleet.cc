#include "lockstep/control/fleet.h"

#include <algorithm>
#include <limits>
#include <set>
#include <type_traits>

#include "lockstep/base/host.h"
#include "lockstep/control/diagnosis.h"

namespace lockstep::control {
namespace {

// The newest that all have; each list may be in any order.
template <typename Nodes, typename PointsOf>
std::optional<CheckpointId> NewestCommon(const Nodes& nodes, const PointsOf& points_of) {
  std::optional<CheckpointId> newest;
  for (const CheckpointId& point : points_of(nodes.front())) {
    const bool everywhere = std::all_of(nodes.begin(), nodes.end(), [&](const auto& node) {
      const auto& points = points_of(node);
      return std::find(points.begin(), points.end(), point) != points.end();
    });
    if (everywhere && (!newest || *newest < point)) newest = point;
  }
  return newest;
}

constexpr CheckpointId kNewest{EpochId(std::numeric_limits<uint64_t>::max()), std::numeric_limits<int64_t>::max()};

template <typename Said>
constexpr bool kHasEpoch = requires(const Said& said) { said.epoch; };
template <typename Said>
constexpr bool kHasProgress = requires(const Said& said) { said.progress; };

}  // namespace

template <typename Fact>
bool Fleet::All(Question question, const Fact& fact) const {
  size_t& lacks = lacks_[static_cast<size_t>(question)];
  const auto is_true_of = [&](size_t node) { return nodes_[node].vacant || fact(nodes_[node]); };
  if (lacks == kNobody) return true;
  const size_t before = lacks;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    lacks = (before + i) % nodes_.size();
    if (!is_true_of(lacks)) return false;
  }
  lacks = kNobody;
  return true;
}

bool Fleet::AllProbed(Rung rung) const {
  const bool all = All(Question::kProbed, [&](const Node& each) { return each.probed.contains(rung); });
  if (all) Unsay(Question::kProbed, 0);  // another rung is another question
  return all;
}

void Fleet::Begin(EpochId epoch, bool in_loop) {
  if (epoch <= epoch_) return;
  epoch_ = epoch;
  in_loop_ = in_loop;
  for (Node& node : nodes_) {
    const bool vacant = node.vacant;
    node = Node{};
    node.vacant = vacant;
  }
  lacks_.fill(0);
  holdings_.Begin(epoch);
  slowest_.Clear();
  just_away_.clear();
  questions_.clear();
  on_disk_.reset();
  on_disk_or_never_ = false;
  not_to_be_had_.clear();
  rejected_.clear();
}

Progress Fleet::progress() const {
  if (!in_loop_ && !All(Question::kProgress, [](const Node& node) { return node.progress.has_value(); })) return {};
  if (const std::optional<Progress> slowest = slowest_.Get()) return *slowest;
  Slowest all(nodes_.size());  // who is away is all that there is
  for (size_t node = 0; node < nodes_.size(); ++node) all.Set(node, nodes_[node].progress);
  return all.Get().value_or(Progress{});
}

void Fleet::Advance(Node& node, const Progress& progress) {
  if (progress.step_end.value == 0 || (node.progress && node.progress->step > progress.step)) return;
  const bool steps = node.progress && node.progress->step < progress.step;
  node.progress = progress;
  node.away = false;
  slowest_.Set(IndexOf(node), progress);
  if (!steps) return;
  for (const size_t away : std::exchange(just_away_, {}))
    if (nodes_[away].away) slowest_.Set(away, std::nullopt);
}

void Fleet::Hear(int node, const Samples& samples) {
  if (samples.epoch == epoch_) Advance(nodes_[static_cast<size_t>(node)], samples.progress);
}

void Fleet::Away(int node) {
  nodes_[static_cast<size_t>(node)].away = true;
  just_away_.push_back(static_cast<size_t>(node));
}

std::vector<EventBody> Fleet::Gone(int node) {
  const auto index = static_cast<size_t>(node);
  holdings_.Set(index, {});
  const std::optional<Progress> progress = nodes_[index].progress;  // where the job stood does not change
  nodes_[index] = Node{};
  nodes_[index].progress = progress;
  nodes_[index].away = true;
  lacks_.fill(index);
  slowest_.Set(index, std::nullopt);
  keeps_at_[index].reset();
  code_kept_[index] = -1;
  first_kept_[index] = {};
  return Hear(node, EpochStopped{epoch_});
}

std::vector<EventBody> Fleet::Vacate(int node) {
  std::vector<EventBody> events = Gone(node);
  nodes_[static_cast<size_t>(node)].vacant = true;
  for (const Rung rung : {Rung::kDiagnose, Rung::kReplay}) {
    const bool asked =
        std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& n) { return n.probed.contains(rung); });
    std::vector<int> unanswered;
    if (asked && AllProbed(rung)) events.emplace_back(Overdue(rung, unanswered));
  }
  return events;
}

std::vector<EventBody> Fleet::Hear(int node, const EventBody& said) {
  return std::visit(
      [&](const auto& body) -> Events {
        if constexpr (kHasEpoch<std::decay_t<decltype(body)>>) {
          if (body.epoch != epoch_) return {body};
        }
        return Take(nodes_[static_cast<size_t>(node)], body);
      },
      said);
}

Fleet::Events Fleet::Take(Node& node, const EpochSpawned& said) {
  if (std::exchange(node.spawned, true)) return {};
  return All(Question::kSpawned, [](const Node& each) { return each.spawned; }) ? Events{said} : Events{};
}

Fleet::Events Fleet::Take(Node& node, const EpochStopped& said) {
  node.stopped = true;
  node.bad_from = said.bad_from;
  if (!All(Question::kStopped, [](const Node& each) { return each.stopped; })) return {};
  EpochStopped all{said.epoch};
  for (const Node& each : nodes_)
    if (each.bad_from && (!all.bad_from || each.bad_from < all.bad_from)) all.bad_from = each.bad_from;
  return {all};
}

std::vector<int> Fleet::Unstopped() const {
  std::vector<int> unstopped;
  for (size_t node = 0; node < nodes_.size(); ++node)
    if (!nodes_[node].stopped) unstopped.push_back(static_cast<int>(node));
  return unstopped;
}

Fleet::Events Fleet::Take(Node& node, const LoopBegan& said) {
  if (node.loop) return {};
  node.loop = said;
  if (!All(Question::kLoop, [](const Node& each) { return each.loop.has_value(); })) return {};
  LoopBegan last = said;
  for (const Node& each : nodes_)
    if (each.loop) last.begin = std::max(last.begin, each.loop->begin);
  return {last};
}

Fleet::Events Fleet::Take(Node& node, const StacksKept& said) {
  if (!node.stacks) node.stacks = said.path;
  if (!All(Question::kStacks, [](const Node& each) { return each.stacks.has_value(); })) return {};
  StacksKept all{said.epoch, ""};
  for (const Node& each : nodes_) {
    if (!each.stacks || each.stacks->empty()) continue;
    all.path += (all.path.empty() ? "" : ", ") + *each.stacks;
  }
  return {all};
}

Fleet::Events Fleet::Take(Node& node, const Probed& said) {
  node.probed.try_emplace(said.rung, said);
  if (!AllProbed(said.rung)) return {};
  std::vector<int> unanswered;
  return {Overdue(said.rung, unanswered)};
}

// All that have copies are to have the same, or their ranks would run a mixture. Why they have not is not known.
Fleet::Events Fleet::TakeFirst(Node& node, const CodeKept& said) {
  if (std::exchange(first_kept_[IndexOf(node)], said) == said) return {};  // said again
  if (said.hash.empty()) return {said};
  CodeKept all{0, "", said.hash};
  size_t same = 0;
  for (size_t other = 0; other < first_kept_.size(); ++other) {
    const CodeKept& each = first_kept_[other];
    if (!each.hash.empty() && each.hash != said.hash)
      return {
          CodeKept{0, fmt::format("nodes {} and {} have different copies of it: their directories are not the same, "
                                  "or one was changed before its copy was taken",
                                  std::min(other, IndexOf(node)), std::max(other, IndexOf(node)))}};
    if (each.hash == said.hash) ++same;
    if (all.error.empty()) all.error = each.error;
  }
  return same == first_kept_.size() ? Events{all} : Events{};
}

Fleet::Events Fleet::Take(Node& node, const CodeKept& said) {
  if (said.version == 0) return TakeFirst(node, said);
  if (!said.error.empty()) return {said};
  code_kept_[IndexOf(node)] = said.version;
  const bool all = std::all_of(code_kept_.begin(), code_kept_.end(), [&](int kept) { return kept == said.version; });
  return all ? Events{said} : Events{};
}

Probed Fleet::Overdue(Rung rung, std::vector<int>& unanswered) const {
  Probed all{epoch_, rung};
  std::vector<std::string> reports;
  for (size_t node = 0; node < nodes_.size(); ++node) {
    const auto said = nodes_[node].probed.find(rung);
    if (said == nodes_[node].probed.end()) {
      if (nodes_[node].vacant) continue;
      unanswered.push_back(static_cast<int>(node));
      continue;
    }
    all.findings.insert(all.findings.end(), said->second.findings.begin(), said->second.findings.end());
    reports.insert(reports.end(), said->second.reports.begin(), said->second.reports.end());
  }
  const std::vector<incident::Finding> together = FindingsOfTests(reports);
  all.findings.insert(all.findings.end(), together.begin(), together.end());
  return all;
}

// Whatever number an agent has for itself: while nodes count anew that may still be the old one.
Fleet::Events Fleet::Take(Node& node, Alerted said) {
  said.node = static_cast<int>(IndexOf(node));
  return {said};
}

// The job is paused when all of it is.
Fleet::Events Fleet::Take(Node& node, JobPaused said) {
  if (std::exchange(node.paused, true)) return {};
  return All(Question::kPaused, [](const Node& each) { return each.paused; }) ? Events{said} : Events{};
}

Fleet::Events Fleet::Take(Node& node, JobContinued said) {
  const bool was = All(Question::kPaused, [](const Node& each) { return each.paused; });
  node.paused = false;
  Unsay(Question::kPaused, IndexOf(node));
  return was ? Events{said} : Events{};
}

// What is true of the job as soon as one node says it; only its progress is the job's.
template <typename Said>
Fleet::Events Fleet::Take(Node& node, Said said) {
  if constexpr (kHasProgress<Said>) {
    Advance(node, said.progress);
    said.progress = progress();
  }
  return {said};
}

// ---- where to begin anew: memory, the memory of keepers, the disk ----

std::vector<EventBody> Fleet::Hear(int node, const RestoreFound& found) {
  if (found.epoch.value() != epoch_.value() + 1) return {};
  const bool for_another = found.as.node != node || found.as.nodes != static_cast<int>(nodes_.size());
  if (found.as.nodes > 0 && for_another) return {};  // it was asked under another number, and is asked anew
  if (std::any_of(nodes_.begin(), nodes_.end(), [](const Node& each) { return each.vacant; })) return {};  // asked anew
  if (found.fetched) return HearFetched(node, found);
  if (found.not_above || on_disk_) return HearOnDisk(node, found);
  Note(node, found);
  return Choose(found.epoch);
}

void Fleet::Note(int node, const RestoreFound& found) {
  std::optional<RestoreFound>& known = nodes_[static_cast<size_t>(node)].found;
  if (known) return;
  known = found;
  rejected_.insert(rejected_.end(), found.rejected.begin(), found.rejected.end());
}

Fleet::Events Fleet::HearFetched(int index, const RestoreFound& found) {
  Node& node = nodes_[static_cast<size_t>(index)];
  if (!node.fetch || node.fetch->point != *found.fetched) return {};
  node.fetch.reset();
  rejected_.insert(rejected_.end(), found.rejected.begin(), found.rejected.end());
  if (found.points.empty()) {
    not_to_be_had_.insert({index, node.fetches_from, *found.fetched});
  } else {
    node.fetched = found.fetched;
  }
  return Choose(found.epoch);
}

Fleet::Events Fleet::HearOnDisk(int node, const RestoreFound& found) {
  if (!on_disk_ || found.not_above != on_disk_->not_above) return {};
  Note(node, found);
  if (!All(Question::kFound, [](const Node& each) { return each.found.has_value(); })) return {};
  auto common = NewestCommon(nodes_, [](const Node& each) { return each.found->points; });
  if (common && IsPoisoned(*common)) common.reset();  // on disk
  if (common) return {RestoreChosen{found.epoch, common, rejected_}};
  if (const std::string unfit = FoundUnfit(); !unfit.empty()) return {RestoreChosen{found.epoch, {}, rejected_, unfit}};
  if (AskOnDisk(found.epoch)) return {};
  const char* nothing = on_disk_or_never_
                            ? "a world of another size begins from a checkpoint on disk, which the script "
                              "cuts anew, and there is none (--checkpoint-dir)"
                            : "";
  return {RestoreChosen{found.epoch, {}, rejected_, nothing}};
}

// By the word of any node. Empty: none says so.
std::string Fleet::FoundUnfit() const {
  const auto unfit = std::ranges::find_if(nodes_, [](const Node& node) { return !node.found->unfit.empty(); });
  return unfit != nodes_.end() ? unfit->found->unfit : "";
}

bool Fleet::Has(const Node& node, const CheckpointId& point) const {
  const std::vector<CheckpointId>& points = node.found->points;
  return node.fetched == point || std::find(points.begin(), points.end(), point) != points.end();
}

std::optional<int> Fleet::KeptBy(int node, const CheckpointId& point) const {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const std::vector<KeptFor>& kept = nodes_[i].found->kept;
    const bool keeps = std::find(kept.begin(), kept.end(), KeptFor{node, point}) != kept.end();
    const int keeper = static_cast<int>(i);
    if (keeps && keeps_at_[i] && keeper != node && !not_to_be_had_.contains({node, keeper, point})) return keeper;
  }
  return std::nullopt;
}

bool Fleet::CanGather(const CheckpointId& point) const {
  if (IsPoisoned(point)) return false;
  for (size_t i = 0; i < nodes_.size(); ++i)
    if (!Has(nodes_[i], point) && !KeptBy(static_cast<int>(i), point)) return false;
  return true;
}

// The newest that can be gathered, once all have said what they hold. Asked again after every answer: then more is
// known.
Fleet::Events Fleet::Choose(EpochId next) {
  if (!All(Question::kFound, [](const Node& each) { return each.found.has_value(); })) return {};
  if (const std::string unfit = FoundUnfit(); !unfit.empty()) return {RestoreChosen{next, {}, rejected_, unfit}};
  if (IsAnotherWorld()) return ChooseReplica(next);
  std::set<CheckpointId> candidates;
  for (const Node& node : nodes_) {
    candidates.insert(node.found->points.begin(), node.found->points.end());
    for (const KeptFor& kept : node.found->kept) candidates.insert(kept.point);
  }
  const auto newest =
      std::find_if(candidates.rbegin(), candidates.rend(), [&](const CheckpointId& point) { return CanGather(point); });
  if (newest == candidates.rend()) {
    if (AskOnDisk(next)) return {};
    return {RestoreChosen{next, std::nullopt, rejected_}};
  }
  if (std::ranges::all_of(nodes_, [&](const Node& node) { return node.vacant || Has(node, *newest); }))
    return {RestoreChosen{next, *newest, rejected_}};
  Gather(next, *newest);
  return {};
}

void Fleet::Gather(EpochId next, const CheckpointId& point) {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    if (Has(node, point) || (node.fetch && node.fetch->point == point)) continue;
    const int keeper = *KeptBy(static_cast<int>(i), point);
    const KeepsAt& where = *keeps_at_[static_cast<size_t>(keeper)];
    Ask(static_cast<int>(i), keeper, FetchKept{next, point, where.host, where.port});
  }
}

void Fleet::Ask(int index, int keeper, const FetchKept& fetch) {
  Node& node = nodes_[static_cast<size_t>(index)];
  node.fetch = fetch;
  node.fetches_from = keeper;
  node.fetched.reset();  // it has room for one
  questions_.emplace_back(index, fetch);
}

// Neighbours by their numbers, so few that each has a share of the test's time.
std::vector<std::string> Fleet::RingOf(int node) const {
  constexpr size_t kLongest = 32;
  const size_t nodes = nodes_.size(), rings = (nodes + kLongest - 1) / kLongest;
  const size_t own = static_cast<size_t>(node) * rings / nodes;
  const auto first_of = [&](size_t of) { return (of * nodes + rings - 1) / rings; };
  std::vector<std::string> ring;
  for (size_t i = first_of(own); i < first_of(own + 1); ++i) {
    const std::optional<KeepsAt>& where = keeps_at_[i];
    if (!where || where->ring_port == 0) return {};  // the one that is missing would be named by its neighbours
    ring.push_back(EndpointText({where->host, where->ring_port}));
  }
  return ring.size() > 1 ? ring : std::vector<std::string>{};
}

Told Fleet::Asked(int node, const Command& command) const {
  if (!std::holds_alternative<ChooseRestore>(command)) return command;
  if (on_disk_) return *on_disk_;
  const std::optional<FetchKept>& fetch = nodes_[static_cast<size_t>(node)].fetch;
  return fetch ? Told(*fetch) : Told(command);
}

void Fleet::Hear(int node, const KeepsAt& where) { keeps_at_[static_cast<size_t>(node)] = where; }

std::optional<std::pair<int, KeepsAt>> Fleet::KeeperOf(int node) const {
  const int keeper = keepers_[static_cast<size_t>(node)];
  if (keeper < 0 || !keeps_at_[static_cast<size_t>(keeper)]) return std::nullopt;
  return std::pair(keeper, *keeps_at_[static_cast<size_t>(keeper)]);
}

std::vector<int> Fleet::WardsOf(int node) const {
  std::vector<int> wards;
  for (size_t i = 0; i < keepers_.size(); ++i)
    if (keepers_[i] == node) wards.push_back(static_cast<int>(i));
  return wards;
}

// All nodes see the same checkpoints on disk, but one may be damaged where it concerns some node alone: then none newer
// than what that node found is a choice. False: some node finds nothing.
bool Fleet::AskOnDisk(EpochId next) {
  CheckpointId bound = kNewest;
  for (const Node& node : nodes_) {
    if (!on_disk_) break;
    if (node.found->points.empty()) return false;
    bound = std::min(bound, node.found->points.front());
  }
  for (const CheckpointId& poison : poisoned_)
    if (on_disk_ && bound.epoch == poison.epoch) bound.step = std::min(bound.step, poison.step - 1);
  on_disk_ = ChooseOnDisk{next, bound};
  for (size_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i].found.reset();
    Unsay(Question::kFound, i);
    nodes_[i].fetch.reset();
    questions_.emplace_back(static_cast<int>(i), *on_disk_);
  }
  return true;
}

bool Fleet::IsPoisoned(const CheckpointId& point) const {
  return std::any_of(poisoned_.begin(), poisoned_.end(), [&](const CheckpointId& poison) {
    return point.epoch == poison.epoch && point.step >= poison.step;
  });
}

bool Fleet::Hear(int node, const Holding& holding) {
  return holding.epoch == epoch_ && holdings_.Set(static_cast<size_t>(node), holding);
}

}  // namespace lockstep::control
