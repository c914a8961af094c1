#include "lockstep/feed/begun_epochs.h"

#include <unistd.h>

#include <sstream>
#include <utility>

#include "lockstep/base/file.h"
#include "lockstep/base/log.h"

namespace lockstep::feed {
namespace {

constexpr char kFormat[] = "lockstep-begun-1";
constexpr size_t kEpochs = 64;  // of a job: more than the ranks of one can be apart
constexpr size_t kJobs = 256;

}  // namespace

BegunEpochs::BegunEpochs(std::string path) : path_(std::move(path)) {
  std::istringstream lines(ReadFile(path_).value_or(""));
  std::string format;
  if (!std::getline(lines, format) || format != kFormat) return;
  uint64_t job = 0, epoch = 0;
  for (sampling::Lap lap; lines >> job >> epoch >> lap.number >> lap.offset >> lap.window;) laps_[job][epoch] = lap;
}

void BegunEpochs::Note(uint64_t job, uint64_t epoch, const sampling::Lap& lap) {
  if (!laps_.contains(job) && laps_.size() >= kJobs) laps_.erase(laps_.begin());
  auto& own = laps_[job];
  if (const auto known = own.find(epoch); known != own.end() && known->second == lap) return;
  own.erase(own.lower_bound(epoch), own.end());
  own[epoch] = lap;
  while (own.size() > kEpochs) own.erase(own.begin());
  Write();
}

std::optional<sampling::Lap> BegunEpochs::After(uint64_t job, uint64_t epoch, const sampling::Lap& lap) const {
  const auto own = laps_.find(job);
  if (own == laps_.end()) return std::nullopt;
  const auto here = own->second.find(epoch), next = own->second.find(epoch + 1);
  if (here == own->second.end() || next == own->second.end() || here->second != lap) return std::nullopt;
  return next->second;
}

void BegunEpochs::Write() {
  std::string text = fmt::format("{}\n", kFormat);
  for (const auto& [job, own] : laps_)
    for (const auto& [epoch, lap] : own)
      text += fmt::format("{} {} {} {} {}\n", job, epoch, lap.number, lap.offset, lap.window);
  const absl::Status written = WriteFileAtomically(path_, text);
  if (written.ok() || std::exchange(complained_, true)) return;
  Log(LogLevel::kWarning,
      "{}: where epochs begin can't be kept, so after a crash of this service ranks wait for each other",
      Message(written));
}

void BegunEpochs::Remove() { unlink(path_.c_str()); }

}  // namespace lockstep::feed
