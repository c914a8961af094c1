#include "lockstep/keep/gaps.h"

#include <thread>

namespace lockstep::keep {

bool Gaps::Await(const std::stop_token& stop) {
  if (!busy_) return false;
  const Nanos asked = clock_.Now();
  const Nanos sending = asked - begin_ - waited_;
  const Nanos may_wait = sending + ToNanos(kGrant) - waited_;
  std::optional<bool> busy = busy_();
  while (busy == true && clock_.Now() - asked < may_wait && !stop.stop_requested()) {
    std::this_thread::sleep_for(kLook);
    busy = busy_();
  }
  waited_ += clock_.Now() - asked;
  return busy == false;
}

}  // namespace lockstep::keep
