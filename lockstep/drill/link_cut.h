// The links of a network namespace, cut and mended. Taking a link down takes its routes, its fixed neighbours and its
// IPv6 addresses with it, which bringing it up does not bring back: they are kept, and made again.
#pragma once

#include <string>
#include <vector>

#include "lockstep/drill/netlink.h"

namespace lockstep::drill {

class LinkCut {
 public:
  // Of the network namespace that the calling thread is in. NotFound: it has no link but loopback that is up.
  static absl::StatusOr<LinkCut> Prepare();
  // Takes every link down but loopback.
  absl::Status Cut();
  // Brings back what Cut took. An error says what it could not; the rest is back all the same.
  absl::Status Mend();

 private:
  explicit LinkCut(Netlink kernel) : kernel_(std::move(kernel)) {}
  absl::Status Keep();
  absl::Status SetLink(int index, bool up);
  absl::Status MakeAgain(uint16_t type, std::vector<std::string>& bodies);

  Netlink kernel_;
  std::vector<int> links_;  // indices of those that were up
  // All behind the header of the messages that tell of them.
  std::vector<std::string> addresses_, neighbours_, routes_;
};

}  // namespace lockstep::drill
