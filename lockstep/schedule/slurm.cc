#include "lockstep/schedule/slurm.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "lockstep/base/number.h"

namespace lockstep::schedule {
namespace {

constexpr size_t kMostReason = 200;

std::vector<std::string_view> Split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(separators), text.size());
    if (end > 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

bool IsNumber(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
}

int NumberOf(std::string_view text) {
  int number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// "NAME=VALUE NAME=VALUE". A value may hold spaces (a comment): what has no "=" belongs to nobody.
std::map<std::string, std::string, std::less<>> Fields(const std::string& text) {
  std::map<std::string, std::string, std::less<>> fields;
  for (const std::string_view word : Split(text, " \n")) {
    const size_t equals = word.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view value = word.substr(equals + 1);
    const bool says_nothing = value.empty() || value == "(null)" || value == "N/A";
    if (!says_nothing) fields.emplace(word.substr(0, equals), value);  // the first counts
  }
  return fields;
}

// "gres:gpu:8" (22.05), "gres/gpu:8" (23.02) -> "gpu:8"
std::string GresOf(const std::string& tres) {
  std::string all;
  for (const std::string_view part : Split(tres, ",")) {
    if (!part.starts_with("gres:") && !part.starts_with("gres/")) continue;
    all += (all.empty() ? "" : ",") + std::string(part.substr(5));
  }
  return all;
}

// Of a whole job, as `--gpus` and `--gpus-per-task` leave it: "cpu=64,gres/gpu=16,gres/gpu:h100=16" on 2 nodes ->
// "gpu:h100:8". What has a type is counted without it, too. Nothing where it is not the same on each.
std::string GresPerNode(const std::string& tres, int nodes) {
  std::map<std::string_view, int> counts;
  for (const std::string_view part : Split(tres, ",")) {
    const size_t equals = part.find('=');
    if (!part.starts_with("gres/") || equals == std::string_view::npos) continue;
    counts[part.substr(5, equals - 5)] = NumberOf(part.substr(equals + 1));
  }
  std::string all;
  for (const auto& [name, count] : counts) {
    const auto typed = counts.upper_bound(std::string(name) + ":");
    if (typed != counts.end() && typed->first.starts_with(std::string(name) + ":")) continue;
    if (nodes <= 0 || count <= 0 || count % nodes != 0) return "";
    all += fmt::format("{}{}:{}", all.empty() ? "" : ",", name, count / nodes);
  }
  return all;
}

// The same of "mem=2000M" or "mem=1.50T".
std::string MemoryPerNode(const std::string& tres, int nodes) {
  constexpr std::string_view kName = "mem=", kUnits = "MGTP";
  for (const std::string_view part : Split(tres, ",")) {
    if (!part.starts_with(kName)) continue;
    std::string_view unit = part.substr(kName.size());
    const auto number = TakeNumber<double>(unit);
    const size_t power = unit.empty() ? 0 : kUnits.find(unit.front());
    if (!number || power == std::string_view::npos || nodes <= 0) return "";
    const auto megabytes = static_cast<int64_t>(std::ldexp(*number, static_cast<int>(10 * power)));
    return megabytes > 0 && megabytes % nodes == 0 ? fmt::format("{}M", megabytes / nodes) : "";
  }
  return "";
}

bool HasGres(const std::string& tres) {
  return tres.find("gres/") != std::string::npos || tres.find("gres:") != std::string::npos;
}

void Add(Words& words, const char* flag, const std::string& value) {
  if (!value.empty()) words.push_back(fmt::format("{}={}", flag, value));
}

// "1-02:03:04", "3:04". Nothing where the clocks differ ("INVALID").
Seconds Elapsed(std::string_view text) {
  constexpr std::array kSeconds = {1, 60, 3600, 86400};
  const std::vector<std::string_view> parts = Split(text, "-:");
  double seconds = 0;
  for (size_t i = 0; i < std::min(parts.size(), kSeconds.size()); ++i)
    seconds += kSeconds[i] * NumberOf(parts[parts.size() - 1 - i]);
  return Seconds{seconds};
}

// "8-10,12"
std::string RangesOf(const std::set<int>& numbers, size_t digits) {
  std::string all;
  for (auto it = numbers.begin(); it != numbers.end();) {
    const int first = *it;
    int last = first;
    while (++it != numbers.end() && *it == last + 1) last = *it;
    all += fmt::format("{}{:0{}}", all.empty() ? "" : ",", first, digits);
    if (last != first) all += fmt::format("-{:0{}}", last, digits);
  }
  return all;
}

}  // namespace

const char kStandbyScript[] =
    "#!/bin/sh\n"
    "# One more machine for a job that Lockstep leads: it stands by, and takes the place of one that is lost.\n"
    "program=$1\n"
    "shift\n"
    "exec \"$program\" run --node-name \"$SLURMD_NODENAME\" \"$@\"\n";

absl::StatusOr<JobShape> ParseJob(const std::string& text) {
  const auto fields = Fields(text);
  const auto of = [&](std::string_view name) {
    const auto found = fields.find(name);
    return found != fields.end() ? found->second : std::string();
  };
  if (of("JobId").empty()) return DataLoss("scontrol show job: no JobId in \"{}\"", text.substr(0, 80));
  JobShape shape;
  shape.partition = of("Partition");
  shape.account = of("Account");
  shape.qos = of("QOS");
  shape.time_limit = of("TimeLimit");
  shape.constraint = of("Features");
  shape.reservation = of("Reservation");
  const int nodes = NumberOf(of("NumNodes"));
  if (of("MinMemoryNode") == "0" && of("MemPerTres").empty()) shape.memory_per_node = "0";  // all that a node has
  // What it has goes before what it asked for: memory for each GPU, or by default, is not among the latter.
  for (const char* all : {"AllocTRES", "TRES"})
    if (shape.memory_per_node.empty()) shape.memory_per_node = MemoryPerNode(of(all), nodes);
  if (shape.memory_per_node.empty()) {
    shape.memory_per_node = of("MinMemoryNode");
    shape.memory_per_cpu = of("MinMemoryCPU");
  }
  shape.gres = GresOf(of("TresPerNode"));
  for (const char* all : {"AllocTRES", "TRES", "ReqTRES"})
    if (shape.gres.empty()) shape.gres = GresPerNode(of(all), nodes);
  for (const char* any : {"AllocTRES", "TRES", "ReqTRES", "TresPerJob", "TresPerSocket", "TresPerTask"})
    if (shape.gres.empty() && shape.gres_unclear.empty() && HasGres(of(any)))
      shape.gres_unclear = fmt::format("{}={} on {} nodes does not tell what each has", any, of(any), nodes);
  if (nodes > 0) shape.cpus_per_node = NumberOf(of("NumCPUs")) / nodes;
  shape.exclusive = of("OverSubscribe") == "NO";
  shape.pending = of("JobState") == "PENDING";
  shape.requeues = of("Requeue") == "1" && of("BatchFlag") == "1";
  return shape;
}

absl::StatusOr<std::vector<Request>> ParseQueue(const std::string& text) {
  std::vector<Request> requests;
  for (const std::string_view line : Split(text, "\n")) {
    const std::vector<std::string_view> parts = Split(line, "|");
    if (parts.size() < 3 || !IsNumber(parts[0]))
      return DataLoss("squeue: expected JOB|STATE|TIME|HOST, found \"{}\"", line.substr(0, 80));
    requests.push_back({std::string(parts[0]), std::string(parts[1]), Elapsed(parts[2]),
                        parts.size() > 3 ? std::string(parts[3]) : ""});
  }
  return requests;
}

absl::StatusOr<std::string> ParseSubmitted(const std::string& text) {
  const std::vector<std::string_view> parts = Split(text, ";\n");
  if (parts.empty() || !IsNumber(parts.front()))
    return DataLoss("sbatch --parsable: expected the number of a job, found \"{}\"", text.substr(0, 80));
  return std::string(parts.front());
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  for (const std::string_view line : Split(text, " \n")) lines.emplace_back(line);
  return lines;
}

std::string Folded(const std::vector<std::string>& hosts) {
  constexpr size_t kMostDigits = 9;                                // of an int
  std::map<std::pair<std::string, size_t>, std::set<int>> groups;  // by what goes before the number, and its digits
  for (const std::string& host : hosts) {
    const size_t digits = std::min(host.size() - (host.find_last_not_of("0123456789") + 1), kMostDigits);
    const size_t begin = host.size() - digits;
    groups[{host.substr(0, begin), digits}].insert(NumberOf(std::string_view(host).substr(begin)));
  }
  std::string all;
  for (const auto& [key, numbers] : groups) {
    const auto& [prefix, digits] = key;
    const std::string ranges = digits > 0 ? RangesOf(numbers, digits) : "";
    all += fmt::format("{}{}", all.empty() ? "" : ",", prefix);
    all += numbers.size() > 1 ? fmt::format("[{}]", ranges) : ranges;
  }
  return all;
}

bool IsHostName(const std::string& name) {
  std::string small = name;
  std::transform(small.begin(), small.end(), small.begin(), [](unsigned char c) { return std::tolower(c); });
  if (name.empty() || small == "all") return false;
  return std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return c < 128 && (std::isalnum(c) || c == '.' || c == '-' || c == '_'); });
}

