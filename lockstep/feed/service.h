// `lockstep feed serve`: one data set, one socket, any number of jobs. A guest at the door is a rank of a job; when it
// is gone, everything it had is taken back. Nothing is kept across a restart: whoever joins says where it stands. One
// thread runs the poller; the dispatcher and the chooser have threads of their own.
//
//   LS_ASSIGN_OR_RETURN(std::unique_ptr<Service> service, Service::Open(options, poller, clock));
//   poller.Run(kTick, [&] { service->Tick(); });
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/base/packets.h"
#include "lockstep/base/poller.h"
#include "lockstep/base/report.h"
#include "lockstep/feed/chooser.h"
#include "lockstep/feed/data_set.h"
#include "lockstep/feed/dispatcher.h"
#include "lockstep/feed/door.h"

namespace lockstep::feed {

struct ServiceOptions {
  prepare::SourceSpec data;
  prepare::Limits limits{};  // of images
  std::string name, socket;
  uint64_t cache_bytes = uint64_t{1} << 30;  // of all that grows with items and threads, but for rings
  uint64_t ring_bytes = 0;                   // of all jobs' rings together; 0: half of the machine's memory
  size_t threads = 1;
  // How jobs of one seed share: common or paced; none: by predicted loads (sampling/group.h); independent: not at all.
  std::optional<sampling::Policy> policy{};
  bool for_machines = false;  // ranks of other machines come here too (relay/sender.h)
  Chooser::Choose choose = sampling::Choose;
};

// "auto" or a policy that a service can have; others hold orders that no state of a few numbers can name.
absl::StatusOr<std::optional<sampling::Policy>> ParseServedPolicy(const std::string& name);

class Service {
 public:
  static absl::StatusOr<std::unique_ptr<Service>> Open(const ServiceOptions& options, Poller& poller,
                                                       const Clock& clock);
  ~Service();
  // Now and then: gives back to the system what the heap holds and nobody uses, and divides the cache among forms.
  void Tick();
  const DataSet& data() const { return data_; }

 private:
  struct Joining {
    std::shared_ptr<Job> job;
    sampling::Stream stream;  // from where the rank goes on
  };

  Service(const ServiceOptions& options, DataSet data, std::unique_ptr<Door> door, const Clock& clock);
  void Answer(int guest, Packet packet);
  void Remove(int guest);
  absl::Status Join(int guest, const Json& packet, std::vector<Fd> fds);
  absl::Status Enter(int guest, const JoinRequest& request, const RingShape& shape, Joining joining);
  absl::StatusOr<Joining> Prepare(const JoinRequest& request);
  absl::Status Place(const JoinRequest& request, bool is_first_rank, Joining& joining);
  std::shared_ptr<Job> Running(const std::string& name) const;  // null: none
  std::shared_ptr<sampling::Group> GroupOf(const JoinRequest& request) const;
  void DivideCache(std::set<std::shared_ptr<const sampling::ItemSet>> sets);
  absl::Status CheckFree(const JoinRequest& request);
  absl::Status CheckRoom(const RingShape& shape) const;
  Json Status() const;

  const ServiceOptions options_;
  const DataSet data_;
  const Clock& clock_;
  const Nanos started_;
  const uint64_t cache_items_;   // about as many decoded ones have room
  const uint64_t before_items_;  // AnonymousBytes()
  BegunEpochs begun_;
  Dispatcher dispatcher_;
  Chooser chooser_;
  Splitter splitter_;
  std::set<std::shared_ptr<const sampling::ItemSet>> divided_for_;
  uint64_t wanted_items_ = 0;                   // by those jobs
  std::map<int, std::shared_ptr<Rank>> ranks_;  // guests that have joined
  std::unique_ptr<Door> door_;
};

}  // namespace lockstep::feed
