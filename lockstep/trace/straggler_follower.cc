#include "lockstep/trace/straggler_follower.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "lockstep/trace/byte_source.h"
#include "lockstep/trace/straggler_job.h"

namespace lockstep::trace {
namespace {

constexpr size_t kPatience = 8;       // steps that begin after a step until it is complete without all workers
constexpr size_t kRemembered = 1000;  // completed steps

// Rows of several steps as those of one trace.
StragglerRows Joined(const std::vector<const StragglerRows*>& steps) {
  StragglerRows joined;
  for (const StragglerRows* step : steps) {
    const auto index = static_cast<uint32_t>(joined.steps.size());
    joined.steps.push_back(step->steps.front());
    for (const auto& piece : step->pieces)
      for (StragglerRow row : piece) {
        row.step = index;
        joined.Add(row);
      }
    if (joined.ranks.empty()) joined.ranks = step->ranks;
    for (size_t dp = 0; dp < step->ranks.size(); ++dp)
      for (size_t stage = 0; stage < step->ranks[dp].size(); ++stage)
        if (joined.ranks[dp][stage] < 0) joined.ranks[dp][stage] = step->ranks[dp][stage];
  }
  return joined;
}

}  // namespace

absl::StatusOr<StragglerFollower> StragglerFollower::Open(const std::string& path, const StragglerMeta& meta,
                                                          size_t window) {
  LS_RETURN_IF_ERROR(RefusePipe(path));
  StragglerFollower follower(path, meta, window);
  follower.file_.open(path, std::ios::binary);
  struct stat now{};
  if (!follower.file_ || stat(path.c_str(), &now) != 0) return ErrnoError(errno, path);
  follower.identity_ = {now.st_dev, now.st_ino};
  const std::string begin = FirstBytes(path, 4);
  const bool gzip = begin.starts_with("\x1f\x8b");
  if (gzip || begin == "PAR1")
    return InvalidArgument("{}: {} can't be followed while it grows; expected plain CSV", path,
                           gzip ? "a gzip file" : "Parquet");
  return follower;
}

absl::StatusOr<bool> StragglerFollower::NextLine() {
  std::string piece;
  std::getline(file_, piece);
  bytes_ += piece.size();
  line_ += piece;
  if (file_.good()) {
    ++bytes_;
    ++lines_;
    if (line_.ends_with('\r')) line_.pop_back();
    return true;
  }
  if (file_.bad()) return ErrnoError(errno, path_);
  file_.clear();
  LS_RETURN_IF_ERROR(CheckPath());
  return false;
}

absl::Status StragglerFollower::CheckPath() const {
  struct stat now{};
  if (stat(path_.c_str(), &now) != 0) return DataLoss("{}: {}", path_, std::generic_category().message(errno));
  if (FileIdentity{now.st_dev, now.st_ino} != identity_)
    return DataLoss("{}: another file took its place while it was followed; expected one that grows: start anew",
                    path_);
  if (static_cast<uint64_t>(now.st_size) < bytes_) return DataLoss("{}: became shorter while it was followed", path_);
  return absl::OkStatus();
}

absl::Status StragglerFollower::Take(std::string_view line) {
  if (lines_ == 1) return csv_.ReadHeader(line);
  if (line.empty()) return absl::OkStatus();
  RawRow row;
  LS_RETURN_IF_ERROR(csv_.ReadRow(line, row));
  auto step = std::find_if(open_.rbegin(), open_.rend(), [&](const auto& one) { return one.number == row.step; });
  if (step == open_.rend() && std::find(completed_.rbegin(), completed_.rend(), row.step) != completed_.rend())
    return ++late_rows_, absl::OkStatus();
  if (step == open_.rend()) {
    open_.push_back({row.step, begun_++, StragglerSink(*meta_, {})});
    step = open_.rbegin();
    step->sink.RefuseTwice();
  }
  LS_RETURN_IF_ERROR(step->sink.Add(row));
  ++step->lines;
  uint64_t& newest = newest_[{row.dp_rank, row.stage}];
  newest = std::max(newest, step->place);
  return absl::OkStatus();
}

bool StragglerFollower::IsComplete(const OpenStep& step) const {
  const auto workers = static_cast<size_t>(meta_->dp) * static_cast<size_t>(meta_->pp);
  return open_.size() > kPatience ||
         (newest_.size() == workers &&
          std::all_of(newest_.begin(), newest_.end(), [&](const auto& one) { return one.second > step.place; }));
}

void StragglerFollower::Complete() {
  OpenStep& step = open_.front();
  complete_.push_back({step.number, step.sink.TakeRows(), step.sink.Counters(), step.lines});
  open_.pop_front();
  if (complete_.size() > window_) complete_.pop_front();
}

absl::StatusOr<bool> StragglerFollower::Advance() {
  for (bool more = true;;) {
    if (!open_.empty() && (IsComplete(open_.front()) || (!more && IsAsLongAsTheLast(open_.front())))) {
      Complete();
      if (complete_.back().rows.size() == 0) {
        complete_.pop_back();  // none of its rows could be used
        continue;
      }
      completed_.push_back(step());
      if (completed_.size() > kRemembered) completed_.pop_front();
      return true;
    }
    if (!more) return false;
    LS_ASSIGN_OR_RETURN(more, NextLine());
    if (!more) continue;
    if (const absl::Status status = Take(line_); !status.ok())
      return InvalidArgument("{}:{}: {}", path_, lines_, Message(status));
    line_.clear();
  }
}

absl::StatusOr<TracedJob> StragglerFollower::Window() const {
  std::vector<const StragglerRows*> steps;
  steps.reserve(complete_.size());
  for (const CompleteStep& step : complete_) steps.push_back(&step.rows);
  LS_ASSIGN_OR_RETURN(TracedJob job, BuildStragglerJob(Joined(steps), *meta_));
  for (const CompleteStep& step : complete_)
    for (const Counter& counter : step.counters) Count(job.counters, counter.name, counter.count);
  Count(job.counters, "late_rows", late_rows_);
  return job;
}

}  // namespace lockstep::trace
