// The leading side of a job: waits until the agents of all nodes are there, begins the job, and carries words between
// the coordinator (head.h) and the agents: our own in this process, those of other nodes over lockstep/rpc.
//
//   Lead lead(options, poller, clock, {...});
//   LS_RETURN_IF_ERROR(lead.Open());
//   LS_RETURN_IF_ERROR(lead.KeepIn(run_dir));             // or Keep(journal), which several coordinators share
//   lead.Await(job, run_token);                           // or Resume(run_token)
//   LS_RETURN_IF_ERROR(lead.Attend(own_join));            // our own agent; not for `lockstep coordinator`
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/base/poller.h"
#include "lockstep/control/roster.h"
#include "lockstep/node/head.h"
#include "lockstep/node/options.h"
#include "lockstep/rpc/server.h"
#include "lockstep/store/postgres_journal.h"

namespace lockstep::node {

class Lead {
 public:
  struct Listener {
    std::function<void(const std::string&)> line;
    std::function<absl::Status(const control::Place&)> placed;  // our own agent, once all are there
    std::function<void(const control::Told&)> told;             // our own agent
    std::function<void(const control::Place&)> moved;           // our own agent, from the coming epoch on
    std::function<void(const absl::Status&)> failed;            // the job can't begin
  };

  Lead(const RunOptions& options, Poller& poller, const Clock& clock, Listener listener);
  // HTTP server, and the port for the agents of other nodes; until Await or Resume they are turned away. Unavailable:
  // that port can't be had.
  absl::Status Open();
  // The journal: a file of this run, or one that is shared, by which this coordinator leads.
  absl::Status KeepIn(const std::string& run_dir);
  void Keep(std::unique_ptr<store::PostgresJournal> journal);
  // The job begins when all nodes are there; `job` lacks its nodes and ranks only. It fails if they don't come in time.
  void Await(const control::JobSpec& job, const std::string& run_token);
  absl::Status Resume(const std::string& run_token);
  absl::Status Attend(const control::Join& own);
  // From our own agent.
  void Hear(const control::Said& said);
  void Tick();

  // After Await or Resume: the job has begun.
  bool begun() const { return begun_; }
  Head& head() { return head_; }
  // The job is over, and the agents of all other nodes have left since.
  bool HaveAllHeard() const;
  // The job is over, and what it leaves on disk is being written.
  bool IsWriting() const { return begun_ && head_.IsWriting(); }

 private:
  using Peer = rpc::Server::Peer;
  struct Agent {
    control::NodeSpec spec;
    int node = control::kStandby;  // or not placed yet
    Nanos heard;
  };

  void Tell(int node, const control::Told& told);
  void Joined(Peer peer, const control::Join& join);
  bool AwaitsLossOf(const std::string& name, Nanos now) const;
  void UseRoster(std::unique_ptr<control::Roster> roster);
  void Seat(const control::Seat& seat);
  void Vacate(const control::Vacate& vacate);
  void Resize(const std::vector<int>& from);
  void BeginAnew();
  std::string WhyOut(const std::string& token) const;
  void TurnOut(int node, const std::string& why);
  void TellStandbys();
  void Said(Peer peer, const control::Said& said);
  void HearOfStandby(const control::NodeSpec& standby, control::Alerted alert);
  void Left(Peer peer, const std::string& why, Seconds silence = {});
  void LookWhetherStopped();
  bool IsJustBack() const;
  void TellWhoStayedAway();
  void SettleLayout();
  void BeginIfComplete();
  void GiveUpIfTooLate();
  void UseScheduler(const std::string& job);
  void Welcome(Peer peer, Agent& agent);

  const RunOptions& options_;
  store::PostgresJournal* shared_ = nullptr;  // head_ has it
  Poller& poller_;
  const Clock& clock_;
  const Listener listener_;
  Head head_;
  std::unique_ptr<control::Roster> roster_;
  control::JobSpec job_;
  std::string own_token_;
  int own_node_ = -1;
  bool begun_ = false, standbys_told_ = false;
  std::map<Peer, Agent> agents_;     // of other nodes
  std::map<int, Peer> peers_;        // of those that have a place, by node
  std::set<std::string> strangers_;  // agents of other runs, by token
  std::set<int> departed_;           // nodes whose agents left after the end of the job
  Nanos awaited_, ticked_, beat_;
  Nanos stopped_, back_;                 // this process was stopped for long, from then to then; 0: not
  std::map<int, std::string> left_us_;   // nodes whose agents left because of that, and why; they come anew
  std::unique_ptr<rpc::Server> server_;  // last: it goes first
};

}  // namespace lockstep::node
