#include "lockstep/trace/ras_text_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>

#include "lockstep/base/number.h"
#include "lockstep/base/split.h"

namespace lockstep::trace::ras_text {
namespace {

constexpr int64_t kMostDevices = 1024;  // of a process

// ---- lines ----

std::string_view NextLine(std::string_view& text) { return Trim(TakeLine(text)); }

// What stands in the place of each {} of the pattern; nothing: the line is another one.
using Words = std::vector<std::string_view>;
std::optional<Words> Match(std::string_view line, std::string_view pattern) {
  size_t hole = pattern.find("{}");
  if (!line.starts_with(pattern.substr(0, hole))) return std::nullopt;
  line.remove_prefix(std::min(hole, pattern.size()));
  Words words;
  while (hole != std::string_view::npos) {
    pattern.remove_prefix(hole + 2);
    hole = pattern.find("{}");
    const std::string_view literal = pattern.substr(0, hole);
    const size_t at = pattern.empty() ? line.size() : line.find(literal);
    if (at == std::string_view::npos) return std::nullopt;
    words.push_back(line.substr(0, at));
    line.remove_prefix(at + literal.size());
  }
  return line.empty() ? std::optional(words) : std::nullopt;
}

std::optional<int64_t> NumberOf(std::string_view text) {
  const auto number = WholeNumber<int64_t>(text);
  return number && *number >= 0 ? number : std::nullopt;
}

Words Split(std::string_view text, std::string_view separators) {
  Words words;
  while (true) {
    const size_t first = text.find_first_not_of(separators);
    if (first == std::string_view::npos) return words;
    text.remove_prefix(first);
    const size_t length = std::min(text.find_first_of(separators), text.size());
    words.push_back(text.substr(0, length));
    text.remove_prefix(length);
  }
}

// "0, 2-4"; none of it where one can't be read, or where there are more than `most` or one is none of them.
std::optional<std::vector<int64_t>> ListOf(std::string_view text, int64_t most) {
  std::vector<int64_t> numbers;
  for (const std::string_view part : Split(text, ", \t")) {
    const auto range = Match(part, "{}-{}");
    const auto first = NumberOf(range ? range->front() : part), last = NumberOf(range ? range->back() : part);
    if (!first || !last || *first > *last || *last >= most) return std::nullopt;
    if (static_cast<int64_t>(numbers.size()) + *last - *first >= most) return std::nullopt;
    for (int64_t number = *first; number <= *last; ++number) numbers.push_back(number);
  }
  if (numbers.empty()) return std::nullopt;
  return numbers;
}

// The devices of a process: "5", "0,1", "5 (NVML 7)".
std::optional<std::vector<Process>> ProcessesOf(std::string_view pid, std::string_view host, std::string_view devices) {
  const auto number = NumberOf(pid);
  const auto list = ListOf(devices.substr(0, devices.find('(')), kMostDevices);
  if (!number || !list || host.empty()) return std::nullopt;
  std::vector<Process> processes;
  for (const int64_t device : *list) processes.emplace_back(std::string(host), *number, device);
  return processes;
}

// ---- reading it ----

class Parser {
 public:
  RasTold Parse(std::string_view text) {
    while (!text.empty()) {
      const std::string_view line = NextLine(text);
      if (line.empty() || line.find_first_not_of('=') == std::string_view::npos || IsHeading(line)) continue;
      if (section_ == Section::kSummary) TakeSummary(line);
      const bool matters = section_ == Section::kTable || section_ == Section::kEntries;
      if (matters && !(section_ == Section::kTable ? TakeRow(line) : TakeEntry(line)))
        Count(status_.counters, "lines_not_understood", 1);
    }
    return std::move(status_);
  }

 private:
  enum class Section { kOther, kSummary, kTable, kEntries };
  enum class Topic { kNone, kMissing, kErrors, kState, kLaunched };

  bool IsHeading(std::string_view line) {
    const bool table = line.starts_with("Communicators...");
    if (table)
      section_ = Section::kTable;
    else if (line == "Errors" || line == "Warnings")
      section_ = Section::kEntries;
    else if (line == "Job summary")
      section_ = Section::kSummary;
    else
      return false;
    status_.has_table = status_.has_table || table;
    status_.has_warnings = status_.has_warnings || line == "Warnings";
    Begin(nullptr);
    return true;
  }

  void Begin(Told* told) {
    told_ = told;
    topic_ = Topic::kNone;
    alike_.clear();
  }

