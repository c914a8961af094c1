#include "lockstep/plan/layout.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>

#include "lockstep/base/number.h"
#include "lockstep/plan/memory.h"
#include "lockstep/plan/schedule.h"

namespace lockstep::plan {
namespace {

struct LayoutKey {
  const char* name;
  int Workload::* member;
};
struct LayoutFlag {
  const char* name;
  bool Workload::* member;
};
constexpr LayoutFlag kLayoutFlags[] = {{"seq_parallel", &Workload::sequence_parallel},
                                       {"moe_gather", &Workload::gathers_routed}};
constexpr int kMostStages = 1 << 16;
constexpr LayoutKey kLayoutKeys[] = {
    {"tp", &Workload::tp},      {"pp", &Workload::pp},          {"dp", &Workload::dp},
    {"cp", &Workload::cp},      {"ep", &Workload::ep},          {"vp", &Workload::chunks},
    {"zero", &Workload::zero},  {"mbs", &Workload::microbatch}, {"moe_chunks", &Workload::moe_chunks},
    {"shard", &Workload::shard}};

std::optional<int> NumberOf(std::string_view text) {
  const std::optional<int> number = WholeNumber<int>(text);
  return number && *number >= 0 ? number : std::nullopt;
}

absl::Status TakeRecompute(const std::string& value, Workload& w) {
  w.recomputed_layers = 0;
  if (value.starts_with("full:")) {
    w.recomputed_layers = NumberOf(std::string_view(value).substr(5)).value_or(0);
    if (w.recomputed_layers < 1)
      return InvalidArgument("--layout: recompute is \"{}\"; expected full:N, N layers of each stage", value);
  } else if (value != "none" && value != "selective" && value != "full") {
    return InvalidArgument("--layout: recompute is \"{}\"; expected none, selective or full, or full:N", value);
  }
  w.recompute = value == "none" ? Recompute::kNone : value == "selective" ? Recompute::kSelective : Recompute::kFull;
  return absl::OkStatus();
}

absl::Status TakeOffload(const std::string& value, Workload& w) {
  const absl::StatusOr<Offload> offload = ParseOffload(value);
  if (!offload.ok()) return InvalidArgument("--layout: {}", Message(offload.status()));
  w.offload = *offload;
  return absl::OkStatus();
}

absl::Status TakeStages(const std::string& value, Workload& w) {
  w.stage_layers.clear();
  for (size_t at = 0; at <= value.size();) {
    const size_t end = std::min(value.find('+', at), value.size());
    const std::string_view part = std::string_view(value).substr(at, end - at);
    const size_t times = part.find('x');
    const std::optional<int> layers = NumberOf(part.substr(0, times));
    const std::optional<int> stages = times == std::string_view::npos ? 1 : NumberOf(part.substr(times + 1));
    if (!layers || !stages || *stages > kMostStages)
      return InvalidArgument("--layout: stages is \"{}\"; expected the layers of each, as 11+12+9 or 11+12x6+9", value);
    w.stage_layers.insert(w.stage_layers.end(), size_t(*stages), *layers);
    at = end + 1;
  }
  return absl::OkStatus();
}

absl::Status TakePair(const std::string& key, const std::string& value, Workload& w) {
  if (key == "recompute") return TakeRecompute(value, w);
  if (key == "offload") return TakeOffload(value, w);
  if (key == "stages") return TakeStages(value, w);
  if (key == "schedule") {
    const absl::StatusOr<Schedule> schedule = ParseSchedule(value);
    if (!schedule.ok()) return InvalidArgument("--layout: {}", Message(schedule.status()));
    w.schedule = *schedule;
    return absl::OkStatus();
  }
  std::vector<std::string> known = {"recompute", "offload", "stages", "schedule"};
  for (const LayoutFlag& one : kLayoutFlags) known.emplace_back(one.name);
  for (const LayoutKey& one : kLayoutKeys) known.emplace_back(one.name);
  if (std::ranges::find(known, key) == known.end())
    return InvalidArgument("--layout: there is no \"{}\"; expected {}", key, fmt::join(known, ", "));
  const std::optional<int> number = NumberOf(value);
  if (!number) return InvalidArgument("--layout: {} is \"{}\"; expected a whole number", key, value);
  for (const LayoutFlag& one : kLayoutFlags) {
    if (key != one.name) continue;
    if (*number > 1) return InvalidArgument("--layout: {} is {}; expected 0 or 1", key, *number);
    w.*one.member = *number == 1;
  }
  for (const LayoutKey& one : kLayoutKeys)
    if (key == one.name) w.*one.member = *number;
  return absl::OkStatus();
}

// "1, 2, 4 or 8": those that are allowed, of which 1 is one.
template <typename Allowed>
std::string Choices(int64_t most, const Allowed& allowed) {
  std::vector<std::string> all;
  for (int64_t one = 1; one <= most; ++one)
    if (allowed(one)) all.push_back(std::to_string(one));
  const std::string last = all.back();
  all.pop_back();
  return all.empty() ? last : fmt::format("{} or {}", fmt::join(all, ", "), last);
}
std::string Divisors(int64_t value, int64_t most) {
  return Choices(std::min(value, most), [&](int64_t one) { return value % one == 0; });
}

absl::Status CheckHeads(const Workload& w) {
  if (w.tp < 1 || w.CanSplitHeads(w.tp)) return absl::OkStatus();
  const std::string what =
      w.heads % w.tp != 0 ? fmt::format("{} heads", w.heads) : fmt::format("{} heads of keys and values", w.kv_heads);
  return InvalidArgument(
      "{} can't be split over tp {}: it can be {}", what, w.tp,
      Choices(std::min(w.heads, w.accelerators), [&](int64_t tp) { return w.CanSplitHeads(int(tp)); }));
}

constexpr std::pair<const char*, Offload> kOffloads[] = {{"none", {}},
                                                         {"optimizer", {.optimizer = true}},
                                                         {"activations", {.activations = true}},
                                                         {"optimizer+activations", {true, true}},
                                                         {"weights", {true, false, true}},
                                                         {"weights+activations", {true, true, true}}};

// "11+12x6+9".
std::string StagesText(const std::vector<int>& stages) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < stages.size();) {
    const auto end = std::find_if(stages.begin() + std::ptrdiff_t(at), stages.end(),
                                  [&](int layers) { return layers != stages[at]; });
    const size_t count = size_t(end - stages.begin()) - at;
    const std::string layers = std::to_string(stages[at]);
    if (count > 2)
      parts.push_back(fmt::format("{}x{}", layers, count));
    else
      parts.insert(parts.end(), count, layers);
    at += count;
  }
  return fmt::format("{}", fmt::join(parts, "+"));
}

}  // namespace

