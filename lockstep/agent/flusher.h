// Decides when a checkpoint goes to disk and makes one of the parts that the nodes write (part_writer.h): lives on node
// 0, which also seals and removes. The coordinator says which one it is, for it alone knows what is whole everywhere,
// and carries the words. Lives in the poller's thread; what touches the disk has a thread of its own (flight.h).
//
//   Flusher flusher(spec, clock, {.note = ..., .say = ...});
//   LS_RETURN_IF_ERROR(flusher.Open());
//   flusher.Tick(board);                   // says FlushWanted when it is time
//   flusher.Begun(point);                  // told WritePart
//   flusher.Hear(part_written);            // of every node, our own too
//   flusher.FlushLast([] { ... });         // nobody trains any more; called when the newest is on disk, or can't be
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/agent/flight.h"
#include "lockstep/agent/part_writer.h"
#include "lockstep/agent/spec.h"
#include "lockstep/agent/told_once.h"
#include "lockstep/base/clock.h"
#include "lockstep/checkpoint/disk.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/control/link.h"
#include "lockstep/control/report.h"
#include "lockstep/store/writer_lock.h"

namespace lockstep::agent {

class Flusher {
 public:
  struct Listener {
    std::function<void(const std::string&)> note;
    std::function<void(const control::Said&)> say;
    std::function<std::optional<checkpoint::Point>()> reading{};  // what somebody reads there: it is not removed
  };

  Flusher(const RunSpec& spec, const Clock& clock, Listener listener, MakeDisk make_disk = checkpoint::PosixDisk)
      : spec_(spec), clock_(clock), listener_(std::move(listener)), make_disk_(std::move(make_disk)) {}
  // Makes the directory, takes the right to write there, and clears what a killed flush left. Without a directory to
  // write to: OK, and nothing ever happens.
  absl::Status Open();

  void Tick(const ls_board& board);
  void Begun(const checkpoint::Point& point);
  void Hear(const control::PartWritten& part);
  // Whoever passes parts on was out of reach, and some may be lost: they are asked for anew.
  void Interrupted();
  void FlushLast(std::function<void()> done) { last_ = std::move(done); }
  void GiveUp(const std::string& why);
  // This one is on disk already, and the job goes on from it: newer ones there were no good, and don't count among
  // those that are kept.
  void Loaded(const checkpoint::Point& point);
  // The newest on disk; none while old ones are being removed.
  std::optional<checkpoint::Point> settled() const { return flush_ && flush_->closing ? std::nullopt : newest_; }
  // None: this run keeps no checkpoints on disk, or not by us.
  std::optional<control::OnDisk> Observe() const;

 private:
  void Settle(const checkpoint::Point& point);
  // One flush, from the word to begin until it is sealed or discarded.
  struct Flush {
    Flush(const checkpoint::Point& which, Nanos now) : point(which), begun(now) {}
    checkpoint::Point point;
    Nanos begun;
    std::map<int, std::vector<checkpoint::ManifestFile>> parts;  // by node
    std::string failure;                                         // the first one
    bool gone = false;  // some node's ranks had given it up before they were told
    std::optional<Flight> closing;
    std::shared_ptr<std::shared_ptr<store::WriterLock>> retaken =  // what its thread had to take anew
        std::make_shared<std::shared_ptr<store::WriterLock>>();
    std::shared_ptr<absl::Status> stays = std::make_shared<absl::Status>();  // why old ones do; its thread's answer
  };

  void TickLast(const ls_board& board);
  bool Ask(const ls_board& board);
  void Close();
  void Land();
  void Succeed();
  void TellWhatStays(const absl::Status& why);
  void Fail(const std::string& why);
  bool waits() const { return flush_ || asked_.value != 0; }

  const RunSpec& spec_;
  const Clock& clock_;
  Listener listener_;
  MakeDisk make_disk_;
  std::shared_ptr<store::WriterLock> lock_;  // also of a thread that hangs
  std::optional<Flush> flush_;
  std::optional<Flight> hung_;
  std::optional<checkpoint::Point> newest_;
  std::optional<checkpoint::Point> loaded_;
  EpochId first_;  // in which something was written since then; 0: nothing was
  std::function<void()> last_;
  bool last_asked_ = false;
  Nanos asked_, due_, flushed_at_, took_;  // asked_: 0, nothing was asked for
  int64_t flushes_ = 0, failures_ = 0;
  std::string error_;
  ToldOnce causes_, stays_;
};

}  // namespace lockstep::agent