  // Of nodes that are alike: how many, processes per node, devices per process, processes, devices.
  void TakeSummary(std::string_view line) {
    const Words words = Split(line, " \t");
    const auto devices = words.size() == 5 ? NumberOf(words.back()) : std::nullopt;
    if (devices && *devices <= kMostRanks) status_.devices += *devices;
  }

  // Group, communicators in it, nodes, ranks per node, ranks per communicator, ranks in the group, status, errors.
  bool TakeRow(std::string_view line) {
    if (line.starts_with("Group") || line.starts_with('#') || line.starts_with("No communicator data")) return true;
    const Words words = Split(line, " \t");
    if (words.size() < 8) return false;
    const auto group = NumberOf(words[0]), communicators = NumberOf(words[1]), size = NumberOf(words[4]);
    if (!group || !communicators || !size || *size < 1 || *size > kMostRanks) return false;
    return status_.rows.emplace(*group, Row{*size, words[7] == "OK", *communicators}).second;
  }

  bool TakeEntry(std::string_view line) {
    if (const auto words = Match(line, "#{}-{} ({}) {}")) return TakeCommunicator(*words);
    if (line == "INCOMPLETE" || line == "DEAD" || line == "TIMEOUT") {
      Begin(nullptr);
      silence_ = line == "DEAD" ? "considered dead by NCCL's RAS" : "does not answer NCCL's RAS";
      return true;
    }
    if (told_ == nullptr) return TakeOfJob(line);
    if (TakeTopic(line) || TakeAlike(line) || TakeRank(line)) return true;
    // Ranks that are named below a line that is not understood have nothing to do with what stood above it.
    if (!line.starts_with("Rank")) Begin(told_);
    return false;
  }

  bool TakeCommunicator(const Words& words) {
    Begin(nullptr);
    const auto group = NumberOf(words[0]), number = NumberOf(words[1]);
    if (!group || !number) return false;
    Told& told = status_.communicators[{*group, *number}];
    told.hash = words[2];
    if (const auto row = status_.rows.find(*group); row != status_.rows.end()) told.size = row->second.size;
    Begin(&told);
    return true;
  }

  bool TakeOfJob(std::string_view line) {
    if (const auto words = Match(line, "Process {} on node {} managing GPU{} {}")) {
      const auto processes = ProcessesOf((*words)[0], (*words)[1], (*words)[3]);
      if (!processes) return false;
      for (const Process& process : *processes) status_.silent.emplace_back(process, silence_);
      return true;
    }
    if (const auto words = Match(line, "[could not find information on {} process{}]"))
      return CountTold("processes_not_told", words->front());
    if (const auto words = Match(line, "Encountered {} communication timeout{} while {}"))
      return CountTold("ras_timeouts", words->front());
    return Match(line, "Missing communicator data from {} job process{}") ||
           Match(line, "{} job process{} considered dead{}");
  }

  bool CountTold(std::string_view name, std::string_view text) {
    const auto count = NumberOf(text);
    if (count) Count(status_.counters, name, static_cast<uint64_t>(*count));
    return count.has_value();
  }

  bool TakeTopic(std::string_view line) {
    const Topic topic = TopicOf(line);
    if (topic == Topic::kNone) return false;
    topic_ = topic;
    alike_.clear();
    return true;
  }

  Topic TopicOf(std::string_view line) {
    if (const auto words = Match(line, "Missing communicator data from {} rank{}")) {
      told_->missing_count = std::max(told_->missing_count, NumberOf(words->front()).value_or(kMostRanks));
      return Topic::kMissing;
    }
    if (const auto words = Match(line, "Communicator ranks have different {} operation counts")) {
      function_ = words->front();
      return Topic::kLaunched;
    }
    if (Match(line, "Initialization error{} on {} rank{}"))
      error_ = "an error of its initialization";
    else if (Match(line, "Asynchronous error{} on {} rank{}"))
      error_ = "an asynchronous error";
    else
      return line == "Communicator ranks have different status" ? Topic::kState : Topic::kNone;
    return Topic::kErrors;
  }

  // Ranks that have something in common; some kinds of line name them behind it.
  bool TakeAlike(std::string_view line) {
    if (const auto words = Match(line, "The missing rank{}: {}")) return TakeMissing(words->back());
    if (Match(line, "The unknown rank{}: {}")) return true;
    if (line.starts_with("Rank")) return false;
    std::string_view count, what;
    if (const auto words = Match(line, "{} ranks {}")) {
      count = words->front(), what = words->back();
    } else if (const auto one = Match(line, "{} rank {}")) {
      count = one->front(), what = one->back();
    }
    const auto number = NumberOf(count);
    if (!number || *number > told_->size || !IsSaying(what)) return false;
    alike_ = what;
    if (const auto launched = LaunchedOf(what)) {
      if (topic_ != Topic::kLaunched) return false;
      told_->launched[function_].push_back({*launched, *number, {}});
    }
    return true;
  }