absl::StatusOr<Offload> ParseOffload(std::string_view name) {
  for (const auto& [known, offload] : kOffloads)
    if (name == known) return offload;
  std::vector<std::string_view> names;
  for (const auto& [known, offload] : kOffloads) names.push_back(known);
  return InvalidArgument("offload is \"{}\"; expected one of {}", name, fmt::join(names, ", "));
}

std::string OffloadText(Offload offload) {
  return std::ranges::find(kOffloads, offload, &std::pair<const char*, Offload>::second)->first;
}

absl::Status CheckOffload(const Workload& w, Offload offload) {
  const Machine& machine = w.machine;
  const bool is_known = machine.host_link > 0 && machine.host_memory > 0 && machine.host_bandwidth > 0;
  if (offload.any() && !is_known)
    return InvalidArgument("offload {}: host_link_gb_s, host_memory_gb and host_memory_gb_s of {} are not all known",
                           OffloadText(offload), machine.name);
  if (offload.weights && (w.training == Training::kLora || w.frozen.layers > 0 || w.frozen.embedding))
    return InvalidArgument("offload {}: not beside adapters and frozen parts", OffloadText(offload));
  return absl::OkStatus();
}

absl::Status TakeLayout(const std::string& text, Workload& w) {
  std::set<std::string> has;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string pair = text.substr(at, end - at);
    const size_t equals = pair.find('=');
    if (equals == std::string::npos)
      return InvalidArgument("--layout: \"{}\" is no KEY=VALUE; write it as tp=8,pp=4", pair);
    const std::string key = pair.substr(0, equals);
    if (!has.insert(key).second) return InvalidArgument("--layout: {} is there twice", key);
    LS_RETURN_IF_ERROR(TakePair(key, pair.substr(equals + 1), w));
    at = end + 1;
  }
  const int64_t others = int64_t{std::max(1, w.tp)} * std::max(1, w.pp) * std::max(1, w.cp);
  if (!has.contains("dp") && w.accelerators % others == 0) w.dp = static_cast<int>(w.accelerators / others);
  LS_RETURN_IF_ERROR(CheckHeads(w));
  LS_RETURN_IF_ERROR(w.Validate());
  if (!has.contains("seq_parallel")) w.sequence_parallel = w.CanSplitSequence() && !w.gathers_routed;
  if (std::ranges::adjacent_find(w.stage_layers, std::not_equal_to()) == w.stage_layers.end()) w.stage_layers.clear();
  if (w.shard == w.Replicas() && w.zero == 3) w.shard = 0;
  return CheckLayout(w);
}

