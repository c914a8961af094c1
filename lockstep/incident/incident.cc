#include "lockstep/incident/incident.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lockstep/base/check.h"
#include "lockstep/base/number.h"
#include "lockstep/base/wall_time.h"
#include "lockstep/incident/fields.h"
#include "lockstep/incident/rank_ranges.h"
#include "lockstep/incident/some.h"

namespace lockstep::incident {
namespace {

struct SyndromeText {
  const char* name;
  const char* predicate;  // completes "rank 2 ..."
};
constexpr std::array<SyndromeText, kSyndromeCount> kSyndromes = {{
    {"crash", "was killed by a signal"},
    {"exit", "ended"},
    {"stopped", "was stopped (state T) while others wait"},
    {"frozen", "was frozen (cgroup freezer) while others wait"},
    {"not_entered", "is outside the collective in which the others wait"},
    {"spinning", "is busy without progress while others wait"},
    {"desynchronised", "waits in another collective than the others"},
    {"stalled", "makes no progress"},
    {"corrupt_checkpoint", "holds a corrupt checkpoint"},
    {"watcher_lost", "was gone"},
    {"communication_hang", "does not get out of a collective"},
    {"non_communication_hang", "has not entered the collective in which the others wait"},
    {"mismatched", "called another collective than the others"},
    {"deadlock", "make ranks wait for each other in a circle"},
    {"communication_slow", "is slow to pass messages on"},
    {"non_communication_slow", "is slow, and the others wait for it"},
    {"job_slow", "has become slower, all ranks alike"},
    {"node_lost", "is lost, and its ranks with it"},
    {"machine_fault", "has a broken machine"},
    {"network_fault", "has trouble with its network"},
    {"nan", "has a loss that is no number any more"},
    {"update", "was asked for"},
    {"data_slow", "waits for its data"},
    {"plan_drift", "does not keep to its plan"},
}};
constexpr std::array<const char*, 8> kActions = {"evict",  "restart",    "rollback", "hot_update",
                                                 "replan", "checkpoint", "stop",     "note"};
constexpr std::array<const char*, 6> kSuspectKinds = {"rank", "node", "nic_port", "link", "software", "block"};

// Software speaks for itself ("train.py:41 in forward"); everything else needs its kind to be understood.
std::string SuspectText(const Suspect& suspect) {
  if (suspect.kind == Suspect::Kind::kSoftware) return suspect.name;
  return fmt::format("{} {}", kSuspectKinds[static_cast<size_t>(suspect.kind)], suspect.name);
}

// Of many ranks ranges, `of` which it is each or one; of many others the first.
std::string SuspectsText(const std::vector<Suspect>& suspects, const char* separator, const char* of) {
  std::vector<int> ranks;
  std::vector<std::string> others;
  for (const Suspect& suspect : suspects) {
    const std::optional<RankId> rank = RankOf(suspect);
    if (rank && suspects.size() > kSome)
      ranks.push_back(rank->value());
    else
      others.push_back(SuspectText(suspect));
  }
  std::ranges::sort(ranks);
  std::vector<std::string> parts;
  if (!ranks.empty()) parts.push_back((ranks.size() > 1 ? of : "") + RanksAsRanges(ranks));
  TellSome(others, "suspects", parts, [&](const std::string& other) { parts.push_back(other); });
  return parts.empty() ? "the job" : fmt::format("{}", fmt::join(parts, separator));
}

Json ListJson(const std::vector<Suspect>& suspects) {
  Json list = Json::array();
  for (const Suspect& suspect : suspects) list.push_back(ToJson(suspect));
  return list;
}

Json ActionsJson(const Incident& incident) {
  Json list = Json::array();
  for (const Action& action : incident.actions) {
    Json json = ToJson(action);
    json["after_s"] = ToSeconds(action.at - incident.opened).value;
    list.push_back(std::move(json));
  }
  return list;
}

// What joined the leading finding, one line each.
Json JoinedJson(const Incident& incident) {
  Json list = Json::array();
  for (const Finding& finding : incident.findings) {
    if (&finding != &Lead(incident)) list.push_back(Headline(finding));
  }
  return list;
}

template <size_t kCount, typename NameOf>
int IndexOf(const std::array<NameOf, kCount>& names, const std::string& wanted, const char* (*name)(const NameOf&)) {
  for (size_t i = 0; i < kCount; ++i) {
    if (wanted == name(names[i])) return static_cast<int>(i);
  }
  return -1;
}

std::vector<Suspect> SuspectsFromJson(Fields& parent, const char* name) {
  std::vector<Suspect> suspects;
  for (const Json& item : parent.Child(name)) {
    Fields fields(item, "suspect");
    const std::string kind = fields.Text("kind");
    Suspect suspect{Suspect::Kind::kRank, fields.Text("name")};
    const int index =
        IndexOf<kSuspectKinds.size(), const char*>(kSuspectKinds, kind, [](const char* const& text) { return text; });
    if (index < 0) fields.Fail(InvalidArgument("suspect: unknown kind \"{}\"", kind));
    if (!fields.status().ok()) return parent.Fail(fields.status()), suspects;
    suspect.kind = static_cast<Suspect::Kind>(index);
    suspects.push_back(std::move(suspect));
  }
  return suspects;
}

Syndrome SyndromeFromName(Fields& fields, const std::string& name) {
  const int index =
      IndexOf<kSyndromes.size(), SyndromeText>(kSyndromes, name, [](const SyndromeText& text) { return text.name; });
  if (index < 0) fields.Fail(InvalidArgument("finding: unknown syndrome \"{}\"", name));
  return static_cast<Syndrome>(std::max(index, 0));
}

}  // namespace

Suspect SuspectRank(RankId rank) { return {Suspect::Kind::kRank, std::to_string(rank.value())}; }

std::optional<RankId> RankOf(const Suspect& suspect) {
  const std::optional<int> rank = WholeNumber<int>(suspect.name);
  if (suspect.kind != Suspect::Kind::kRank || !rank) return std::nullopt;
  return RankId(*rank);
}

const Finding& Lead(const Incident& incident) {
  LS_CHECK(!incident.findings.empty(), "incident {}", incident.id);
  const auto certain = std::find_if(incident.findings.begin(), incident.findings.end(),
                                    [](const Finding& finding) { return finding.certain; });
  return certain == incident.findings.end() ? incident.findings.front() : *certain;
}

bool IsSlowness(Syndrome syndrome) {
  return syndrome == Syndrome::kCommunicationSlow || syndrome == Syndrome::kNonCommunicationSlow ||
         syndrome == Syndrome::kJobSlow || syndrome == Syndrome::kDataSlow || syndrome == Syndrome::kPlanDrift;
}

const char* SyndromeName(Syndrome syndrome) { return kSyndromes[static_cast<size_t>(syndrome)].name; }
const char* ActionName(ActionKind kind) { return kActions[static_cast<size_t>(kind)]; }

// An observation names whom it is about; a line that has named the suspect does not do so again.
std::string WithoutSubject(std::string observation, const std::string& subject) {
  for (const char* link : {": ", " is "}) {
    if (observation.starts_with(subject + link)) return observation.substr(subject.size() + std::strlen(link));
  }
  return observation;
}

std::string Headline(const Finding& finding) {
  const std::string subject = SuspectsText(finding.suspects, ", ", "each of ");
  std::string text = fmt::format("{} {}", subject, kSyndromes[static_cast<size_t>(finding.syndrome)].predicate);
  if (!finding.evidence.empty()) text += ": " + WithoutSubject(finding.evidence.front(), subject);
  if (finding.price.share > 0)
    text += fmt::format("; it costs {}{:.1f} % of the time, {:.3g} GPU-hours a day",
                        finding.price.at_least ? "at least " : "", 100 * finding.price.share,
                        finding.price.gpu_hours_per_day());
  if (!finding.ambiguous_with.empty())
    text += fmt::format(" (or it is {})", SuspectsText(finding.ambiguous_with, " or ", "one of "));
  if (!finding.certain) text += " (not certain)";
  return text;
}

std::string Headline(const Incident& incident) {
  return Headline(Lead(incident)) + (incident.drill.empty() ? "" : " [drill]");
}

Json ToJson(const Suspect& suspect) {
  return {{"kind", kSuspectKinds[static_cast<size_t>(suspect.kind)]}, {"name", suspect.name}};
}

Json ToJson(const Price& price) {
  if (price.share == 0) return {};
  return {{"share", price.share},
          {"ranks", price.ranks},
          {"at_least", price.at_least},
          {"gpu_hours_per_day", price.gpu_hours_per_day()}};
}

Json ToJson(const Finding& finding) {
  return {{"syndrome", SyndromeName(finding.syndrome)},
          {"suspects", ListJson(finding.suspects)},
          {"ambiguous_with", ListJson(finding.ambiguous_with)},
          {"probe", finding.probe},
          {"evidence", finding.evidence},
          {"certain", finding.certain},
          {"since_ns", finding.since.value},
          {"price", ToJson(finding.price)}};
}

Json ToJson(const Action& action) {
  Json json = {{"kind", ActionName(action.kind)}, {"text", action.text}, {"done", action.done}};
  if (!action.rung.empty()) json["rung"] = action.rung;
  if (!action.reason.empty()) json["reason"] = action.reason;
  return json;
}

Json ToJson(const Incident& incident) {
  const Finding& lead = Lead(incident);
  const bool open = incident.closed.value == 0;
  const Nanos closed_wall = incident.opened_wall + (incident.closed - incident.opened);
  return {{"id", incident.id},
          {"headline", Headline(incident)},
          {"symptom", SyndromeName(lead.syndrome)},
          {"suspects", ListJson(lead.suspects)},
          {"ambiguous_with", ListJson(lead.ambiguous_with)},
          {"certain", lead.certain},
          {"evidence", lead.evidence},
          {"joined", JoinedJson(incident)},
          {"opened", IsoTime(incident.opened_wall)},
          {"closed", open ? Json() : Json(IsoTime(closed_wall))},
          {"phases",
           {{"detect_s", incident.phases.detect.value},
            {"decide_s", incident.phases.decide.value},
            {"restart_s", incident.phases.restart.value},
            {"recompute_s", incident.phases.recompute.value}}},
          {"actions", ActionsJson(incident)},
          {"drill", incident.drill.empty() ? Json() : Json(incident.drill)},
          {"steps_lost", incident.steps_lost},
          {"price", ToJson(lead.price)}};
}

absl::StatusOr<Finding> FindingFromJson(const Json& json) {
  Fields fields(json, "finding");
  Finding finding;
  finding.syndrome = SyndromeFromName(fields, fields.Text("syndrome"));
  finding.suspects = SuspectsFromJson(fields, "suspects");
  finding.ambiguous_with = SuspectsFromJson(fields, "ambiguous_with");
  finding.probe = fields.Text("probe");
  finding.evidence = fields.Texts("evidence");
  finding.certain = fields.Flag("certain");
  finding.since = fields.Time("since_ns");
  if (const Json* price = fields.Optional("price"); price != nullptr) {
    Fields of_price(*price, "price");
    finding.price = {of_price.Number("share"), of_price.Int32("ranks")};
    if (of_price.Optional("at_least") != nullptr) finding.price.at_least = of_price.Flag("at_least");  // later versions
    if (!of_price.status().ok()) fields.Fail(of_price.status());
  }
  LS_RETURN_IF_ERROR(fields.status());
  return finding;
}

}  // namespace lockstep::incident
