// Copies the newest checkpoint on disk to the store of --checkpoint-upload, beside the training: on node 0, which alone
// may seal and remove in --checkpoint-dir and sees all of it, so that one manifest has one writer there too. Whatever
// the store does, it costs a line and a count: an upload of which nothing goes on for --checkpoint-flush-limit-s is
// given up, and one that failed is tried again after half a minute. A newer one waits for the one under way, which the
// flusher spares. Lives in the poller's thread; the copying has a thread of its own (flight.h).
//
//   Uploader uploader(spec, clock, [](const std::string& line) { ... });
//   uploader.Tick(flusher.settled());
//   uploader.UploadLast([] { ... });          // the job is over; called when the newest is there, or can't be
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/agent/flight.h"
#include "lockstep/agent/spec.h"
#include "lockstep/agent/told_once.h"
#include "lockstep/base/clock.h"
#include "lockstep/checkpoint/restore.h"
#include "lockstep/control/report.h"

namespace lockstep::agent {

using Note = std::function<void(const std::string&)>;

class Uploader {
 public:
  Uploader(const RunSpec& spec, const Clock& clock, Note note) : spec_(spec), clock_(clock), note_(std::move(note)) {}

  // `newest` on disk; none: nothing is there, or old ones are being removed just now.
  void Tick(const std::optional<checkpoint::Point>& newest);
  void UploadLast(std::function<void()> done);
  // For good: no further one is begun, not even the last.
  void GiveUp(const std::string& why);
  // What is being read, and must stay.
  std::optional<checkpoint::Point> reading() const;
  // None: nothing is uploaded, or not by us.
  std::optional<control::Uploaded> Observe() const;

 private:
  struct Upload {
    checkpoint::Point point;
    Nanos begun, moved;
    uint64_t seen = 0;                              // of `pieces`, at `moved`
    std::shared_ptr<std::atomic<uint64_t>> pieces;  // with the thread
    std::shared_ptr<absl::Status> stays;            // why old ones do; the thread's answer
    Flight flight;
  };

  bool works() const { return !spec_.checkpoint_upload.empty() && spec_.place.node == 0; }
  void Begin(const checkpoint::Point& point);
  void Watch();
  void Land();
  void Drop(const std::string& why);
  void Fail(const std::string& why);

  const RunSpec& spec_;
  const Clock& clock_;
  Note note_;
  std::optional<Upload> upload_;
  std::optional<Flight> hung_;
  std::optional<checkpoint::Point> newest_;  // that is there
  std::function<void()> last_;
  bool last_tried_ = false, given_up_ = false;
  Nanos due_, uploaded_at_, took_;
  int64_t uploads_ = 0, failures_ = 0;
  std::string error_;
  ToldOnce causes_, stays_;
};

// Before a run begins: where --checkpoint-dir holds nothing, the newest checkpoint of the store comes there. A store
// that can't be asked is an error, for the job would begin at its beginning. Of several nodes none fetches: that is an
// error, too. What takes longer than a moment is noted. `go_on` is asked all the while: a no is kCancelled, whatever
// the store does.
absl::Status BringBack(const RunSpec& spec, bool alone, const Clock& clock, const Note& note,
                       const checkpoint::GoOn& go_on);

}  // namespace lockstep::agent
