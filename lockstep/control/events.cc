#include "lockstep/control/events.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/incident/fields.h"

namespace lockstep::control {
namespace {

using incident::Fields;

// In the order of EventBody's alternatives. Part of the journal's format: a name is never given to something else.
constexpr std::array<const char*, std::variant_size_v<EventBody>> kTypeNames = {
    "job_started",   "epoch_spawned",  "loop_began",     "caught_up",
    "progress_seen", "rank_exited",    "suspected",      "stacks_kept",
    "epoch_stopped", "restore_chosen", "spawn_failed",   "stop_asked",
    "job_paused",    "job_continued",  "watcher_gone",   "secondary_grace_over",
    "drilled",       "agent_lost",     "agent_back",     "agent_gone",
    "standby_came",  "standby_left",   "journal_behind", "alerted",
    "probed",        "stop_overdue",   "update_asked",   "code_kept",
    "update_due",    "cluster_did",    "growth_due",     "wait_interrupted",
    "tick"};

constexpr std::array<const char*, 4> kAlertClasses = {"machine", "network", "software", "warning"};

Json ProgressJson(const Progress& progress) {
  return {{"step", progress.step}, {"step_end_ns", progress.step_end.value}};
}

Json CheckpointJson(const std::optional<CheckpointId>& point) {
  if (!point) return {};
  return {{"epoch", point->epoch.value()}, {"step", point->step}};
}

Json ExceptionJson(const std::optional<ExceptionInfo>& exception) {
  if (!exception) return {};
  return {{"type", exception->type},
          {"message", exception->message},
          {"where", exception->where},
          {"connection", exception->connection},
          {"port_taken", exception->port_taken},
          {"after_loss", exception->after_loss},
          {"timed_out", exception->timed_out}};
}

Json NodeJson(const NodeSpec& node) { return {{"name", node.name}, {"ranks", node.ranks}, {"token", node.token}}; }

Json Body(const JobStarted& event) {
  const JobSpec& spec = event.spec;
  Json nodes = Json::array();
  for (const NodeSpec& node : spec.nodes) nodes.push_back(NodeJson(node));
  Json json = {{"name", spec.name},
               {"nodes", nodes},
               {"ranks", spec.ranks},
               {"max_restarts", spec.max_restarts},
               {"no_progress_limit", spec.no_progress_limit},
               {"observe_only", spec.observe_only},
               {"grace_s", spec.grace.value},
               {"restarts_without_steps", spec.restarts_without_steps},
               {"first_epoch", spec.first_epoch.value()},
               {"load_first", spec.load_first},
               {"layout", spec.layout},
               {"standbys", spec.standbys},
               {"leading_node", spec.leading_node},
               {"can_ask", spec.can_ask},
               {"policy", ToJson(spec.policy)}};
  if (!spec.entry.empty()) json["entry"] = spec.entry;
  if (spec.most_nodes > 0) {  // else the world never changes
    json["least_nodes"] = spec.least_nodes;
    json["most_nodes"] = spec.most_nodes;
  }
  return json;
}
Json Body(const EpochSpawned&) { return Json::object(); }
Json Body(const LoopBegan& event) {
  Json json = {{"begin_ns", event.begin.value}, {"restored", CheckpointJson(event.restored)}};
  if (event.unseen) json["unseen"] = true;
  return json;
}
Json Body(const CaughtUp& event) {
  Json json = {{"progress", ProgressJson(event.progress)}};
  if (event.finite) json["finite"] = true;
  return json;
}
Json Body(const ProgressSeen& event) {
  return {{"progress", ProgressJson(event.progress)}, {"step_time_s", event.step_time.value}};
}
Json Body(const RankExited& event) {
  Json json = {{"rank", event.rank.value()},
               {"code", event.status.code},
               {"signal", event.status.signal},
               {"exception", ExceptionJson(event.exception)},
               {"progress", ProgressJson(event.progress)},
               {"exited_ns", event.exited.value}};
  if (event.step >= 0) json["step"] = event.step;
  return json;
}
Json Body(const Suspected& event) {
  Json json = {{"finding", incident::ToJson(event.finding)},
               {"progress", ProgressJson(event.progress)},
               {"bad_from", event.bad_from}};
  if (event.bad_epoch.value() != 0) json["bad_epoch"] = event.bad_epoch.value();
  return json;
}
Json Body(const StacksKept& event) { return {{"path", event.path}}; }
Json Body(const EpochStopped& event) {
  Json json = Json::object();
  if (event.bad_from) json["bad_from"] = CheckpointJson(event.bad_from);
  return json;
}
Json Body(const RestoreChosen& event) {
  Json json = {{"point", CheckpointJson(event.point)}, {"rejected", event.rejected}};
  if (!event.unfit.empty()) json["unfit"] = event.unfit;
  return json;
}
Json Body(const SpawnFailed& event) { return {{"error", event.error}}; }
Json Body(const StopAsked& event) { return {{"signal", event.signal}}; }
Json Body(const JobPaused&) { return Json::object(); }
Json Body(const JobContinued&) { return Json::object(); }
Json Body(const WatcherGone& event) {
  Json json = {{"since_ns", event.since.value}};
  if (event.same) json["same"] = true;
  if (event.noted) json["noted"] = true;
  return json;
}
Json Body(const WaitInterrupted& event) { return {{"since_ns", event.since.value}}; }
Json Body(const SecondaryGraceOver&) { return Json::object(); }
Json Body(const Drilled& event) {
  Json json = {{"fault", event.fault}, {"rank", event.rank}};
  if (event.withdrawn) json["withdrawn"] = true;
  return json;
}
Json Body(const AgentLost& event) {
  Json json = {{"node", event.node}, {"name", event.name}, {"why", event.why}, {"since_ns", event.since.value}};
  if (event.silent) json["silent"] = true;
  return json;
}
Json Body(const AgentBack& event) { return {{"node", event.node}}; }
Json Body(const AgentGone& event) {
  Json json = {{"node", event.node}, {"why", event.why}};
  if (event.explains) json["explains"] = true;
  return json;
}
Json Body(const StandbyCame& event) { return {{"node", NodeJson(event.node)}}; }
Json Body(const StandbyLeft& event) { return {{"token", event.token}}; }
Json Body(const JournalBehind& event) { return {{"seen", event.seen.value()}}; }
Json Body(const Alerted& event) {
  Json json = {{"node", event.node},       {"item", event.item}, {"class", AlertClassName(event.kind)},
               {"subject", event.subject}, {"text", event.text}, {"since_ns", event.since.value},
               {"cleared", event.cleared}};
  if (!event.token.empty()) json["token"] = event.token;
  return json;
}
Json Body(const Probed& event) {
  Json findings = Json::array();
  for (const incident::Finding& finding : event.findings) findings.push_back(incident::ToJson(finding));
  Json json = {{"rung", RungName(event.rung)}, {"findings", findings}, {"unanswered", event.unanswered}};
  if (!event.reports.empty()) json["reports"] = event.reports;
  if (!event.note.empty()) json["note"] = event.note;
  return json;
}
Json Body(const StopOverdue& event) {
  Json json = Json::object();
  if (!event.nodes.empty()) json["stuck_nodes"] = event.nodes;
  if (!event.unstopped.empty()) json["unstopped_nodes"] = event.unstopped;
  return json;
}
Json Body(const UpdateAsked& event) {
  Json json = {{"code", event.code},
               {"hash", event.hash},
               {"env", EnvironmentJson(event.env)},
               {"now", event.now},
               {"within_s", event.within.value}};
  if (event.takes_back) json["takes_back"] = true;
  return json;
}
Json Body(const CodeKept& event) {
  Json json = {{"version", event.version}, {"error", event.error}};
  if (!event.hash.empty()) json["copy"] = event.hash;
  return json;
}
Json Body(const UpdateDue& event) { return {{"version", event.version}}; }
Json Body(const ClusterDid& event) {
  return {{"incident", event.incident}, {"drained", event.drained}, {"text", event.text}};
}
Json Body(const GrowthDue&) { return Json::object(); }
Json Body(const Tick&) { return Json::object(); }

// Reads an object inside another one with `read(Fields&)`; its first problem becomes the parent's.
template <typename Read>
auto Nested(Fields& parent, const Json& object, const char* name, Read read) {
  Fields fields(object, name);
  auto value = read(fields);
  if (!fields.status().ok()) parent.Fail(fields.status());
  return value;
}

template <typename Read>
auto OptionalNested(Fields& parent, const char* name, Read read) -> std::optional<decltype(read(parent))> {
  const Json* object = parent.Optional(name);
  if (!object) return std::nullopt;
  return Nested(parent, *object, name, read);
}

Progress ReadProgress(Fields& parent) {
  const auto read = [](Fields& fields) { return Progress{fields.Int("step"), fields.Time("step_end_ns")}; };
  return Nested(parent, parent.Child("progress"), "progress", read);
}

std::optional<CheckpointId> ReadCheckpoint(Fields& parent, const char* name) {
  return OptionalNested(
      parent, name, [](Fields& fields) { return CheckpointId{EpochId(fields.Unsigned("epoch")), fields.Int("step")}; });
}

bool ReadOptionalFlag(Fields& fields, const char* name) {
  return fields.Optional(name) != nullptr && fields.Flag(name);
}

std::optional<ExceptionInfo> ReadException(Fields& parent) {
  const auto read = [](Fields& fields) {
    return ExceptionInfo{fields.Text("type"),
                         fields.Text("message"),
                         fields.Text("where"),
                         fields.Flag("connection"),
                         ReadOptionalFlag(fields, "port_taken"),
                         ReadOptionalFlag(fields, "after_loss"),
                         ReadOptionalFlag(fields, "timed_out")};
  };
  return OptionalNested(parent, "exception", read);
}

incident::Finding ReadFinding(Fields& parent) {
  const Json& json = parent.Child("finding");
  if (!parent.status().ok()) return {};
  absl::StatusOr<incident::Finding> finding = incident::FindingFromJson(json);
  if (finding.ok()) return *std::move(finding);
  parent.Fail(finding.status());
  return {};
}

std::vector<incident::Finding> ReadFindings(Fields& parent) {
  std::vector<incident::Finding> findings;
  for (const Json& json : parent.Child("findings")) {
    absl::StatusOr<incident::Finding> finding = incident::FindingFromJson(json);
    if (!finding.ok()) return parent.Fail(finding.status()), findings;
    findings.push_back(*std::move(finding));
  }
  return findings;
}

Rung ReadRung(Fields& fields) {
  const std::string name = fields.Text("rung");
  const std::optional<Rung> rung = RungFromName(name);
  if (!rung) fields.Fail(InvalidArgument("unknown rung \"{}\"", name));
  return rung.value_or(Rung::kNote);
}

AlertClass ReadAlertClass(Fields& fields) {
  const std::string name = fields.Text("class");
  const auto found = std::find(kAlertClasses.begin(), kAlertClasses.end(), name);
  if (found == kAlertClasses.end()) fields.Fail(InvalidArgument("unknown class of alerts \"{}\"", name));
  return found == kAlertClasses.end() ? AlertClass::kWarning : static_cast<AlertClass>(found - kAlertClasses.begin());
}

Policy ReadSpecPolicy(Fields& parent) {
  const Json* json = parent.Optional("policy");
  // A journal of before there was one: every fault was answered by a restart.
  if (json == nullptr) return {.diagnose = false, .rollback = false, .replay = false};
  absl::StatusOr<Policy> policy = PolicyFromJson(*json);
  if (!policy.ok()) parent.Fail(policy.status());
  return policy.value_or(Policy{});
}

EpochId ReadEpoch(Fields& fields) { return EpochId(fields.Unsigned("epoch")); }

NodeSpec ReadNode(Fields& fields) { return {fields.Text("name"), fields.Int32("ranks"), fields.Text("token")}; }

std::vector<NodeSpec> ReadNodes(Fields& parent) {
  std::vector<NodeSpec> nodes;
  for (const Json& node : parent.Child("nodes")) nodes.push_back(Nested(parent, node, "node", ReadNode));
  return nodes;
}

// Braces evaluate from left to right, so the first missing field in the order of the struct is the one that is
// reported.
void Read(Fields& fields, JobStarted& event) {
  event.spec = {fields.Text("name"),
                fields.Int32("ranks"),
                fields.Int32("max_restarts"),
                fields.Int32("no_progress_limit"),
                fields.Flag("observe_only"),
                {fields.Number("grace_s")},
                ReadOptionalFlag(fields, "restarts_without_steps"),
                EpochId(1),
                ReadOptionalFlag(fields, "load_first"),
                ReadNodes(fields)};
  if (fields.Optional("first_epoch")) event.spec.first_epoch = EpochId(fields.Unsigned("first_epoch"));
  if (fields.Optional("layout")) event.spec.layout = fields.Text("layout");
  if (fields.Optional("entry")) event.spec.entry = fields.Text("entry");
  if (fields.Optional("standbys")) event.spec.standbys = fields.Int32("standbys");
  if (fields.Optional("leading_node")) event.spec.leading_node = fields.Int32("leading_node");
  event.spec.can_ask = ReadOptionalFlag(fields, "can_ask");
  if (fields.Optional("least_nodes")) event.spec.least_nodes = fields.Int32("least_nodes");
  if (fields.Optional("most_nodes")) event.spec.most_nodes = fields.Int32("most_nodes");
  event.spec.policy = ReadSpecPolicy(fields);
}
void Read(Fields& fields, EpochSpawned& event) { event = {ReadEpoch(fields)}; }
void Read(Fields& fields, LoopBegan& event) {
  event = {ReadEpoch(fields), fields.Time("begin_ns"), ReadCheckpoint(fields, "restored"),
           ReadOptionalFlag(fields, "unseen")};
}
void Read(Fields& fields, CaughtUp& event) {
  event = {ReadEpoch(fields), ReadProgress(fields), ReadOptionalFlag(fields, "finite")};
}
void Read(Fields& fields, ProgressSeen& event) {
  event = {ReadEpoch(fields), ReadProgress(fields)};
  if (fields.Optional("step_time_s")) event.step_time = {fields.Number("step_time_s")};
}
void Read(Fields& fields, RankExited& event) {
  event = {ReadEpoch(fields),     RankId(fields.Int32("rank")), {fields.Int32("code"), fields.Int32("signal")},
           ReadException(fields), ReadProgress(fields),         fields.Time("exited_ns")};
  if (fields.Optional("step")) event.step = fields.Int("step");
}
void Read(Fields& fields, Suspected& event) {
  event = {ReadEpoch(fields), ReadFinding(fields), ReadProgress(fields)};
  if (fields.Optional("bad_from")) event.bad_from = fields.Int("bad_from");
  if (fields.Optional("bad_epoch")) event.bad_epoch = EpochId(fields.Unsigned("bad_epoch"));
}
void Read(Fields& fields, StacksKept& event) { event = {ReadEpoch(fields), fields.Text("path")}; }
void Read(Fields& fields, EpochStopped& event) { event = {ReadEpoch(fields), ReadCheckpoint(fields, "bad_from")}; }
void Read(Fields& fields, RestoreChosen& event) {
  event = {ReadEpoch(fields), ReadCheckpoint(fields, "point"), fields.Texts("rejected"), {}};
  if (fields.Optional("unfit") != nullptr) event.unfit = fields.Text("unfit");
}
void Read(Fields& fields, SpawnFailed& event) { event = {ReadEpoch(fields), fields.Text("error")}; }
void Read(Fields& fields, StopAsked& event) { event = {fields.Int32("signal")}; }
void Read(Fields&, JobPaused&) {}
void Read(Fields&, JobContinued&) {}
void Read(Fields& fields, WatcherGone& event) {
  event = {fields.Time("since_ns"), ReadOptionalFlag(fields, "same"), ReadOptionalFlag(fields, "noted")};
}
void Read(Fields& fields, WaitInterrupted& event) { event = {fields.Time("since_ns")}; }
void Read(Fields& fields, SecondaryGraceOver& event) { event = {ReadEpoch(fields)}; }
void Read(Fields& fields, Drilled& event) {
  event = {ReadEpoch(fields), fields.Text("fault"), fields.Int32("rank"), ReadOptionalFlag(fields, "withdrawn")};
}
void Read(Fields& fields, AgentLost& event) {
  event = {fields.Int32("node"), fields.Text("name"), fields.Text("why"), fields.Time("since_ns"),
           ReadOptionalFlag(fields, "silent")};
}
void Read(Fields& fields, AgentBack& event) { event = {fields.Int32("node")}; }
void Read(Fields& fields, AgentGone& event) {
  event = {fields.Int32("node"), fields.Text("why"), ReadOptionalFlag(fields, "explains")};
}
void Read(Fields& fields, StandbyCame& event) { event = {Nested(fields, fields.Child("node"), "node", ReadNode)}; }
void Read(Fields& fields, StandbyLeft& event) { event = {fields.Text("token")}; }
void Read(Fields& fields, JournalBehind& event) { event = {EpochId(fields.Unsigned("seen"))}; }
void Read(Fields& fields, Alerted& event) {
  event = {fields.Int32("node"), fields.Text("item"),     ReadAlertClass(fields), fields.Text("subject"),
           fields.Text("text"),  fields.Time("since_ns"), fields.Flag("cleared")};
  if (fields.Optional("token") != nullptr) event.token = fields.Text("token");
}
void Read(Fields& fields, Probed& event) {
  event = {ReadEpoch(fields), ReadRung(fields), ReadFindings(fields), fields.Texts("unanswered"), {}};
  if (fields.Optional("reports") != nullptr) event.reports = fields.Texts("reports");
  if (fields.Optional("note") != nullptr) event.note = fields.Text("note");
}
std::vector<int> ReadNodes(Fields& fields, const char* name) {
  std::vector<int> nodes;
  const Json* array = fields.Optional(name);
  if (array == nullptr) return nodes;
  for (const Json& node : *array) {
    if (!node.is_number_integer()) fields.Fail(InvalidArgument("field {} must be an array of integers", name));
    nodes.push_back(node.is_number_integer() ? node.get<int>() : -1);
  }
  return nodes;
}
void Read(Fields& fields, StopOverdue& event) {
  event = {ReadEpoch(fields), {}, {}};
  event.nodes = ReadNodes(fields, "stuck_nodes");
  event.unstopped = ReadNodes(fields, "unstopped_nodes");
}
void Read(Fields& fields, UpdateAsked& event) {
  event = {fields.Text("code"), fields.Text("hash"),         ReadEnvironment(fields),
           fields.Flag("now"),  {fields.Number("within_s")}, ReadOptionalFlag(fields, "takes_back")};
}
void Read(Fields& fields, CodeKept& event) {
  event = {fields.Int32("version"), fields.Text("error")};
  if (fields.Optional("copy") != nullptr) event.hash = fields.Text("copy");
}
void Read(Fields& fields, UpdateDue& event) { event = {fields.Int32("version")}; }
void Read(Fields& fields, ClusterDid& event) {
  event = {fields.Int("incident"), fields.Text("drained"), fields.Text("text")};
}
void Read(Fields& fields, GrowthDue& event) { event = {ReadEpoch(fields)}; }
void Read(Fields&, Tick&) {}

// Makes the alternative whose name is `type`; false if there is none.
template <size_t... kIndex>
bool Emplace(const std::string& type, EventBody& body, std::index_sequence<kIndex...>) {
  return ((type == kTypeNames[kIndex] && (body.emplace<kIndex>(), true)) || ...);
}

}  // namespace

const char* AlertClassName(AlertClass kind) { return kAlertClasses[static_cast<size_t>(kind)]; }

std::string TypeName(const EventBody& body) { return kTypeNames[body.index()]; }

Json ToJson(const EventBody& body) {
  return std::visit(
      [](const auto& event) {
        Json json = Body(event);
        if constexpr (requires { event.epoch; }) json["epoch"] = event.epoch.value();
        return json;
      },
      body);
}

std::string Text(const Drilled& drill) {
  return drill.rank < 0 ? drill.fault : fmt::format("{} of rank {}", drill.fault, drill.rank);
}

absl::StatusOr<Drilled> DrilledFromJson(const Json& json) {
  Fields fields(json, "drill");
  Drilled drill;
  Read(fields, drill);
  if (!fields.status().ok()) return fields.status();
  return drill;
}

absl::StatusOr<UpdateAsked> UpdateFromJson(const Json& json) {
  Fields fields(json, "update");
  UpdateAsked update;
  Read(fields, update);
  if (!fields.status().ok()) return fields.status();
  return update;
}

absl::StatusOr<EventBody> EventFromJson(const std::string& type, const Json& json) {
  EventBody body;
  if (!Emplace(type, body, std::make_index_sequence<std::variant_size_v<EventBody>>())) {
    return InvalidArgument("unknown event type \"{}\": was this journal written by a newer Lockstep?", type);
  }
  Fields fields(json, type);
  std::visit([&](auto& event) { Read(fields, event); }, body);
  LS_RETURN_IF_ERROR(fields.status());
  return body;
}

}  // namespace lockstep::control
