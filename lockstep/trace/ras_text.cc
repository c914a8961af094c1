#include "lockstep/trace/ras_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/trace/ras_notes.h"
#include "lockstep/trace/ras_text_lines.h"

namespace lockstep::trace {
namespace {

using ras_text::Alike;
using ras_text::Key;
using ras_text::kMostRanks;
using ras_text::kMostSpelled;
using ras_text::Process;
using ras_text::RasTold;
using ras_text::Row;
using ras_text::Told;

class Builder {
 public:
  explicit Builder(RasTold status) : status_(std::move(status)) {}

  CommLog Build() {
    log_.counters = std::move(status_.counters);
    FindWorld();
    for (const auto& [key, told] : status_.communicators) Take(key, told);
    for (const auto& [process, silence] : status_.silent) TakeSilent(process, silence);
    for (const auto& [rank, remarks] : remarks_) log_.remarks[rank] = fmt::format("{}", fmt::join(remarks, ", "));
    for (const int rank : reported_) log_.reported.push_back(rank);
    log_.moving = true;
    log_.blind_spot = notes_.BlindSpot();
    CountWhatIsAmiss();
    return std::move(log_);
  }

 private:
  using Counts = std::map<int, int64_t>;  // of launches, by rank of the job

  // The largest communicator, whose ranks are the job's.
  void FindWorld() {
    const auto largest = std::max_element(status_.rows.begin(), status_.rows.end(),
                                          [](const auto& a, const auto& b) { return a.second.size < b.second.size; });
    world_ = {largest->first, 0};
    const int64_t size = largest->second.size;
    const Told& told = status_.communicators[world_];
    for (const auto& [rank, process] : told.process_of)
      if (rank_of_.emplace(process, rank).second) log_.processes.emplace(rank, ProcessText(process));
    Communicator communicator{told.hash.empty() ? fmt::format("#{}-0", world_.first) : told.hash, "", {}};
    // Where it is not told who is missing, nobody is known to have reported, but who is told of.
    whole_ = static_cast<int64_t>(told.missing.size()) >= told.missing_count;
    if (whole_) {
      for (int rank = 0; rank < size; ++rank) communicator.ranks.push_back(rank);
      std::set_difference(communicator.ranks.begin(), communicator.ranks.end(), told.missing.begin(),
                          told.missing.end(), std::inserter(reported_, reported_.end()));
    } else {
      communicator.ranks.assign(told.missing.begin(), told.missing.end());
      Count(log_.counters, "members_not_known",
            static_cast<uint64_t>(size) - std::min(communicator.ranks.size(), static_cast<size_t>(size)));
    }
    if (status_.devices > size) {
      log_.numbered_in = "communicator " + communicator.name;
      notes_.AddNumberingIn(log_.numbered_in, size, status_.devices);
    } else if (largest->second.communicators > 1) {
      notes_.AddNumbering(
          fmt::format("{} communicators are as large as the largest: where they have other ranks, a rank is a place in "
                      "communicator {}",
                      largest->second.communicators, communicator.name));
    }
    log_.communicators.push_back(std::move(communicator));
  }

  std::optional<int> RankOf(const Key& key, const Told& told, int rank) const {
    if (key == world_) return rank;
    const auto process = told.process_of.find(rank);
    const auto known = process == told.process_of.end() ? rank_of_.end() : rank_of_.find(process->second);
    return known == rank_of_.end() ? std::nullopt : std::optional(known->second);
  }

  // Counted and told of where it is not known which rank of the job that is.
  std::optional<int> RankOrNote(const Key& key, const Told& told, int rank, std::string_view what) {
    const std::optional<int> known = RankOf(key, told, rank);
    if (known) return known;
    ++outside_;
    const auto process = told.process_of.find(rank);
    notes_.Add(fmt::format("rank {} of communicator {}{} ({})", rank, told.hash,
                           process == told.process_of.end() ? "" : ", " + ProcessText(process->second), what));
    return std::nullopt;
  }

  void Take(const Key& key, const Told& told) {
    for (const auto& [rank, remarks] : told.remarks)
      if (const auto known = RankOrNote(key, told, rank, remarks.front())) {
        if (!told.missing.contains(rank)) reported_.insert(*known);
        remarks_[*known].insert(remarks.begin(), remarks.end());
      }
    std::set<int> missing;
    for (const int rank : told.missing)
      if (const auto known = RankOrNote(key, told, rank, "tells nothing")) missing.insert(*known);
    std::vector<std::pair<std::string, Counts>> all;
    for (const auto& [function, alike] : told.launched)
      if (Counts launched = Launched(key, told, function, alike); !launched.empty())
        all.emplace_back(function, std::move(launched));
    std::set<int> late;
    if (!told.missing.empty())
      for (const auto& [function, launched] : all) AddLate(launched, told.launched.at(function), late);
    log_.may_wait.insert(late.begin(), late.end());
    for (const auto& [function, launched] : all) AddFunction(told, function, launched, missing, late);
  }

  // Who has launched fewer than another.
  static void AddLate(const Counts& launched, const std::vector<Alike>& all, std::set<int>& late) {
    int64_t most = 0;
    for (const Alike& alike : all) most = std::max(most, alike.launched);
    for (const auto& [rank, count] : launched)
      if (count < most) late.insert(rank);
  }

