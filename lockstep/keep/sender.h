// The owner's end: describes what this node holds, and sends its keeper what that lacks, in a thread behind training.
// Of what is offered meanwhile the newest is sent next. A keeper that is out of reach is tried again twice a second.
// Chunks wait for gaps in the job's own traffic, but in all no longer than sending itself takes.
//
//   Sender sender(token, own_store, {.kept = ..., .trouble = ...});   // both are called in the sender's thread
//   sender.SendTo(Address{"node1", 40123});
//   sender.Offer(part);                                               // whole on this node, and to stay for a while
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/keep/connection.h"
#include "lockstep/keep/store.h"

namespace lockstep::keep {

class Sender {
 public:
  struct Listener {
    std::function<void(const checkpoint::Point&)> kept;
    std::function<void(const absl::Status& why)> trouble;  // FailedPrecondition: the keeper said no;
    // Aborted: it was written over meanwhile, as what can't become whole may be
    // Whether the job communicates right now, asked before each chunk and while one waits; nothing: who knows.
    std::function<std::optional<bool>()> busy{};
  };
  // `own`: where what is described becomes known, so that nobody sends it here.
  Sender(std::string token, Store& own, Listener listener);
  ~Sender();

  void SendTo(const std::optional<Address>& keeper);
  // Its chunks need not be hashed yet.
  void Offer(OwnPart part);
  // Since the beginning: what was kept, and what of it had to be sent.
  uint64_t bytes_kept() const { return bytes_kept_; }
  uint64_t bytes_sent() const { return bytes_sent_; }
  // Of those, what was sent while the job is known not to have communicated.
  uint64_t bytes_in_gaps() const { return bytes_in_gaps_; }

 private:
  struct Job {
    std::shared_ptr<const OwnPart> part;
    Address keeper;
  };
  void Loop(const std::stop_token& stop);
  bool Describe(const std::stop_token& stop);
  absl::Status Send(const Job& job, const std::stop_token& stop);
  absl::Status Converse(Connection& connection, const OwnPart& part, const std::stop_token& stop);

  const std::string token_;
  Store& own_;
  const Listener listener_;
  std::mutex mutex_;  // guards these three
  std::condition_variable_any changed_;
  std::optional<Address> keeper_;
  std::optional<OwnPart> offered_;
  // The thread's.
  std::shared_ptr<const OwnPart> part_;  // described, and not kept yet
  std::optional<Connection> connection_;
  Address connected_to_;
  std::atomic<uint64_t> bytes_kept_ = 0, bytes_sent_ = 0, bytes_in_gaps_ = 0;
  std::jthread thread_;  // last: it goes first
};

}  // namespace lockstep::keep
