// A rank of a job at the data service of this machine, which joins by its socket and takes batches from its ring: what
// lockstep.feed.Loader does, in the place of a loader on another machine. One thread at a time.
//
//   LS_ASSIGN_OR_RETURN(const std::unique_ptr<LocalRank> rank, LocalRank::Join(socket, packet, ids, goes_on));
//   LS_ASSIGN_OR_RETURN(const std::optional<LocalRank::Batch> batch, rank->Take());
//   if (batch) rank->GiveBack(*batch);
//
// Errors: Unavailable if there is no service, or no longer; else what it says.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/file.h"
#include "lockstep/base/status.h"
#include "lockstep/feed/ring.h"

struct ls_feed_lender;

namespace lockstep::relay {

class LocalRank {
 public:
  struct Batch {
    uint32_t slot = 0;
    uint64_t ticket = 0;
    std::string_view head, payload;  // until it is given back
  };

  // `goes_on` is asked ten times a second whether to wait any longer for the answer.
  static absl::StatusOr<std::unique_ptr<LocalRank>> Join(const std::string& socket, const std::string& packet,
                                                         std::string_view ids, const std::function<bool()>& goes_on);
  ~LocalRank();

  const std::string& answer() const { return answer_; }
  const feed::RingShape& shape() const { return shape_; }
  // None: not within a tenth of a second.
  absl::StatusOr<std::optional<Batch>> Take();
  void GiveBack(const Batch& batch);

 private:
  LocalRank(Fd socket, std::string answer, ls_feed_lender* lender);
  absl::Status Told() const;

  Fd socket_;
  std::string answer_;
  ls_feed_lender* lender_;
  feed::RingShape shape_;
  uint64_t ticket_ = 0;
};

}  // namespace lockstep::relay
