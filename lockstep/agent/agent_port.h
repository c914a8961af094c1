// The starter's end of its connection to the agent. The newest agent has the word. What its socket does not take
// waits until it does: events first, then output, of which kMostOutputKept bytes are kept; what is more is dropped,
// counted, and how much is said in its place. The log has it.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/agent/wire.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/doorway.h"
#include "lockstep/base/poller.h"
#include "lockstep/base/report.h"
#include "lockstep/base/status.h"

namespace lockstep::agent {

class AgentPort {
 public:
  struct Calls {
    std::function<void()> connected;
    std::function<void(const Json& request, std::vector<Fd>& fds)> asked;
    std::function<void()> left;     // the agent has hung up, however it ended
    std::function<void()> waiting;  // an event waits for Flush, or an agent for being missed
  };
  AgentPort(Poller& poller, const Clock& clock, Calls calls);
  absl::Status Listen(const std::string& path);

  bool connected() const { return fd_.valid(); }
  // How long no agent has been there; 0 while one is.
  Nanos Missed() const;
  bool queued() const { return !events_.empty() || !output_.empty(); }

  // Without an agent it goes nowhere: the next one is told the whole state.
  void Tell(const Json& event, std::vector<int> fds = {});
  // Behind all output so far, for whoever says what came of it.
  void TellAfterOutput(const Json& event);
  void TellOutput(int rank, int stream, std::string_view data);
  void Flush();

  // On the wall, when workers first printed something that nobody was there to hear; 0: all was heard.
  Nanos unheard_since() const { return unheard_since_; }
  // The agent has told so.
  void ForgetUnheard() { unheard_since_ = {}; }

  uint64_t dropped_output() const { return dropped_output_; }  // bytes

 private:
  struct Waiting {
    std::string text;
    std::vector<Fd> fds;  // duplicates: those that were given may be closed by then
  };
  void Accept();
  void HangUp();
  void Hear();
  void NoteUnheard();
  void SayLeftOut(int rank, int stream);
  void Queue(std::string packet);

  Poller& poller_;
  const Clock& clock_;
  Calls calls_;
  Doorway doorway_;
  Fd fd_;
  std::deque<Waiting> events_, output_;
  size_t output_bytes_ = 0;                // that wait, with what it takes to keep them
  std::array<uint64_t, 3> left_out_ = {};  // bytes by stream, since it was last said
  uint64_t dropped_output_ = 0;
  Nanos seen_, unheard_since_;
};

}  // namespace lockstep::agent
