// When to send: between the job's collectives, which want the same network. A job that always communicates (or whose
// collective hangs) must not keep its checkpoints from being copied: whoever waits may wait for as long as was spent on
// sending since the object was made, and kGrant more. So sending takes twice as long at most, and that moment.
// Thread-compatible. Cost: one question per chunk; while it waits, one every kLook.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <stop_token>

#include "lockstep/base/clock.h"

namespace lockstep::keep {

class Gaps {
 public:
  static constexpr Seconds kGrant{0.02};
  static constexpr std::chrono::microseconds kLook{300};

  // `busy` as in Sender::Listener; null: nothing is known, and nobody waits.
  Gaps(const Clock& clock, const std::function<std::optional<bool>()>& busy)
      : clock_(clock), busy_(busy), begin_(clock.Now()) {}

  // Before each chunk. True: the network is known to be free; false: it is not, or the patience is at its end.
  bool Await(const std::stop_token& stop);

 private:
  const Clock& clock_;
  const std::function<std::optional<bool>()>& busy_;
  const Nanos begin_;
  Nanos waited_;
};

}  // namespace lockstep::keep
