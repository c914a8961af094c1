#include "lockstep/inspect/kernel_log_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/base/file.h"

namespace lockstep::inspect {
namespace {

constexpr size_t kMostSubjects = 256;  // told apart; a log may name any number
constexpr int kMostRecords = 2000;     // a reading; the rest waits for the next
constexpr size_t kMostText = 300;      // of a line, kept
constexpr int kUserFacility = 1;       // what root writes into /dev/kmsg without naming one: rehearsals

class SystemLog final : public Reader {
 public:
  SystemLog(const Settings& settings, const Where& where)
      : settings_(settings), path_(where.tree.Path("/dev/kmsg")), judge_(settings) {
    fd_ = Fd(open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    struct stat stat = {};
    if (!fd_.valid()) {
      error_ = errno;
    } else if (fstat(fd_.get(), &stat) == 0 && S_ISCHR(stat.st_mode)) {
      is_device_ = true;
      lseek(fd_.get(), 0, SEEK_END);
    }
  }

  Reading Read(Nanos now) override {
    Reading reading{.source = Source::kKernelLog, .at = now};
    if (fd_.valid()) is_device_ ? ReadRecords(now) : ReadLines(now);
    if (error_ != 0) {
      MissAll(settings_, fmt::format("{}: {}", path_, std::strerror(error_)), reading);
      return reading;
    }
    reading.figures.push_back({"kernel", fmt::format("{} lines read, {} lost", lines_, lost_)});
    judge_.Judge(now, reading);
    return reading;
  }

 private:
  // One record a read(2). EPIPE: the kernel has overwritten some that we had not read.
  void ReadRecords(Nanos now) {
    std::array<char, 8192> record;
    for (int i = 0; i < kMostRecords; ++i) {
      const ssize_t size = read(fd_.get(), record.data(), record.size());
      if (size < 0 && errno == EPIPE) {
        overwritten_ = true;
        continue;
      }
      if (size < 0 && errno != EAGAIN && errno != EINTR) error_ = errno;
      if (size <= 0) return;
      const auto parsed = ParseKernelRecord({record.data(), static_cast<size_t>(size)});
      if (!parsed) continue;
      if (std::exchange(overwritten_, false)) lost_ += lines_ == 0 ? 1 : parsed->sequence - sequence_ - 1;
      sequence_ = parsed->sequence;
      ++lines_;
      if (parsed->facility <= kUserFacility) judge_.Take(parsed->text, now);
    }
  }

  void ReadLines(Nanos now) {
    std::array<char, 65536> bytes;
    for (ssize_t size; (size = read(fd_.get(), bytes.data(), bytes.size())) > 0;) {
      rest_.append(bytes.data(), static_cast<size_t>(size));
      const size_t end = rest_.rfind('\n');
      if (end == std::string::npos) continue;
      for (const std::string_view line : Lines(std::string_view(rest_).substr(0, end))) {
        ++lines_;
        judge_.Take(KernelText(line), now);
      }
      rest_.erase(0, end + 1);
    }
  }

  const Settings settings_;
  const std::string path_;
  LogJudge judge_;
  Fd fd_;
  int error_ = 0;
  bool is_device_ = false;
  std::string rest_;
  bool overwritten_ = false;
  uint64_t lines_ = 0, lost_ = 0, sequence_ = 0;  // of the last record
};

}  // namespace

void LogJudge::Take(std::string_view text, Nanos at) {
  const std::optional<LogEvent> event = ClassifyKernelLine(text);
  if (!event) return;
  const std::pair<std::string, std::string> subject(event->item, event->subject);
  if (event->heals) {
    told_.erase(subject);
    return;
  }
  if (told_.size() >= kMostSubjects && !told_.contains(subject)) return;
  const auto [place, is_new] = told_.try_emplace(subject);
  Told& told = place->second;
  told.lines.Count(at, 1, settings_[event->item].window);
  told.last = text.substr(0, kMostText);
  // The item's class, as it is set, is for lines that are of its usual one; others have their own.
  const bool usual = event->fault == defaults_[event->item].fault;
  if (usual) told.fault.reset();
  if (!usual && is_new) told.fault = event->fault;
}

void LogJudge::Judge(Nanos at, Reading& reading) {
  for (auto told = told_.begin(); told != told_.end();) {
    const auto& [item, subject] = told->first;
    const uint64_t lines = told->second.lines.Count(at, 0, settings_[item].window);
    if (static_cast<double>(lines) >= *settings_[item].threshold)
      reading.conditions.push_back({item, subject,
                                    lines == 1 ? told->second.last
                                               : fmt::format("{} (the newest of {} lines in {:.0f} s)",
                                                             told->second.last, lines, settings_[item].window.value),
                                    told->second.fault});
    told = lines == 0 ? told_.erase(told) : std::next(told);
  }
}

std::unique_ptr<Reader> KernelLogReader(const Settings& settings, const Where& where) {
  return std::make_unique<SystemLog>(settings, where);
}

}  // namespace lockstep::inspect
