// One trail (record/trail.h) as a reader has it: mapped, for its process may still be writing it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/record/trail.h"

namespace lockstep::trace {

class TrailFile {
 public:
  static absl::StatusOr<TrailFile> Open(const std::string& path);

  const ls_trail& operator*() const { return *trail_; }
  const ls_trail* operator->() const { return trail_; }
  // Of its process, on this machine: gone also if it ran on another one. A signal has stopped it: state T.
  enum class State { kGone, kRuns, kStopped };
  State ProcessState() const;
  bool IsAlive() const { return ProcessState() != State::kGone; }
  // Whether its process ran on another machine, or in another container: nobody here knows whether it still does.
  bool IsElsewhere() const;

 private:
  struct Unmap {
    size_t bytes;
    void operator()(void* memory) const;
  };
  std::unique_ptr<void, Unmap> memory_{nullptr, {0}};
  const ls_trail* trail_ = nullptr;
};

// The source of trails of what was waited for from a data service (client/feed_wait.h).
inline constexpr std::string_view kDataLibrary = "feed";

// What one trail said at one moment: plain data, which also travels from agents to the coordinator.
struct TrailSnapshot {
  ls_origin origin{};
  int64_t wall_minus_boot_ns = 0;
  int64_t taken_ns = 0;                        // CLOCK_BOOTTIME of its host
  bool alive = false;                          // its process was there then
  bool stopped = false;                        // ... and stopped by a signal (state T)
  bool elsewhere = false;                      // nobody knows whether it did
  std::vector<ls_communicator> communicators;  // as records number them
  std::vector<ls_record> ended, under_way;
  uint64_t no_place = 0, no_communicator = 0, no_peer = 0, no_cell = 0, no_op = 0;  // as in the trail
  uint64_t libraries = 0;                                                           // as in the trail
  uint64_t missed = 0;                                                              // records that were overwritten
  std::vector<uint32_t> told_one_of;  // by communicator, of so many collectives that ended (Thin); empty: all are
  int64_t long_ns = 0;                // before few of them, a step's first say, the rank was by itself for so long:
  std::vector<uint32_t> long_told_one_of;  // one of so many of those. 0 and empty: there are none
  // When steps ended, or several in a row, ascending, and what that takes, as all records of the rank tell it: those
  // that are left may not. Empty: nobody looked.
  std::vector<int64_t> step_ends_ns;
  int64_t step_ns = 0;

  std::string host() const;
  // When its first communicator was made: with host and pid, which come again, what tells processes apart.
  int64_t born_ns() const { return communicators.empty() ? 0 : communicators.front().created_ns; }
  bool IsLong(const ls_record& op) const;
  // Whose trail it is: one of each library of each rank counts.
  std::pair<uint32_t, std::string> owner() const;  // rank and library
};

// Everything that is there, of the records those from position `*at` on (null: all), which moves on. An op that ends
// meanwhile may be told twice: as under way, and as ended.
TrailSnapshot TakeSnapshot(const TrailFile& file, uint64_t* at = nullptr);

// Of `one_of` collectives in a row, a power of two, one, whichever the number picks that all members give them: not
// every second, which would see what comes every second time either always or never; but as many of each stretch, so
// that it tells what all took. Who is picked as one of more is so as one of fewer.
bool IsPicked(const ls_record& collective, uint32_t one_of);

// Of the collectives that ended since `since_ns`, and of the messages for them that tell of a way, keeps those of about
// `most` ops: of each communicator one of two, four, eight (IsPicked), so that all members keep the same ones. Of
// communicators that have few they all stay, whatever the others have, and the newest 16 of the ten minutes before.
// Where few follow most of what a rank does by itself, as the first of a hundred buckets of gradients does, up to half
// of `most` are of those: on all members alike, but for ranks that differ by more than twice.
// Of sends and receives outside of collectives the newest of each way, a fourth as many in all, or 8 of each. Waits for
// data are summed until they are so few. Whatever else has ended goes.
void Thin(TrailSnapshot& snapshot, int64_t since_ns, size_t most);

// Of records that are the same in every byte keeps one.
void DropTwice(std::vector<ls_record>& records);

}  // namespace lockstep::trace
