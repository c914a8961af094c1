#include "lockstep/trace/ras.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "lockstep/base/json_at.h"
#include "lockstep/base/json_text.h"
#include "lockstep/trace/ras_notes.h"

namespace lockstep::trace {
namespace {

using Process = RasProcess;

bool IsSet(const Json& object, const char* key) {
  const Json& value = At(object, key);
  return (value.is_boolean() && value.get<bool>()) || (value.is_number_integer() && value.get<int64_t>() != 0);
}
// A hash may be a number.
std::string TextOf(const Json& value) { return value.is_string() ? value.get<std::string>() : OneLine(value); }

Process ProcessOf(const Json& rank) {
  return {TextOf(At(rank, "host")), IntegerAt(rank, "pid", -1), IntegerAt(rank, "cuda_dev", -1)};
}

class Reader {
 public:
  absl::StatusOr<CommLog> Read(const Json& document) {
    const Json& all = At(document, "communicators");
    if (!all.is_array() || all.empty()) return InvalidArgument("no communicators in the status of NCCL's RAS");
    const Json* largest = &all.front();
    for (size_t i = 0; i < all.size(); ++i) LS_RETURN_IF_ERROR(Check(all[i], i));
    for (const Json& one : all)
      if (IntegerAt(one, "size", -1) > IntegerAt(*largest, "size", -1)) largest = &one;
    std::map<Process, std::set<int>> ranks;
    for (const char* list : {"ranks", "missing_ranks"})
      for (const Json& rank : At(*largest, list)) ranks[ProcessOf(rank)].insert(RankOf(rank));
    for (const auto& [process, of_it] : ranks) {
      if (of_it.size() == 1) {
        rank_of_.emplace(process, *of_it.begin());
        log_.processes.emplace(*of_it.begin(), ProcessText(process));
      }
      Count(log_.counters, "ranks_of_one_process", of_it.size() == 1 ? 0 : of_it.size());
    }
    for (const Json& one : all) Take(one, &one == largest);
    log_.reported.assign(reported_.begin(), reported_.end());
    log_.moving = true;
    FindNumbering(all, *largest);
    log_.blind_spot = notes_.BlindSpot();
    Count(log_.counters, "ranks_outside_of_the_largest_communicator", outside_);
    return std::move(log_);
  }

 private:
  static absl::Status Check(const Json& communicator, size_t index) {
    for (const char* list : {"ranks", "missing_ranks"})
      if (const Json& ranks = At(communicator, list); !ranks.is_array() && !ranks.is_null())
        return InvalidArgument("communicators[{}]: \"{}\" is {}; expected a list, as NCCL's RAS writes it", index, list,
                               ranks.type_name());
    return absl::OkStatus();
  }

  // Where no communicator has all ranks, those of the job can't be known.
  void FindNumbering(const Json& all, const Json& largest) {
    std::set<Process> processes;
    for (const Json& one : all)
      for (const char* list : {"ranks", "missing_ranks"})
        for (const Json& rank : At(one, list))
          if (IntegerAt(rank, "pid", -1) >= 0) processes.insert(ProcessOf(rank));
    const int64_t size = std::max<int64_t>(0, IntegerAt(largest, "size", 0));
    if (std::cmp_less_equal(processes.size(), size)) return;
    log_.numbered_in = "communicator " + TextOf(At(largest, "hash"));
    notes_.AddNumberingIn(log_.numbered_in, size, static_cast<int64_t>(processes.size()));
  }

  static int RankOf(const Json& rank) { return RankFrom(At(rank, "rank")).value_or(-1); }

  // Ranks of the largest communicator are the job's; in others they are known by their processes. Containers have
  // process numbers of their own: what is told alike of several ranks is none of them.
  int OfJob(const Json& rank, bool in_largest) const {
    if (in_largest) return RankOf(rank);
    const auto known = rank_of_.find(ProcessOf(rank));
    return known == rank_of_.end() ? -1 : known->second;
  }

  using Counts = std::map<int, int64_t>;  // of launches, by rank