  bool TakeMissing(std::string_view list) {
    const auto ranks = ListOf(list, told_->size);
    if (!ranks || !Spell(static_cast<int64_t>(ranks->size()))) return false;
    for (const int64_t rank : *ranks) told_->missing.insert(static_cast<int>(rank));
    return true;
  }

  bool Spell(int64_t ranks) { return (spelled_ += ranks) <= kMostSpelled; }

  static std::optional<int64_t> LaunchedOf(std::string_view what) {
    if (what.ends_with("not launched any operations")) return 0;
    const auto words = Match(what, "{} launched up to operation {}");
    return words ? NumberOf(words->back()) : std::nullopt;
  }
  static bool IsSaying(std::string_view what) {
    return LaunchedOf(what) || what.starts_with("reported ") || Match(what, "{} status {}");
  }

  // "Rank 3 has status INIT -- GPU 5 managed by process 1 on node h"; or "Rank 3 -- ...", which says what stood above.
  bool TakeRank(std::string_view line) {
    const auto parts = Match(line, "{} -- {}");
    const auto words = Split(parts ? parts->front() : line, " ");
    if (words.size() < 2 || words[0] != "Rank") return false;
    const auto rank = NumberOf(words[1]);
    if (!rank || *rank >= told_->size) return false;
    const std::string_view head = parts ? parts->front() : line;
    const std::string_view own =
        words.size() == 2 ? "" : head.substr(static_cast<size_t>(words[2].data() - head.data()));
    if (!own.empty() && !IsSaying(own)) return false;
    if (parts) TakeProcess(static_cast<int>(*rank), parts->back());
    return Say(static_cast<int>(*rank), own);
  }

  void TakeProcess(int rank, std::string_view text) {
    const auto words = Match(text, "GPU {} managed by process {} on node {}");
    if (!words) return;
    const auto processes = ProcessesOf((*words)[1], (*words)[2], (*words)[0]);
    if (processes && processes->size() == 1) told_->process_of.emplace(rank, processes->front());
  }

  bool Say(int rank, std::string_view own) {
    const std::string_view what = own.empty() ? std::string_view(alike_) : own;
    switch (topic_) {
      case Topic::kMissing:
        told_->missing.insert(rank);
        return own.empty();
      case Topic::kErrors:
        return Remark(rank, "has " + error_ + " of NCCL", own, Match(what, "reported {}"));
      case Topic::kState:
        return Remark(rank, "its communicator differs in its status", own, Match(what, "{} status {}"));
      case Topic::kLaunched:
        return SayLaunched(rank, own);
      case Topic::kNone:
        return false;
    }
    return false;
  }

  bool Remark(int rank, const std::string& text, std::string_view own, const std::optional<Words>& detail) {
    if (!own.empty() && !detail) return false;
    told_->remarks[rank].push_back(detail ? fmt::format("{} ({})", text, detail->back()) : text);
    return true;
  }

  bool SayLaunched(int rank, std::string_view own) {
    std::vector<Alike>& all = told_->launched[function_];
    if (const auto launched = LaunchedOf(own)) {
      all.push_back({*launched, 1, {rank}});
      alike_.clear();
      return true;
    }
    if (alike_.empty() || all.empty()) return false;
    all.back().ranks.insert(rank);
    return true;
  }

  RasTold status_;
  Section section_ = Section::kOther;
  Told* told_ = nullptr;  // the communicator that the entry is of; null: the job
  Topic topic_ = Topic::kNone;
  std::string silence_, function_, error_;
  std::string alike_;  // what ranks that are named next have in common
  int64_t spelled_ = 0;
};

}  // namespace

RasTold Parse(std::string_view text) { return Parser().Parse(text); }

bool IsStatus(std::string_view begin) {
  while (!begin.empty()) {
    const std::string_view line = NextLine(begin);
    if (line == "Job summary" || line.starts_with("Communicators...") || line.starts_with("SERVER PROTOCOL ") ||
        Match(line, "NCCL version {} compiled with CUDA{}"))
      return true;
  }
  return false;
}

}  // namespace lockstep::trace::ras_text
