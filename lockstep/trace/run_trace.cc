#include "lockstep/trace/run_trace.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "lockstep/base/file.h"
#include "lockstep/base/json_text.h"
#include "lockstep/base/median.h"
#include "lockstep/record/file.h"
#include "lockstep/trace/byte_source.h"
#include "lockstep/trace/comm_log.h"
#include "lockstep/trace/trails.h"

namespace lockstep::trace {
namespace {

enum Part : uint32_t { kSave, kData, kForward, kBackward, kOptimizer, kRest };
const std::vector<std::string>& PartNames() {
  static const std::vector<std::string> names = {"save", "data", "forward", "backward", "optimizer", "rest"};
  return names;
}

struct StepTime {
  int64_t number, begin_ns, end_ns;  // CLOCK_BOOTTIME
  // Where each part but the first begins; as long as the script has one forward per step. Else not known.
  std::array<int64_t, kRest> boundaries{};
  bool has_parts = false;
};

StepTime StepTimeOf(const ls_record& record) {
  const ls_step_body& body = record.body.step;
  const auto ns = [&](uint32_t delta) { return ls_delta_ns(delta, record.delta_shift); };
  StepTime step{body.step, record.time_ns - ns(body.duration), record.time_ns};
  step.has_parts = body.forward > 0;
  int64_t at = step.begin_ns;
  const std::array<uint32_t, kRest> parts = {body.save, body.data, body.forward, body.backward, body.optimizer};
  for (size_t i = 0; i < parts.size(); ++i) step.boundaries[i] = at = std::min(step.end_ns, at + ns(parts[i]));
  return step;
}

using StepsOfRanks = std::map<int, std::map<int64_t, StepTime>>;  // by begin

bool IsStep(const ls_record& record) {
  constexpr int64_t kMostNs = int64_t{1} << 60;
  return record.kind == LS_RECORD_STEP && record.body.step.duration > 0 && record.delta_shift < 24 &&
         record.time_ns > 0 && record.time_ns < kMostNs;
}

// Of each rank the steps that begin no earlier than its first op: `first`. `told`: there are any.
absl::Status ReadSteps(const std::string& path, const std::map<int, int64_t>& first, StepsOfRanks& steps, bool& told) {
  LS_RETURN_IF_ERROR(RefusePipe(path));
  ls_record_reader file{};
  const ls_file_result result = ls_record_reader_open(&file, path.c_str());
  if (result == LS_FILE_UNREADABLE) return InvalidArgument("{}: can't be read: {}", path, strerror(errno));
  if (result == LS_FILE_NOT_RECORDS) return InvalidArgument("{}: no file of records", path);
  while (const ls_record* record = ls_record_reader_next(&file)) {
    if (!IsStep(*record)) continue;
    told = true;
    const StepTime step = StepTimeOf(*record);
    const auto rank = static_cast<int>(record->body.step.rank & INT32_MAX);
    // What is before a trail's first op may be overwritten.
    if (const auto own = first.find(rank); own != first.end() && step.begin_ns >= own->second)
      steps[rank][step.begin_ns] = step;
  }
  ls_record_reader_close(&file);
  return absl::OkStatus();
}

double MedianDistance(std::vector<double> values) {  // to their median
  const double median = UpperMedian(values);
  for (double& value : values) value = std::abs(value - median);
  return UpperMedian(std::move(values));
}

// One rank's communication in one step, in the order of launch, and what the step consists of.
struct RunStep {
  int rank;
  const StepTime* time;
  std::vector<const CommOp*> ops;
};

int64_t BeginOf(const CommOp& op) { return op.order; }  // of trails: the launch, on CLOCK_BOOTTIME
int64_t EndOf(const CommOp& op) { return op.order + op.duration_ns; }

// Those of one communicator by number: threads may have begun them in another order. The places stay.
void SortByNumber(std::vector<const CommOp*>& ops) {
  std::map<uint32_t, std::vector<size_t>> places;
  for (size_t i = 0; i < ops.size(); ++i)
    if (ops[i]->direction == Direction::kCollective) places[ops[i]->communicator].push_back(i);
  for (const auto& [communicator, of_one] : places) {
    std::vector<const CommOp*> sorted;
    for (const size_t place : of_one) sorted.push_back(ops[place]);
    std::sort(sorted.begin(), sorted.end(), [](const CommOp* a, const CommOp* b) { return a->sequence < b->sequence; });
    for (size_t i = 0; i < of_one.size(); ++i) ops[of_one[i]] = sorted[i];
  }
}

// gloo's threads carry out so many at a time; others wait in a queue, and begin when one ends.
constexpr size_t kAtATime = 2;
constexpr int64_t kSoonNs = 300'000;

// The script had launched it before it began: so its begin says nothing about the script.
bool IsQueued(const RunStep& step, const CommOp& op) {
  return std::any_of(step.ops.begin(), step.ops.end(), [&](const CommOp* before) {
    const int64_t end = EndOf(*before);
    if (before == &op || BeginOf(op) < end || BeginOf(op) > end + kSoonNs) return false;
    const auto beside = std::count_if(step.ops.begin(), step.ops.end(), [&](const CommOp* one) {
      return one != &op && BeginOf(*one) < end && EndOf(*one) >= end;
    });
    return static_cast<size_t>(beside) >= kAtATime;
  });
}

// What a script does next: launch one of its ops, or begin a part; the same in all steps of a form.
struct Event {
  size_t op = SIZE_MAX;
  uint32_t part = kNoIndex;  // both not told: the step ends
  auto operator<=>(const Event&) const = default;
};

// Those of a step that are told by its times, and when.
std::vector<std::pair<int64_t, Event>> EventsOf(const RunStep& step) {
  std::vector<std::pair<int64_t, Event>> events;
  for (size_t i = 0; i < step.ops.size(); ++i)
    if (!IsQueued(step, *step.ops[i])) events.push_back({BeginOf(*step.ops[i]), {.op = i}});
  if (step.time->has_parts)
    for (uint32_t part = kData; part <= kRest; ++part)
      events.push_back({step.time->boundaries[part - 1], {.part = part}});
  std::stable_sort(events.begin(), events.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return events;
}

// The order in which most steps of a form have the events that most of them tell; then the end.
std::vector<Event> UsualEvents(const std::vector<RunStep>& steps) {
  std::map<Event, std::pair<size_t, size_t>> seen;  // how often, and the sum of their places
  for (const RunStep& step : steps) {
    const auto events = EventsOf(step);
    for (size_t place = 0; place < events.size(); ++place) {
      auto& [count, sum] = seen[events[place].second];
      ++count;
      sum += place;
    }
  }
  std::vector<std::pair<double, Event>> order;
  for (const auto& [event, places] : seen)
    if (places.first * 2 > steps.size())
      order.emplace_back(static_cast<double>(places.second) / static_cast<double>(places.first), event);
  std::sort(order.begin(), order.end());
  std::vector<Event> usual;
  usual.reserve(order.size() + 1);
  for (const auto& [place, event] : order) usual.push_back(event);
  usual.emplace_back();
  return usual;
}

// When they were, in this step; one that is not told, or comes too early, when the one before was.
std::vector<int64_t> TimesOf(const RunStep& step, const std::vector<Event>& usual) {
  std::map<Event, int64_t> told;
  for (const auto& [at, event] : EventsOf(step)) told[event] = at;
  told[Event{}] = step.time->end_ns;
  std::vector<int64_t> times;
  int64_t before = step.time->begin_ns;
  for (const Event& event : usual) {
    const auto found = told.find(event);
    if (found != told.end()) before = std::clamp(found->second, before, step.time->end_ns);
    times.push_back(before);
  }
  return times;
}

// The last communication that ended between two events; before `from`: none.
int64_t LastEnd(const RunStep& step, int64_t from, int64_t to) {
  int64_t last = from - 1;
  for (const CommOp* op : step.ops)
    if (EndOf(*op) <= to) last = std::max(last, EndOf(*op));
  return last;
}

// Before which events the script waited for communication.
std::vector<bool> FindWaits(const std::vector<RunStep>& steps, const std::vector<Event>& usual) {
  std::vector<std::vector<double>> from_end(usual.size()), from_event(usual.size());
  for (const RunStep& step : steps) {
    int64_t before = step.time->begin_ns;
    const std::vector<int64_t> times = TimesOf(step, usual);
    for (size_t i = 0; i < usual.size(); ++i) {
      if (const int64_t end = LastEnd(step, before, times[i]); end >= before) {
        from_end[i].push_back(static_cast<double>(times[i] - end));
        from_event[i].push_back(static_cast<double>(times[i] - before));
      }
      before = times[i];
    }
  }
  std::vector<bool> waits(usual.size());
  for (size_t i = 0; i < usual.size(); ++i)
    waits[i] = from_end[i].size() * 2 > steps.size() && MedianDistance(from_end[i]) <= MedianDistance(from_event[i]);
  return waits;
}

// What a step communicates: description and size of the communicators, functions; without what differs by rank.
using Form = std::vector<std::tuple<std::string, size_t, uint32_t>>;

// `ops`: of the rank, that have ended, by launch.
void SplitIntoSteps(int rank, const std::map<int64_t, StepTime>& steps, const std::vector<const CommOp*>& ops,
                    const CommLog& log, std::map<Form, std::vector<RunStep>>& by_form) {
  for (const auto& [begin, time] : steps) {
    RunStep step{rank, &time, {}};
    const auto first =
        std::lower_bound(ops.begin(), ops.end(), begin, [](const CommOp* op, int64_t at) { return BeginOf(*op) < at; });
    for (auto op = first; op != ops.end() && BeginOf(**op) < time.end_ns; ++op) step.ops.push_back(*op);
    if (step.ops.empty()) continue;
    SortByNumber(step.ops);
    Form form;
    for (const CommOp* op : step.ops) {
      const Communicator& communicator = log.communicators[op->communicator];
      form.emplace_back(communicator.description, communicator.ranks.size(), op->function);
    }
    by_form[form].push_back(std::move(step));
  }
}

class RankTrace {
 public:
  using Bytes = std::map<std::pair<uint32_t, int64_t>, uint64_t>;  // the most that a member sent, by collective

  RankTrace(const CommLog& log, const Bytes& bytes, int rank) : log_(log), bytes_(bytes) {
    out_.rank = rank;
    out_.path = fmt::format("rank {}", rank);
    out_.backend = kHostStream;
    out_.streams = {"host", kHostStream};
    out_.parts = PartNames();
    for (const Communicator& communicator : log.communicators)
      out_.groups.push_back({communicator.name, communicator.description, communicator.ranks});
    for (const ProcessGroup& group : out_.groups)
      for (const int member : group.ranks) out_.world_size = std::max(out_.world_size, member + 1);
    if (const auto host = log.hosts.find(rank); host != log.hosts.end()) out_.host = host->second;
  }

  void Add(const RunStep& step, const std::vector<Event>& usual, const std::vector<bool>& waits) {
    const StepTime& time = *step.time;
    out_.steps.push_back({time.number, time.begin_ns, time.end_ns - time.begin_ns});
    AddOps(step);
    int64_t from = time.begin_ns;
    uint32_t part = time.has_parts ? uint32_t{kSave} : kNoIndex;
    const std::vector<int64_t> times = TimesOf(step, usual);
    for (size_t i = 0; i < usual.size(); ++i) {
      const int64_t could_go_on = waits[i] ? std::max(from, LastEnd(step, from, times[i])) : from;
      const int64_t launch = std::min(could_go_on, time.end_ns - 1);  // one of no length still belongs to its step
      out_.ops.push_back({could_go_on, times[i] - could_go_on, launch, 0, kNoIndex, part});
      from = times[i];
      if (usual[i].part != kNoIndex) part = usual[i].part;
    }
  }

  KinetoRank Finish() {
    std::sort(out_.steps.begin(), out_.steps.end(),
              [](const ProfilerStep& a, const ProfilerStep& b) { return a.begin_ns < b.begin_ns; });
    std::stable_sort(out_.ops.begin(), out_.ops.end(), [](const DeviceOp& a, const DeviceOp& b) {
      return std::pair(a.stream, a.begin_ns) < std::pair(b.stream, b.begin_ns);
    });
    return std::move(out_);
  }

 private:
  // gloo's threads may begin them in another order than the script did, which is that of their numbers.
  void AddOps(const RunStep& step) {
    std::vector<int64_t> launches;
    launches.reserve(step.ops.size());
    for (const CommOp* op : step.ops) launches.push_back(BeginOf(*op));
    std::sort(launches.begin(), launches.end());
    for (size_t i = 0; i < step.ops.size(); ++i) {
      const CommOp& op = *step.ops[i];
      out_.ops.push_back({BeginOf(op), op.duration_ns, launches[i], 1, CollectiveOf(op)});
    }
  }

  uint32_t CollectiveOf(const CommOp& op) {
    Collective one;
    one.name = log_.functions[op.function];
    one.group = op.communicator;
    one.elements_in = static_cast<int64_t>(op.bytes);
    if (op.direction == Direction::kCollective) {
      one.elements_in =
          static_cast<int64_t>(bytes_.at({op.communicator, op.sequence}));  // a root's differ from the others'
      one.sequence = op.sequence;
    } else {
      one.peer = op.peer;
      one.sends = op.direction == Direction::kSend;
    }
    out_.collectives.push_back(std::move(one));
    return static_cast<uint32_t>(out_.collectives.size() - 1);
  }

  const CommLog& log_;
  const Bytes& bytes_;
  KinetoRank out_;
};

}  // namespace

bool IsRun(const std::string& directory) {
  const auto has = [&](const char* file) {
    std::error_code error;
    return std::filesystem::is_regular_file(directory + file, error);
  };
  return has("/run.json") || (has("/records") && !TrailsIn(directory).empty());
}

namespace {

Json RunJson(const std::string& directory) {
  const absl::StatusOr<std::string> text = ReadFile(directory + "/run.json");
  Json json = ParseJson(text.ok() ? *text : "");
  return json.is_object() ? json : Json::object();
}

}  // namespace

std::string NameOfRun(const std::string& directory) {
  const Json run = RunJson(directory);
  const auto job = run.find("job");
  return job != run.end() && job->is_string() ? job->get<std::string>() : "";
}

absl::StatusOr<std::vector<KinetoRank>> ReadRun(const std::string& directory) {
  if (const auto run = RunJson(directory); run.contains("ranks") && run["ranks"] == 0)
    return InvalidArgument(
        "{}: this is the run of a coordinator without ranks; expected the directory of a node's run, where its ranks "
        "keep their trails",
        directory);
  if (TrailsIn(directory).empty())
    return InvalidArgument(
        "{}: nothing to explain: this run has no trails of its communication (trails/); expected those that its "
        "collectors keep, of gloo unless --no-preload is given, of NCCL with --nccl-profiler",
        directory);
  LS_ASSIGN_OR_RETURN(const CommLog log, ReadTrails(TrailsIn(directory)));
  std::map<int, std::vector<const CommOp*>> ops;
  for (const CommOp& op : log.ops)
    if (op.state == OpState::kCompleted && op.duration_ns >= 0) ops[op.rank].push_back(&op);
  std::map<int, int64_t> first;
  for (auto& [rank, of_rank] : ops) {
    std::stable_sort(of_rank.begin(), of_rank.end(),
                     [](const CommOp* a, const CommOp* b) { return BeginOf(*a) < BeginOf(*b); });
    first[rank] = BeginOf(*of_rank.front());
  }
  StepsOfRanks steps;
  bool told = false;
  std::error_code error;
  for (const std::string& path : {directory + "/records.1", directory + "/records"})  // the older ones first
    if (std::filesystem::exists(path, error)) {
      LS_RETURN_IF_ERROR(ReadSteps(path, first, steps, told));
    }
  if (!told)
    return InvalidArgument(
        "{0}: nothing to explain: its ranks have told no steps; expected a script that makes a lockstep.Checkpoint and "
        "calls its step() after each. Who holds the others up `lockstep diagnose {0}` tells without steps, too",
        directory);
  std::map<Form, std::vector<RunStep>> by_form;
  for (const auto& [rank, of_rank] : ops)
    if (const auto own = steps.find(rank); own != steps.end()) SplitIntoSteps(rank, own->second, of_rank, log, by_form);
  RankTrace::Bytes bytes;
  for (const CommOp& op : log.ops) {
    uint64_t& most = bytes[{op.communicator, op.sequence}];
    most = std::max(most, op.bytes);
  }
  std::map<int, RankTrace> traces;
  for (const auto& [form, alike] : by_form) {
    const std::vector<Event> usual = UsualEvents(alike);
    const std::vector<bool> waits = FindWaits(alike, usual);
    for (const RunStep& step : alike)
      traces.try_emplace(step.rank, log, bytes, step.rank).first->second.Add(step, usual, waits);
  }
  if (traces.empty())
    return InvalidArgument(
        "{}: no step with communication; expected a run whose script calls Checkpoint.step() and whose collectors were "
        "not left out (--no-preload)",
        directory);
  std::vector<KinetoRank> ranks;
  ranks.reserve(traces.size());
  for (auto& [id, trace] : traces) {
    ranks.push_back(trace.Finish());
    std::ranges::copy_if(log.data_waits, std::back_inserter(ranks.back().data_waits),
                         [rank = id](const DataWait& wait) { return wait.rank == rank; });
    std::ranges::stable_sort(ranks.back().data_waits, {}, &DataWait::boot_end_ns);
  }
  return ranks;
}

}  // namespace lockstep::trace
