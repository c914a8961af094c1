#include "lockstep/plan/communication_kind.h"

#include <absl/strings/ascii.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "lockstep/trace/kineto_told.h"

namespace lockstep::plan {
namespace {

struct Mark {
  std::string_view text;  // within the group's name or description, in lower case
  StepPart part;
};
// As Megatron-LM and torchtitan call their groups; the first that is found counts.
constexpr Mark kMarks[] = {
    {"tensor_and", StepPart::kOther},       {"expert_data", StepPart::kData},   {"expert", StepPart::kExpertExchange},
    {"mesh_ep", StepPart::kExpertExchange}, {"data_parallel", StepPart::kData}, {"mesh_dp", StepPart::kData},
    {"context", StepPart::kContext},        {"mesh_cp", StepPart::kContext},    {"tensor", StepPart::kTensor},
    {"mesh_tp", StepPart::kTensor},         {"pipeline", StepPart::kPipeline},  {"mesh_pp", StepPart::kPipeline},
    {"embedding", StepPart::kPipeline},
};

std::string NameOf(const trace::ProcessGroup& group) {
  return absl::AsciiStrToLower(group.name + " " + group.description);
}

// As "mesh_dp_shard_tp" has "dp".
bool HasWord(std::string_view name, std::string_view word) {
  const auto ends = [&](size_t at) { return at >= name.size() || name[at] == '_' || name[at] == ' '; };
  for (size_t at = name.find(word); at != std::string_view::npos; at = name.find(word, at + 1))
    if ((at == 0 || ends(at - 1)) && ends(at + word.size())) return true;
  return false;
}

// Of a flattened mesh, of several dimensions. Context and data parallelism count as one: gradients are of both.
bool IsFlattened(std::string_view name) {
  return HasWord(name, "mesh") &&
         int{HasWord(name, "tp")} + int{HasWord(name, "pp")} + int{HasWord(name, "dp") || HasWord(name, "cp")} > 1;
}

std::optional<StepPart> ByName(const trace::ProcessGroup& group) {
  const std::string name = NameOf(group);
  if (IsFlattened(name)) return StepPart::kOther;
  for (const Mark& mark : kMarks)
    if (name.find(mark.text) != std::string::npos) return mark.part;
  return std::nullopt;
}

// Along which dimensions the ranks of a group differ.
struct Varying {
  bool tp = false, cp = false, dp = false, pp = false;
};
Varying VaryingOf(const std::vector<int>& ranks, const Workload& w) {
  Varying varying;
  const auto place = [&](int rank) {
    return std::array{rank % w.tp, rank / w.tp % w.cp, rank / w.tp / w.cp % w.dp, rank / w.tp / w.cp / w.dp};
  };
  const auto first = place(ranks.front());
  for (const int rank : ranks) {
    const auto own = place(rank);
    varying.tp |= own[0] != first[0];
    varying.cp |= own[1] != first[1];
    varying.dp |= own[2] != first[2];
    varying.pp |= own[3] != first[3];
  }
  return varying;
}

StepPart ByRanks(const Varying& varying) {
  const int kinds = int{varying.tp} + int{varying.cp || varying.dp} + int{varying.pp};
  if (kinds != 1) return StepPart::kOther;
  if (varying.tp) return StepPart::kTensor;
  if (varying.pp) return StepPart::kPipeline;
  return varying.dp ? StepPart::kData : StepPart::kContext;
}

// Where nothing tells the group.
StepPart ByLayout(bool is_transfer, const Workload& w) {
  if (is_transfer) return w.pp > 1 ? StepPart::kPipeline : w.cp > 1 ? StepPart::kContext : StepPart::kOther;
  const bool replicas = w.dp * w.cp > 1;
  if (w.tp > 1 && !replicas) return StepPart::kTensor;
  return replicas && w.tp == 1 ? StepPart::kData : StepPart::kOther;
}

}  // namespace

bool FitsLayout(const trace::ProcessGroup& group, const Workload& w) {
  if (group.ranks.empty() || w.ep > 1) return true;
  std::set<int> tp, replicas, pp;
  for (const int rank : group.ranks) {
    tp.insert(rank % w.tp);
    replicas.insert(rank / w.tp % (w.cp * w.dp));
    pp.insert(rank / w.tp / w.cp / w.dp);
  }
  const auto whole = [](const std::set<int>& places, int all) {
    return places.size() == 1 || std::cmp_equal(places.size(), all);
  };
  if (!whole(tp, w.tp)) return false;
  const bool one_dimension = int{tp.size() > 1} + int{replicas.size() > 1} + int{pp.size() > 1} <= 1;
  return one_dimension || (whole(replicas, w.cp * w.dp) && whole(pp, w.pp) &&
                           group.ranks.size() == tp.size() * replicas.size() * pp.size());
}

absl::Status CheckGroup(const trace::ProcessGroup& group, const Workload& w) {
  const auto size = static_cast<int>(group.ranks.size());
  const std::optional<StepPart> named = ByName(group);
  const std::string name = NameOf(group);
  if (size == 0 || !named || name.find("embedding") != std::string::npos) return absl::OkStatus();
  // Experts' replicas are as many as the layout of the experts leaves.
  if (w.ep > 1 && (name.find("expert") != std::string::npos || HasWord(name, "ep"))) return absl::OkStatus();
  const auto refuse = [&](std::string_view dimension, int own) {
    return InvalidArgument(
        "its group \"{}\" has {} ranks, but the layout has {}={}; expected a trace of a job in this layout",
        group.description.empty() ? group.name : group.description, size, dimension, own);
  };
  if (*named == StepPart::kTensor && size != w.tp) return refuse("tp", w.tp);
  if (*named == StepPart::kPipeline && size != w.pp) return refuse("pp", w.pp);
  // Context and data parallelism may have groups within groups.
  if (*named == StepPart::kContext && w.cp % size != 0) return refuse("cp", w.cp);
  if (*named == StepPart::kData && w.dp * w.cp % size != 0) return refuse("dp", w.dp);
  return absl::OkStatus();
}

CommunicationKind KindOfCommunication(const trace::Collective& collective, const trace::ProcessGroup* group,
                                      const Workload& w) {
  const bool is_transfer = collective.peer >= 0 || trace::IsTransferKernel(collective.name);
  if (collective.name.starts_with("all_to_all") || collective.name.starts_with("alltoall"))
    return {w.ep > 1 ? StepPart::kExpertExchange : w.cp > 1 ? StepPart::kContext : StepPart::kOther, false};
  CommunicationKind kind;
  const bool has_ranks = group != nullptr && !group->ranks.empty();
  const std::optional<StepPart> named = group == nullptr ? std::nullopt : ByName(*group);
  if (has_ranks) kind.spans_stages = VaryingOf(group->ranks, w).pp;
  // Of a group of several kinds, as the default one may be, a transfer tells more.
  kind.part = named         ? *named
              : is_transfer ? ByLayout(true, w)
              : has_ranks   ? ByRanks(VaryingOf(group->ranks, w))
                            : ByLayout(false, w);
  kind.spans_stages |= kind.part == StepPart::kPipeline;
  return kind;
}

}  // namespace lockstep::plan