  // Numbers count by function where NCCL is new enough, so each is a communicator of its own here.
  void AddFunction(const Told& told, const std::string& function, const Counts& launched, const std::set<int>& missing,
                   const std::set<int>& late) {
    spelled_ += static_cast<int64_t>(missing.size());
    if (spelled_ > kMostSpelled) {
      Count(log_.counters, "functions_left_out", 1);
      return;
    }
    std::set<int> members = missing;
    for (const auto& [rank, count] : launched) members.insert(rank);
    if (static_cast<int64_t>(members.size()) < told.size && told.size < kMostRanks)
      Count(log_.counters, "members_not_known", static_cast<uint64_t>(told.size) - members.size());
    const auto index = static_cast<uint32_t>(log_.communicators.size());
    log_.communicators.push_back({told.hash, "", {members.begin(), members.end()}});
    log_.functions.push_back(function);
    // For who is missing all wait that have launched as many as any, else those that launched more than another.
    int64_t fewest = missing.empty() ? launched.begin()->second : 0;
    for (const auto& [rank, count] : launched) fewest = std::min(fewest, count);
    for (const auto& [rank, count] : launched) {
      reported_.insert(rank);
      log_.counts.push_back({index, rank, count, -1});
      if (count > fewest && !late.contains(rank)) AddOp(index, rank, count);
    }
  }

  void AddOp(uint32_t communicator, int rank, int64_t sequence) {
    CommOp op;
    op.communicator = communicator;
    op.rank = rank;
    op.sequence = sequence;
    op.order = static_cast<int64_t>(log_.ops.size());
    op.function = static_cast<uint32_t>(log_.functions.size() - 1);
    log_.ops.push_back(std::move(op));
  }

  // What is known of it, by ranks of the job.
  Counts Launched(const Key& key, const Told& told, const std::string& function, const std::vector<Alike>& all) {
    Counts launched;
    std::set<int> named = told.missing;
    const Alike* unnamed = nullptr;
    int64_t unnamed_count = 0;
    for (const Alike& alike : all) {
      for (const int rank : alike.ranks) {
        if (!named.insert(rank).second) {
          Count(log_.counters, "ranks_told_twice", 1);
          continue;
        }
        const auto known = RankOrNote(key, told, rank, fmt::format("{} up to {}", function, alike.launched));
        if (known) launched[*known] = alike.launched;
      }
      const int64_t left = alike.count - static_cast<int64_t>(alike.ranks.size());
      if (left > 0) unnamed = unnamed_count == 0 ? &alike : nullptr;
      unnamed_count += std::max<int64_t>(left, 0);
    }
    // The one set of ranks that nobody names is all the others, if their number fits.
    const bool rest = key == world_ && unnamed != nullptr && whole_ &&
                      unnamed_count + static_cast<int64_t>(named.size()) == told.size &&
                      (spelled_ += told.size) <= kMostSpelled;
    if (rest) {
      for (int rank = 0; rank < told.size; ++rank)
        if (!named.contains(rank)) launched[rank] = unnamed->launched;
    } else {
      NoteUnnamed(told, function, all, unnamed_count);
    }
    return launched;
  }

  void NoteUnnamed(const Told& told, const std::string& function, const std::vector<Alike>& all, int64_t count) {
    if (count == 0) return;
    Count(log_.counters, "ranks_not_named", static_cast<uint64_t>(count));
    std::vector<std::string> parts;
    for (const Alike& alike : all)
      if (parts.size() < RasNotes::kMost) parts.push_back(fmt::format("{} up to {}", alike.count, alike.launched));
    notes_.Add(fmt::format("{} ranks of communicator {} ({}: {})", count, told.hash, function, fmt::join(parts, ", ")));
  }

  void TakeSilent(const Process& process, const std::string& silence) {
    const auto known = rank_of_.find(process);
    const bool placed = known != rank_of_.end();
    if (placed) remarks_[known->second].insert(silence);
    Count(log_.counters, "silent_processes", 1);
    if (log_.damaged.size() < RasNotes::kMost)
      log_.damaged.push_back(fmt::format("{}{}: {}", placed ? fmt::format("rank {}, ", known->second) : "",
                                         ProcessText(process), silence));
  }

  void CountWhatIsAmiss() {
    Count(log_.counters, "ranks_outside_of_the_largest_communicator", outside_);
    Count(log_.counters, "sections_missing", status_.has_warnings ? 0 : 1);
    std::set<int64_t> told;
    for (const auto& [key, one] : status_.communicators)
      if (!one.hash.empty()) told.insert(key.first);
    for (const auto& [group, row] : status_.rows)
      if (!row.ok && !told.contains(group)) Count(log_.counters, "groups_with_errors_not_told", 1);
  }

  RasTold status_;
  CommLog log_;
  Key world_;
  bool whole_ = true;  // who is missing in it is told
  std::map<Process, int> rank_of_;
  std::set<int> reported_;
  std::map<int, std::set<std::string>> remarks_;
  RasNotes notes_;
  uint64_t outside_ = 0;
  int64_t spelled_ = 0;
};

}  // namespace

bool IsRasText(std::string_view begin) { return ras_text::IsStatus(begin); }

absl::StatusOr<CommLog> ReadRasText(std::string_view text) {
  RasTold status = ras_text::Parse(text);
  if (!status.has_table)
    return InvalidArgument("no section \"Communicators\"; expected the status of NCCL's RAS, as ncclras prints it");
  if (status.rows.empty())
    return InvalidArgument("no communicators in the status of NCCL's RAS; expected a row for each group of them");
  return Builder(std::move(status)).Build();
}

}  // namespace lockstep::trace
