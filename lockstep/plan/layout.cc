#include "lockstep/plan/layout.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "lockstep/plan/memory.h"
#include "lockstep/plan/schedule.h"

namespace lockstep::plan {
namespace {

struct LayoutKey {
  const char* name;
  int Workload::* member;
};
constexpr LayoutKey kLayoutKeys[] = {
    {"tp", &Workload::tp}, {"pp", &Workload::pp},     {"dp", &Workload::dp},     {"cp", &Workload::cp},
    {"ep", &Workload::ep}, {"vp", &Workload::chunks}, {"zero", &Workload::zero}, {"mbs", &Workload::microbatch}};

std::optional<int> NumberOf(std::string_view text) {
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

absl::Status TakeRecompute(const std::string& value, Workload& w) {
  if (value != "none" && value != "selective" && value != "full")
    return InvalidArgument("--layout: recompute is \"{}\"; expected none, selective or full", value);
  w.recompute = value == "full" ? Recompute::kFull : value == "none" ? Recompute::kNone : Recompute::kSelective;
  return absl::OkStatus();
}

absl::Status TakeStages(const std::string& value, Workload& w) {
  w.stage_layers.clear();
  for (size_t at = 0; at <= value.size();) {
    const size_t end = std::min(value.find('+', at), value.size());
    const std::optional<int> layers = NumberOf(std::string_view(value).substr(at, end - at));
    if (!layers) return InvalidArgument("--layout: stages is \"{}\"; expected the layers of each, as 11+12+9", value);
    w.stage_layers.push_back(*layers);
    at = end + 1;
  }
  return absl::OkStatus();
}

absl::Status TakePair(const std::string& key, const std::string& value, Workload& w) {
  if (key == "recompute") return TakeRecompute(value, w);
  if (key == "stages") return TakeStages(value, w);
  if (key == "schedule") {
    const absl::StatusOr<Schedule> schedule = ParseSchedule(value);
    if (!schedule.ok()) return InvalidArgument("--layout: {}", Message(schedule.status()));
    w.schedule = *schedule;
    return absl::OkStatus();
  }
  std::vector<std::string> known = {"recompute", "stages", "schedule", "seq_parallel"};
  for (const LayoutKey& one : kLayoutKeys) known.emplace_back(one.name);
  if (std::ranges::find(known, key) == known.end())
    return InvalidArgument("--layout: there is no \"{}\"; expected {}", key, fmt::join(known, ", "));
  const std::optional<int> number = NumberOf(value);
  if (!number) return InvalidArgument("--layout: {} is \"{}\"; expected a whole number", key, value);
  if (key == "seq_parallel") w.sequence_parallel = *number == 1;
  for (const LayoutKey& one : kLayoutKeys)
    if (key == one.name) w.*one.member = *number;
  return absl::OkStatus();
}

// "1, 2, 4 or 8".
std::string Divisors(int64_t value, int64_t most) {
  std::vector<std::string> all;
  for (int64_t one = 1; one <= std::min(value, most); ++one)
    if (value % one == 0) all.push_back(std::to_string(one));
  const std::string last = all.back();
  all.pop_back();
  return all.empty() ? last : fmt::format("{} or {}", fmt::join(all, ", "), last);
}

absl::Status CheckHeads(const Workload& w) {
  if (w.tp < 1 || w.heads % w.tp == 0) return absl::OkStatus();
  return InvalidArgument("{} heads can't be split over tp {}: it can be {}", w.heads, w.tp,
                         Divisors(w.heads, w.accelerators));
}

}  // namespace

absl::Status TakeLayout(const std::string& text, Workload& w) {
  bool has_dp = false, has_sequence_parallel = false;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string pair = text.substr(at, end - at);
    const size_t equals = pair.find('=');
    if (equals == std::string::npos)
      return InvalidArgument("--layout: \"{}\" is no KEY=VALUE; write it as tp=8,pp=4", pair);
    const std::string key = pair.substr(0, equals);
    LS_RETURN_IF_ERROR(TakePair(key, pair.substr(equals + 1), w));
    has_dp = has_dp || key == "dp";
    has_sequence_parallel = has_sequence_parallel || key == "seq_parallel";
    at = end + 1;
  }
  const int64_t others = int64_t{std::max(1, w.tp)} * std::max(1, w.pp) * std::max(1, w.cp);
  if (!has_dp && w.accelerators % others == 0) w.dp = static_cast<int>(w.accelerators / others);
  if (!has_sequence_parallel) w.sequence_parallel = w.tp > 1;
  LS_RETURN_IF_ERROR(CheckHeads(w));
  LS_RETURN_IF_ERROR(w.Validate());
  return CheckLayout(w);
}

absl::Status CheckLayout(const Workload& w) {
  LS_RETURN_IF_ERROR(CheckHeads(w));
  if (w.stage_layers.empty() && w.layers % w.pp != 0)
    return InvalidArgument(
        "{} layers can't be split over pp {}: it can be {}, or say how many each stage has: "
        "stages=11+12+9",
        w.layers, w.pp, Divisors(w.layers, w.accelerators));
  if (w.chunks > 1 && !w.stage_layers.empty())
    return InvalidArgument("vp {}: stages that differ are not interleaved", w.chunks);
  if (w.layers / w.pp % w.chunks != 0)
    return InvalidArgument("the {} layers of a stage can't be split over vp {}: it can be {}", w.layers / w.pp,
                           w.chunks, Divisors(w.layers / w.pp, w.layers));
  if (w.experts == 0 && w.ep > 1) return InvalidArgument("ep {}: the model has no experts", w.ep);
  const int64_t replicas = int64_t{w.dp} * w.cp;
  if (replicas % w.ep != 0)
    return InvalidArgument("ep {} must divide dp {} x cp {}: it can be {}", w.ep, w.dp, w.cp,
                           Divisors(replicas, w.experts));
  if (w.cp > 1 && w.sequence % (2 * w.cp) != 0)
    return InvalidArgument("{} tokens of a sequence can't be split in 2 x cp {} pieces", w.sequence, w.cp);
  if (w.global_batch % (int64_t{w.dp} * w.microbatch) != 0)
    return InvalidArgument("a batch of {} can't be split over dp {} in microbatches of {}: mbs can be {}",
                           w.global_batch, w.dp, w.microbatch,
                           w.global_batch % w.dp == 0 ? Divisors(w.global_batch / w.dp, w.global_batch)
                                                      : fmt::format("none, for dp does not divide the batch"));
  if (w.zero > 3) return InvalidArgument("zero must be 0 to 3, found {}", w.zero);
  return CheckSchedule(w);
}

namespace {

const char* RecomputeText(const Workload& w) {
  if (w.recompute == Recompute::kFull) return "full";
  if (w.recompute == Recompute::kSelective) return "selective";
  return w.recompute == Recompute::kAsNeeded && RecomputedShare(w) > 0 ? "as needed" : "none";
}

}  // namespace

std::string LayoutText(const Workload& w) {
  std::string text = fmt::format("tp {}, pp {}, dp {}", w.tp, w.pp, w.dp);
  if (w.cp > 1) text += fmt::format(", cp {}", w.cp);
  if (w.experts > 0) text += fmt::format(", ep {}", w.ep);
  if (w.chunks > 1) text += fmt::format(", vp {}", w.chunks);
  if (w.schedule != Schedule::k1F1B) text += fmt::format(", schedule {}", ScheduleName(w.schedule));
  if (!w.stage_layers.empty()) text += fmt::format(", stages {}", fmt::join(w.stage_layers, "+"));
  if (w.tp > 1 && !w.sequence_parallel) text += ", seq_parallel 0";
  if (!w.flash && !w.keeps.unfused) text += ", attention unfused";
  if (!w.hides_tensor) text += ", tensor communication shown";
  if (!w.hides_data) text += ", data communication shown";
  if (!w.hides_transfers) text += ", transfers shown";
  return text + fmt::format(", zero {}, mbs {}, recompute {}", w.zero, w.microbatch, RecomputeText(w));
}

}  // namespace lockstep::plan
