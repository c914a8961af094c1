// Chooses anew which orders groups of jobs have (sampling/group.h), where jobs came or went or have another pace: on a
// thread of its own, since a rehearsal takes up to a second of a core, and whoever joins, asks or brings back a slot
// waits for nobody's. Jobs begin their epochs by the choice that is in force; one that was made of what has changed
// meanwhile counts until the next. Invariants: one rehearsal at a time, of the groups in turn; all together take at
// most a twentieth of one core. Stops at once when it is destroyed, if `choose` heeds its token.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>

#include "lockstep/base/units.h"
#include "lockstep/feed/dispatcher.h"
#include "lockstep/sampling/group.h"

namespace lockstep::feed {

class Chooser {
 public:
  using Choose = std::function<sampling::GroupChoice(const sampling::GroupQuestion&, const std::stop_token&)>;
  // `dispatcher`, whose ranks' groups they are and whose lock guards these, outlives it.
  Chooser(const Dispatcher& dispatcher, Choose choose);

 private:
  void Run(const std::stop_token& stop);
  std::shared_ptr<sampling::Group> NextStale() const;  // under the lock; null: none is
  Nanos ChooseFor(sampling::Group& group, const sampling::GroupQuestion& question, const std::stop_token& stop) const;

  const Dispatcher& dispatcher_;
  const Choose choose_;
  std::optional<uint64_t> last_seed_;  // of the group that has had its turn
  std::jthread thread_;                // last: it ends first
};

}  // namespace lockstep::feed