std::string ReasonText(const std::string& reason) {
  std::string text;
  for (const char c : reason.substr(0, kMostReason)) {
    const bool printable = c >= ' ' && c <= '~';
    text += c == '"' ? '\'' : printable ? c : '?';
  }
  return text;
}

std::string RequestName(const std::string& job, const std::string& run_token) {
  std::string name = fmt::format("lockstep-{}-{}", job, run_token.substr(0, 12));
  for (char& c : name)
    if (!IsHostName(std::string(1, c))) c = '_';  // commas would make several names of it
  return name;
}

Words ShowJob(const std::string& job) { return {"scontrol", "--oneliner", "show", "job", job}; }

Words ShowRequests(const std::string& name) {
  return {"squeue", "--noheader", "--name=" + name, "--states=PENDING,CONFIGURING,RUNNING,SUSPENDED",
          "--format=%i|%T|%M|%N"};
}

Words ShowHosts() { return {"sinfo", "--noheader", "--Node", "--format=%N"}; }

Words Cancel(const std::string& job) { return {"scancel", job}; }

Words DrainHost(const std::string& host, const std::string& reason) {
  return {"scontrol", "update", "NodeName=" + host, "State=DRAIN", "Reason=" + ReasonText(reason)};
}

Words RequeueJob(const std::string& job) { return {"scontrol", "requeue", job}; }