absl::Status CheckExperts(const Workload& w) {
  if (w.experts == 0 || w.TokenRanks() % w.ep == 0) return absl::OkStatus();
  return InvalidArgument("ep {} must divide dp {} x cp {}{}: it can be {}", w.ep, w.dp, w.cp,
                         w.TokenShares() > 1 ? fmt::format(" x tp {}", w.tp) : "", Divisors(w.TokenRanks(), w.experts));
}

absl::Status CheckBatch(const Workload& w) {
  if (w.global_batch % (int64_t{w.dp} * w.microbatch) != 0)
    return InvalidArgument("a batch of {} can't be split over dp {} in microbatches of {}: mbs can be {}",
                           w.global_batch, w.dp, w.microbatch,
                           w.global_batch % w.dp == 0 ? Divisors(w.global_batch / w.dp, w.global_batch)
                                                      : fmt::format("none, for dp does not divide the batch"));
  return absl::OkStatus();
}

absl::Status CheckLayout(const Workload& w) {
  LS_RETURN_IF_ERROR(CheckHeads(w));
  if (w.stage_layers.empty() && w.layers % w.pp != 0)
    return InvalidArgument(
        "{} layers can't be split over pp {}: it can be {}, or say how many each stage has: "
        "stages=11+12x6+9",
        w.layers, w.pp, Divisors(w.layers, w.accelerators));
  if (w.chunks > 1 && !w.AllStagesAlike())
    return InvalidArgument("vp {}: stages that differ are not interleaved, found {}", w.chunks,
                           !w.stage_layers.empty() ? "stages " + StagesText(w.stage_layers)
                           : w.frozen.layers > 0   ? fmt::format("{} frozen layers", w.frozen.layers)
                                                   : "more layers with experts on some than on others");
  if (w.layers / w.pp % w.chunks != 0)
    return InvalidArgument("the {} layers of a stage can't be split over vp {}: it can be {}", w.layers / w.pp,
                           w.chunks, Divisors(w.layers / w.pp, w.layers));
  const int most_layers =
      w.stage_layers.empty() ? (w.layers + w.pp - 1) / w.pp : *std::ranges::max_element(w.stage_layers);
  if (w.recomputed_layers > most_layers)
    return InvalidArgument("recompute full:{}: a stage has {} layers", w.recomputed_layers, most_layers);
  if (w.recomputed_layers % w.chunks != 0)
    return InvalidArgument("recompute full:{}: it must be a multiple of vp {}, as many of each chunk",
                           w.recomputed_layers, w.chunks);
  LS_RETURN_IF_ERROR(CheckOffload(w, w.offload));
  if (w.offload.weights && !w.CanOffloadWeights(w.zero))
    return InvalidArgument("offload {}: it needs pp 1 and, of more than one replica, zero 3; found pp {}, zero {}",
                           OffloadText(w.offload), w.pp, w.zero);
  if (w.experts == 0 && w.ep > 1) return InvalidArgument("ep {}: the model has no experts", w.ep);
  LS_RETURN_IF_ERROR(CheckExperts(w));
  if (w.sequence_parallel && !w.CanSplitSequence())
    return InvalidArgument("seq_parallel 1: {} tokens can't be split over tp {} x cp {}", w.sequence, w.tp, w.cp);
  if (w.gathers_routed && (w.tp == 1 || w.ep == 1 || w.sequence_parallel))
    return InvalidArgument("moe_gather 1: it needs tp and ep of 2 or more, and seq_parallel 0; found {}, {} and {}",
                           w.tp, w.ep, w.sequence_parallel ? 1 : 0);
  if (w.shard > 0 && w.zero != 3) return InvalidArgument("shard {}: it needs zero 3, found {}", w.shard, w.zero);
  if (w.shard > 0 && w.Replicas() % w.shard != 0)
    return InvalidArgument("shard {} must divide dp {} x cp {}: it can be {}", w.shard, w.dp, w.cp,
                           Divisors(w.Replicas(), w.Replicas()));
  if (!w.CanShareExperts())
    return InvalidArgument("shard {}: it must divide ep {}, or ep it, so that a group has each expert equally often",
                           w.shard, w.ep);
  if (w.moe_chunks > kMostMoeChunks)
    return InvalidArgument("moe_chunks must be at most {}, found {}", kMostMoeChunks, w.moe_chunks);
  if (w.moe_chunks > 1 && w.ep == 1)
    return InvalidArgument("moe_chunks {}: only experts that are spread, ep 2 or more, exchange anything",
                           w.moe_chunks);
  if (w.cp > 1 && w.sequence % (2 * w.cp) != 0)
    return InvalidArgument("{} tokens of a sequence can't be split in 2 x cp {} pieces", w.sequence, w.cp);
  LS_RETURN_IF_ERROR(CheckBatch(w));
  if (w.zero > 3) return InvalidArgument("zero must be 0 to 3, found {}", w.zero);
  return CheckSchedule(w);
}