  void Take(const Json& communicator, bool is_largest) {
    std::vector<int> members;
    std::map<std::string, Counts> launched;  // by function
    const bool missing = At(communicator, "missing_ranks").is_array() && !At(communicator, "missing_ranks").empty();
    const std::map<std::string, int64_t> most = Most(communicator);
    std::set<int> late;
    for (const char* list : {"ranks", "missing_ranks"})
      for (const Json& rank : At(communicator, list)) {
        const bool tells = std::string_view(list) == "ranks";
        const int number = OfJob(rank, is_largest);
        if (number < 0) {
          ++outside_;
          Note(communicator, rank, tells, most);
          continue;
        }
        members.push_back(number);
        Remark(number, At(rank, "status"));
        if (!tells) continue;
        reported_.insert(number);
        for (const auto& [function, count] : Launched(rank)) {
          launched[function][number] = count;
          if (missing && count < most.at(function)) late.insert(number);
        }
      }
    log_.may_wait.insert(late.begin(), late.end());
    for (const auto& [function, counts] : launched)
      AddFunction(TextOf(At(communicator, "hash")), function, members, counts, missing, late);
  }

  // By function.
  static std::map<std::string, int64_t> Launched(const Json& rank) {
    std::map<std::string, int64_t> launched;
    for (const auto& [function, count] : At(rank, "collective_counts").items())
      if (count.is_number_integer()) launched[function] = count.get<int64_t>();
    return launched;
  }

  // That a rank has launched, by function.
  static std::map<std::string, int64_t> Most(const Json& communicator) {
    std::map<std::string, int64_t> most;
    for (const Json& rank : At(communicator, "ranks"))
      for (const auto& [function, count] : Launched(rank)) {
        int64_t& known = most.emplace(function, count).first->second;
        known = std::max(known, count);
      }
    return most;
  }

  // What is amiss with a rank that is not known in the job.
  void Note(const Json& communicator, const Json& rank, bool tells, const std::map<std::string, int64_t>& most) {
    std::string what = tells ? "" : "tells nothing";
    for (const auto& [function, count] : Launched(rank))
      if (tells && count < most.at(function))
        what +=
            fmt::format("{}{} up to {}, others up to {}", what.empty() ? "" : ", ", function, count, most.at(function));
    if (what.empty()) return;
    notes_.Add(fmt::format("rank {} of communicator {}, {} ({})", RankOf(rank), TextOf(At(communicator, "hash")),
                           ProcessText(ProcessOf(rank)), what));
  }

  // Numbers count by function, so each is a communicator of its own here.
  void AddFunction(const std::string& hash, const std::string& function, const std::vector<int>& members,
                   const Counts& counts, bool missing, const std::set<int>& late) {
    const auto index = static_cast<uint32_t>(log_.communicators.size());
    log_.communicators.push_back({hash, "", members});
    const auto name = static_cast<uint32_t>(log_.functions.size());
    log_.functions.push_back(function);
    // For who is missing all wait that have launched as many as any, else those that launched more than another.
    int64_t fewest = missing ? 0 : counts.begin()->second;
    for (const auto& [rank, count] : counts) fewest = std::min(fewest, count);
    for (const auto& [rank, count] : counts) {
      log_.counts.push_back({index, rank, count, -1});
      if (count <= std::max<int64_t>(fewest, 0) || late.contains(rank)) continue;
      CommOp op;
      op.communicator = index;
      op.rank = rank;
      op.sequence = count;
      op.order = static_cast<int64_t>(log_.ops.size());
      op.function = name;
      log_.ops.push_back(std::move(op));
    }
  }

  void Remark(int rank, const Json& status) {
    std::string& remark = log_.remarks[rank];
    const auto add = [&remark](const std::string& text) {
      if (remark.find(text) == std::string::npos) remark += (remark.empty() ? "" : ", ") + text;
    };
    if (IsSet(status, "considered_dead")) add("considered dead by NCCL's RAS");
    if (IsSet(status, "unresponsive")) add("does not answer NCCL's RAS");
    if (IsSet(status, "async_error"))
      add("has an asynchronous error of NCCL (" + TextOf(At(status, "async_error")) + ")");
    if (IsSet(status, "abort_flag")) add("has aborted its communicator");
    if (remark.empty()) log_.remarks.erase(rank);
  }

  CommLog log_;
  std::map<Process, int> rank_of_;
  std::set<int> reported_;
  RasNotes notes_;
  uint64_t outside_ = 0;
};

}  // namespace

bool IsRas(const Json& document) { return At(document, "communicators").is_array(); }
absl::StatusOr<CommLog> ReadRas(const Json& document) { return Reader().Read(document); }

}  // namespace lockstep::trace
