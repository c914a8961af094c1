// What workers print: read from their pipes by the starter, kept in one bounded log per rank, and passed on to whoever
// listens. A stream that --redirects or --tee sends to a file of torchrun's layout is kept there, and in one log of the
// rank otherwise. Training never waits for a terminal or a full disk: what can't be kept is dropped and counted.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/agent/python_host.h"
#include "lockstep/agent/spec.h"
#include "lockstep/base/poller.h"

namespace lockstep::agent {

class Output {
 public:
  // stream: 1 = stdout, 2 = stderr. Not called for a stream that the console shall not show.
  using Sink = std::function<void(int rank, int stream, std::string_view data)>;

  Output(const RunSpec& spec, Poller& poller, Sink sink);
  ~Output();
  // New pipes for the workers of an epoch; the write ends go to them. Pipes of earlier epochs stay until they are
  // empty.
  absl::StatusOr<std::vector<Stdio>> Open(int restart_count);
  // The epoch is over: reads what is left in the pipes, and closes them. Those of ranks that stay, as processes, are
  // read until nobody writes to them any more.
  void Drain(const std::function<bool(int rank)>& stays);
  // Not kept: beyond the limit of the log, or refused by the disk.
  uint64_t dropped_bytes() const { return dropped_bytes_; }

 private:
  struct Stream {
    int rank, number;
    Fd read_end;
    Fd file;  // none: the rank's log
  };
  absl::Status OpenStream(int rank, int number, int restart_count, Fd& write_end);
  // What the pipe holds, at least. False at the end of the stream.
  bool Read(Stream& stream);
  void CloseIf(const std::function<bool(Stream& stream)>& is_over);
  void Keep(const Stream& stream, std::string_view data);

  const RunSpec& spec_;
  Poller& poller_;
  Sink sink_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<Fd> logs_;
  std::vector<uint64_t> logged_bytes_;
  uint64_t dropped_bytes_ = 0;
};

}  // namespace lockstep::agent