namespace {

std::string RecomputeText(const Workload& w) {
  if (w.recompute == Recompute::kSelective) return "selective";
  if (w.recompute == Recompute::kFull && w.recomputed_layers == 0) return "full";
  const int layers = RecomputedLayers(w);
  return layers == 0 ? "none" : fmt::format("full:{}", layers);
}

}  // namespace

std::string LayoutText(const Workload& w) {
  std::string text = fmt::format("tp {}, pp {}, dp {}", w.tp, w.pp, w.dp);
  if (w.cp > 1) text += fmt::format(", cp {}", w.cp);
  if (w.experts > 0) text += fmt::format(", ep {}", w.ep);
  if (w.moe_chunks > 1) text += fmt::format(", moe_chunks {}", w.moe_chunks);
  if (w.chunks > 1) text += fmt::format(", vp {}", w.chunks);
  if (w.schedule != Schedule::k1F1B) text += fmt::format(", schedule {}", ScheduleName(w.schedule));
  if (!w.stage_layers.empty()) text += ", stages " + StagesText(w.stage_layers);
  if (w.tp > 1 && !w.sequence_parallel) text += ", seq_parallel 0";
  if (w.gathers_routed) text += ", moe_gather 1";
  if (!w.flash && !w.keeps.unfused) text += ", attention unfused";
  if (!w.hides_tensor) text += ", tensor communication shown";
  if (!w.hides_data) text += ", data communication shown";
  if (!w.hides_transfers) text += ", transfers shown";
  text += fmt::format(", zero {}", w.zero);
  if (w.shard > 0) text += fmt::format(", shard {}", w.shard);
  text += fmt::format(", mbs {}, recompute {}", w.microbatch, RecomputeText(w));
  if (w.offload.any()) text += ", offload " + OffloadText(w.offload);
  if (w.precision != Precision::kBf16) text += w.precision == Precision::kFp8 ? ", fp8" : ", fp4";
  return text;
}

}  // namespace lockstep::plan
