// Writes the newest committed checkpoint to disk, now and then, beside the training. The slots it reads are pinned on
// the board, so ranks skip steps rather than overwrite them. One detached thread per flush, for a hung disk can hold a
// thread for ever: after the limit the flush is given up, the pin released, and the thread keeps nothing nor delays the
// exit. Invariant: at most one thread writes; while one hangs, none is begun. Lives in the poller's thread.
//
//   Flusher flusher(spec, clock, note);
//   LS_RETURN_IF_ERROR(flusher.Open());
//   flusher.Tick(board, buffers);                             // at every tick
//   flusher.FlushLast([] { /* nobody trains any more; the newest is on disk, or could not be written */ });
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/agent/buffers.h"
#include "lockstep/agent/spec.h"
#include "lockstep/base/clock.h"
#include "lockstep/checkpoint/disk.h"
#include "lockstep/checkpoint/restore.h"
#include "lockstep/control/report.h"
#include "lockstep/store/writer_lock.h"

namespace lockstep::agent {

struct Flight;

class Flusher {
 public:
  using Note = std::function<void(const std::string&)>;
  using RanksBuffers = std::map<int, RankBuffers>;

  using MakeDisk = std::function<std::unique_ptr<checkpoint::Disk>()>;  // called in the thread of a flush

  Flusher(const RunSpec& spec, const Clock& clock, Note note, MakeDisk make_disk = checkpoint::PosixDisk)
      : spec_(spec), clock_(clock), note_(std::move(note)), make_disk_(std::move(make_disk)) {}
  ~Flusher();
  // Makes the directory, takes the right to write there, and clears what a killed flush left. Without a directory to
  // write to: OK, and nothing ever happens.
  absl::Status Open();

  void Tick(ls_board& board, const RanksBuffers& buffers);
  void FlushLast(std::function<void()> done) { last_ = std::move(done); }
  void GiveUp(ls_board& board, const std::string& why);
  // This one is on disk already.
  void Loaded(const checkpoint::Point& point);
  std::optional<control::OnDisk> Observe() const;

 private:
  bool Begin(ls_board& board, const RanksBuffers& buffers);
  void TickLast(ls_board& board, const RanksBuffers& buffers);
  void Land(ls_board& board);
  void Succeed(const Flight& flight);
  void Fail(const std::string& why);

  const RunSpec& spec_;
  const Clock& clock_;
  Note note_;
  MakeDisk make_disk_;
  std::optional<store::WriterLock> lock_;
  std::shared_ptr<Flight> flight_, hung_;  // shared with their threads, which may outlive us
  std::optional<checkpoint::Point> newest_;
  std::function<void()> last_;
  bool last_begun_ = false;
  Nanos due_, flushed_at_, took_;
  int64_t flushes_ = 0, failures_ = 0;
  std::string error_, cause_told_;
};

}  // namespace lockstep::agent
