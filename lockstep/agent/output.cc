#include "lockstep/agent/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>

namespace lockstep::agent {
namespace {

constexpr int kPipeBytes = 1 << 20;

// Also makes the folder in which the rank finds room for its error file.
absl::StatusOr<Fd> OpenFile(const RunSpec& spec, int rank, int stream, int restart_count) {
  if (spec.torchrun.log_dir.empty()) return Fd();
  const std::string folder = AttemptDir(spec.torchrun, restart_count, rank);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return Errno(error.value(), "the folder of --log-dir, {}", folder);
  if (!StreamsOf(spec.torchrun, rank).ToFile(stream)) return Fd();
  const std::string path = folder + (stream == 1 ? "/stdout.log" : "/stderr.log");
  Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file.valid()) return Errno(errno, "{}", path);
  return file;
}

}  // namespace

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

absl::StatusOr<std::vector<Stdio>> Output::Open(int restart_count) {
  std::vector<Stdio> workers(static_cast<size_t>(spec_.ranks));
  for (int rank = 0; rank < spec_.ranks; ++rank) {
    Stdio& stdio = workers[static_cast<size_t>(rank)];
    LS_RETURN_IF_ERROR(OpenStream(rank, 1, restart_count, stdio.out));
    LS_RETURN_IF_ERROR(OpenStream(rank, 2, restart_count, stdio.err));
  }
  return workers;
}

absl::Status Output::OpenStream(int rank, int number, int restart_count, Fd& write_end) {
  LS_ASSIGN_OR_RETURN(Pipe pipe, MakePipe(fmt::format("pipes for the output of rank {}", rank)));
  write_end = std::move(pipe.write);
  const int read_end = pipe.read.get();
  auto stream = std::make_unique<Stream>(Stream{rank, number, std::move(pipe.read), {}});
  fcntl(read_end, F_SETFL, O_NONBLOCK);
  fcntl(read_end, F_SETPIPE_SZ, kPipeBytes);
  LS_ASSIGN_OR_RETURN(stream->file, OpenFile(spec_, rank, number, restart_count));
  Stream* own = stream.get();
  streams_.push_back(std::move(stream));
  poller_.Watch(read_end, [this, own] {
    if (!Read(*own)) CloseIf([own](const Stream& one) { return &one == own; });
  });
  return absl::OkStatus();
}

bool Output::Read(Stream& stream) {
  std::array<char, 65536> chunk{};
  for (size_t taken = 0; taken <= kPipeBytes;) {  // no more: who prints faster than we read would keep us here
    const ssize_t got = read(stream.read_end.get(), chunk.data(), chunk.size());
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    const std::string_view data(chunk.data(), static_cast<size_t>(got));
    Keep(stream, data);
    if (StreamsOf(spec_.torchrun, stream.rank).ToConsole(stream.number)) sink_(stream.rank, stream.number, data);
    if (data.size() < chunk.size()) return true;
    taken += data.size();
  }
  return true;
}

void Output::Keep(const Stream& stream, std::string_view data) {
  const auto index = static_cast<size_t>(stream.rank);
  const Fd& file = stream.file.valid() ? stream.file : logs_[index];
  const uint64_t room = spec_.log_limit.value - std::min(spec_.log_limit.value, logged_bytes_[index]);
  const size_t keep = std::min<size_t>(room, data.size());
  const ssize_t wrote = file.valid() && keep > 0 ? write(file.get(), data.data(), keep) : 0;
  const auto kept = static_cast<uint64_t>(std::max<ssize_t>(wrote, 0));
  logged_bytes_[index] += kept;
  dropped_bytes_ += data.size() - kept;
}

void Output::Drain(const std::function<bool(int rank)>& stays) {
  CloseIf([&](Stream& stream) { return !Read(stream) || !stays(stream.rank); });
}

void Output::CloseIf(const std::function<bool(Stream& stream)>& is_over) {
  std::erase_if(streams_, [&](const auto& stream) {
    if (!is_over(*stream)) return false;
    poller_.Forget(stream->read_end.get());
    return true;
  });
}

}  // namespace lockstep::agent
