// The agent's part in peer memory (lockstep/keep): sends what is whole on this node's ranks to its keeper, keeps what
// others send, and says which of our checkpoints exist twice. One that does not is not committed, so ranks hold it
// until it is. Where nobody can keep (no room there, out of reach for kPatience), that is said once and checkpoints
// count without: training is never held up for it. Lives in the poller's thread; the work is done in threads of
// lockstep/keep.
//
//   Keeping keeping(spec, poller, clock, {.note = ..., .kept = ...});
//   LS_RETURN_IF_ERROR(keeping.Open());
//   keeping.SendTo(address);  if (!keeping.IsKept(id)) keeping.Offer(id, board, mapped);
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/agent/buffers.h"
#include "lockstep/agent/points.h"
#include "lockstep/agent/spec.h"
#include "lockstep/agent/traffic.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/mailbox.h"
#include "lockstep/base/poller.h"
#include "lockstep/control/link.h"
#include "lockstep/keep/keeper.h"
#include "lockstep/keep/sender.h"

namespace lockstep::agent {

class Keeping {
 public:
  struct Listener {
    std::function<void(const std::string& text)> note;
    std::function<void()> kept;  // IsKept() answers otherwise for some checkpoint now
  };
  Keeping(const RunSpec& spec, Poller& poller, const Clock& clock, Listener listener);
  ~Keeping();
  absl::Status Open();

  // Where others reach us.
  control::KeepsAt address() const { return {spec_.address, keeper_->port()}; }
  void SendTo(const control::KeepWith& keeper);
  // It exists twice, or nobody can keep it.
  bool IsKept(const control::CheckpointId& id);
  // Whole on this node, and to stay until it is committed. Offered again, or after a newer one, it is not sent again.
  void Offer(const control::CheckpointId& id, const ls_board& board, std::shared_ptr<const MappedBuffers> mapped);
  // What others sent is given up by the rule for ranks: this is committed, and of `epoch` nothing else up to dead_step.
  void GiveUp(const control::CheckpointId& committed, int64_t dead_step, EpochId epoch);
  std::vector<control::KeptFor> Holds() const;
  // One of those; nullptr: it is none.
  std::shared_ptr<const keep::Image> Find(int node, const control::CheckpointId& id) const {
    return keeper_->store().Find(node, ToPoint(id));
  }
  // Of those: what their tensors are, where all ranks have the same.
  std::vector<control::Replica> Replicas() const;
  // This node has another place from now on: nothing is known yet of who keeps what.
  void Forget();
  // The numbers of nodes mean something else from now on: what was kept is of no use. Where to send is known already.
  void BeginAnew();
  control::PeerCopies Observe() const;

 private:
  void Kept(const checkpoint::Point& point);
  void Trouble(const absl::Status& why);

  const RunSpec& spec_;
  const Clock& clock_;
  const Listener listener_;
  Mailbox mailbox_;
  std::set<control::CheckpointId> kept_;          // the newest few
  std::optional<control::CheckpointId> offered_;  // the newest
  Nanos alone_since_;        // something was to be kept, and nobody was in reach to do it; 0: somebody is
  bool was_spoilt_ = false;  // by the newest trouble: what was sent; else nobody was in reach
  std::string why_alone_;    // nobody can: then checkpoints count without
  std::string keeper_name_;
  EpochId followed_;  // whose ranks `traffic_` follows
  Traffic traffic_;
  std::unique_ptr<keep::Keeper> keeper_;
  std::unique_ptr<keep::Sender> sender_;  // last: its thread uses the others
};

}  // namespace lockstep::agent
