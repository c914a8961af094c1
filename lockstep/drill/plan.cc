#include "lockstep/drill/plan.h"

#include <nlohmann/json.hpp>
#include <random>

#include "lockstep/base/file.h"
#include "lockstep/cluster/table_reader.h"

namespace lockstep::drill {
namespace {

using cluster::IntegerRange;
using cluster::Sign;
using cluster::TableReader;

void ReadRank(TableReader& in, const Ranks& ranks, Fault& fault) {
  std::string random;
  if (in.HoldsText("rank")) {
    in.OneOf("rank", {"random"}, random);
  } else {
    in.Integer("rank", {.least = ranks.first, .most = ranks.first + ranks.count - 1}, fault.rank);
    if (StrikesRank(fault.kind) && !fault.rank) in.Require({"rank"});
  }
}

void CheckOptions(TableReader& in, Kind kind) {
  for (const char* option : {"rank", "for_s", "share", "code", "dir", "margin_bytes"})
    if (in.Holds(option) && !Takes(kind, option))
      in.Fail(option, fmt::format("{} has no effect on {}", option, KindName(kind)));
}

// Of the fault itself, and not of one of its options.
void CheckKind(TableReader& in, const absl::Status& status) {
  if (!status.ok()) in.Fail("fault", "fault: " + Message(status));
}

void ReadKind(TableReader& in, const Ranks& ranks, Fault& fault) {
  std::string name;
  in.Require({"fault"});
  in.Text("fault", name);
  if (name.empty()) return;
  const absl::StatusOr<Kind> kind = KindFromName(name);
  CheckKind(in, kind.status());
  if (!kind.ok()) return;
  fault.kind = *kind;
  CheckOptions(in, *kind);
  CheckKind(in, CheckReach(*kind, ranks));
}

void ReadTime(TableReader& in, Planned& planned) {
  std::optional<Seconds> after;
  in.Number("after_s", Sign::kNotNegative, after);
  in.Integer("at_step", {.least = 0}, planned.at_step);
  if (after && planned.at_step) in.Fail("at_step", "at_step and after_s exclude each other: give one of them");
  planned.after = after.value_or(Seconds{});
}

void ReadPlanned(TableReader& in, const Ranks& ranks, Planned& planned) {
  Fault& fault = planned.fault;
  ReadKind(in, ranks, fault);
  ReadTime(in, planned);
  ReadRank(in, ranks, fault);
  in.Number("for_s", Sign::kPositive, fault.hold);
  in.Check(CheckHold(fault.hold));
  in.Integer("share", {.least = 1, .most = 99}, fault.share);
  in.Integer("code", {.least = 1, .most = 255}, fault.code);
  in.Text("dir", fault.directory);
  in.Integer("margin_bytes", {.least = 0}, fault.margin.value);
  CheckKind(in, CheckFault(fault));
}

}  // namespace

absl::Status CheckReach(Kind kind, const Ranks& ranks) {
  if (ranks.count > 0 || kind == Kind::kKillCoordinator) return absl::OkStatus();
  return InvalidArgument("this is the run of a coordinator without ranks: only {} can be drilled here, {} on a node",
                         KindName(Kind::kKillCoordinator), KindName(kind));
}

absl::StatusOr<Plan> ParsePlan(std::string_view text, const std::string& file, const Ranks& ranks) {
  LS_ASSIGN_OR_RETURN(const cluster::TomlValue root, cluster::ParseToml(text, file));
  Plan plan;
  TableReader in(root, file);
  in.Require({"fault"});
  in.Integer("seed", {.least = 0}, plan.seed);
  in.Tables("fault", [&](TableReader& inner) { ReadPlanned(inner, ranks, plan.faults.emplace_back()); });
  LS_RETURN_IF_ERROR(in.Finish());
  return plan;
}

absl::StatusOr<Plan> ReadPlan(const std::string& path, const Ranks& ranks) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParsePlan(text, path, ranks);
}

// The generator is fixed by the standard, the distributions are not: hence the remainder.
void DrawRanks(Plan& plan, const Ranks& ranks) {
  std::mt19937_64 random(plan.seed.value());
  for (Planned& planned : plan.faults) {
    if (!StrikesRank(planned.fault.kind) || planned.fault.rank) continue;
    planned.fault.rank = ranks.first + static_cast<int>(random() % static_cast<uint64_t>(ranks.count));
  }
}

Json ToJson(const Plan& plan) {
  Json faults = Json::array();
  for (const Planned& planned : plan.faults) {
    Json json = planned.at_step ? Json{{"at_step", *planned.at_step}} : Json{{"after_s", planned.after.value}};
    json.update(ToJson(planned.fault));
    faults.push_back(std::move(json));
  }
  return {{"seed", plan.seed ? Json(*plan.seed) : Json()}, {"faults", std::move(faults)}};
}

}  // namespace lockstep::drill
