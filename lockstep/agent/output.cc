#include "lockstep/agent/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace lockstep::agent {

Output::Output(const RunSpec& spec, Poller& poller, Sink sink)
    : spec_(spec), poller_(poller), sink_(std::move(sink)), logged_bytes_(static_cast<size_t>(spec.ranks), 0) {
  mkdir((spec.run_dir + "/logs").c_str(), 0700);
  for (int rank = 0; rank < spec.ranks; ++rank) {
    // Without a log file (full disk) the output still reaches the terminal.
    logs_.emplace_back(open(LogPath(spec, rank).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  }
}

Output::~Output() {
  for (const auto& stream : streams_) poller_.Forget(stream->read_end.get());
}

absl::StatusOr<std::vector<Stdio>> Output::Open() {
  std::vector<Stdio> workers(static_cast<size_t>(spec_.ranks));
  for (int rank = 0; rank < spec_.ranks; ++rank) {
    for (const int number : {1, 2}) {
      int ends[2];
      if (pipe2(ends, O_CLOEXEC) != 0) return Errno(errno, "pipes for the output of rank {}", rank);
      fcntl(ends[0], F_SETFL, O_NONBLOCK);
      fcntl(ends[0], F_SETPIPE_SZ, 1 << 20);
      Stdio& stdio = workers[static_cast<size_t>(rank)];
      (number == 1 ? stdio.out : stdio.err) = Fd(ends[1]);
      streams_.push_back(std::make_unique<Stream>(Stream{rank, number, Fd(ends[0])}));
      Stream* stream = streams_.back().get();
      poller_.Watch(ends[0], [this, stream] {
        if (!Read(*stream)) poller_.Forget(stream->read_end.get());
      });
    }
  }
  return workers;
}

bool Output::Read(Stream& stream) {
  std::array<char, 65536> chunk{};
  for (;;) {
    const ssize_t got = read(stream.read_end.get(), chunk.data(), chunk.size());
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    const std::string_view data(chunk.data(), static_cast<size_t>(got));
    Keep(stream.rank, data);
    sink_(stream.rank, stream.number, data);
    if (data.size() < chunk.size()) return true;
  }
}

void Output::Keep(int rank, std::string_view data) {
  const auto index = static_cast<size_t>(rank);
  const uint64_t room = spec_.log_limit.value - std::min(spec_.log_limit.value, logged_bytes_[index]);
  const size_t keep = std::min<size_t>(room, data.size());
  const ssize_t wrote = logs_[index].valid() && keep > 0 ? write(logs_[index].get(), data.data(), keep) : 0;
  const auto kept = static_cast<uint64_t>(std::max<ssize_t>(wrote, 0));
  logged_bytes_[index] += kept;
  dropped_bytes_ += data.size() - kept;
}

void Output::Drain() {
  for (const auto& stream : streams_) {
    Read(*stream);
    poller_.Forget(stream->read_end.get());
  }
  streams_.clear();
}

}  // namespace lockstep::agent