// Not at once: the nodes refuse, for good, a job that begins in the second in which what it was before was ended
// ("Job credential revoked"), and their clocks may differ a little.
Words BeginSoon(const std::string& job) { return {"scontrol", "update", "JobId=" + job, "StartTime=now+5"}; }

Words Submit(const Submission& submission) {
  Words words = {"sbatch", "--parsable", "--nodes=1", "--no-requeue"};
  Add(words, "--job-name", submission.name);
  Add(words, "--exclude", Folded(submission.not_on));
  if (const std::optional<JobShape>& shape = submission.shape) {
    words.emplace_back("--ntasks=1");
    Add(words, "--partition", shape->partition);
    Add(words, "--account", shape->account);
    Add(words, "--qos", shape->qos);
    Add(words, "--time", shape->time_limit);
    Add(words, "--constraint", shape->constraint);
    Add(words, "--reservation", shape->reservation);
    if (shape->cpus_per_node > 0) Add(words, "--cpus-per-task", std::to_string(shape->cpus_per_node));
    Add(words, "--mem", shape->memory_per_node);
    Add(words, "--mem-per-cpu", shape->memory_per_cpu);
    Add(words, "--gres", shape->gres);
    if (shape->exclusive) words.emplace_back("--exclusive");
  }
  words.push_back(submission.script);
  words.insert(words.end(), submission.arguments.begin(), submission.arguments.end());
  return words;
}

}  // namespace lockstep::schedule
