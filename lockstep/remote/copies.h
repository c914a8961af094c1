// Copies of checkpoints elsewhere, opened by URL as the disk that a checkpoint::Store works on.
//
//   LS_ASSIGN_OR_RETURN(const Copies copies, OpenCopies("s3://bucket/prefix", clock, go_on));
//   checkpoint::Store there(*copies.disk, copies.directory);
//   LS_RETURN_IF_ERROR(there.CopyFrom(here, point, go_on));
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"
#include "lockstep/checkpoint/store.h"

namespace lockstep::remote {

struct Copies {
  std::unique_ptr<checkpoint::Disk> disk;
  std::string directory;  // "/mnt/share/dir" or "s3://bucket/prefix"
};

// Whether a text names a store in another way than a path.
bool IsUrl(const std::string& text);
// Touches nothing: s3://BUCKET[/PREFIX], file:///PATH, or a path; and what s3 needs of the environment is there.
absl::Status CheckUrl(const std::string& url, const Clock& clock);
// `go_on` is asked while the store is out of reach.
absl::StatusOr<Copies> OpenCopies(const std::string& url, const Clock& clock, checkpoint::GoOn go_on);
// Makes the directory, if it is one, and takes the right to write there, for as long as the descriptor is open.
// FailedPrecondition: somebody else has it. None: a store of objects, or a share that knows no locks.
absl::StatusOr<Fd> Prepare(const Copies& copies);
// Store::CopyFrom, of which `there` is in `copies`. A run that begins to keep its own checkpoints there meanwhile ends
// it: FailedPrecondition.
absl::Status CopyTo(const Copies& copies, checkpoint::Store& there, const checkpoint::Store& here,
                    const checkpoint::Point& point, const checkpoint::GoOn& go_on, checkpoint::Store::Here how);

// Brings the newest one that is whole into a directory, to which nobody else may be writing; which it is. NotFound:
// there is none. `passed_over` hears of damaged ones.
absl::StatusOr<checkpoint::Point> FetchInto(checkpoint::Store& here, const checkpoint::Store& there,
                                            const checkpoint::GoOn& go_on,
                                            const std::function<void(const std::string&)>& passed_over);

}  // namespace lockstep::remote
