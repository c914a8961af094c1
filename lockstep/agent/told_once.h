// A failure that repeats is told once, by its cause: what follows the last colon of the sentence, for before it stands
// where it struck, which may be another step each time.
//
//   if (causes_.IsNew(why)) note(why);
//   causes_.Forget();                    // it works again
#pragma once

#include <string>
#include <utility>

namespace lockstep::agent {

class ToldOnce {
 public:
  // Not the one before.
  bool IsNew(const std::string& why) {
    const size_t colon = why.rfind(": ");
    std::string cause = colon == std::string::npos ? why : why.substr(colon);
    return std::exchange(cause_, cause) != cause;
  }
  void Forget() { cause_.clear(); }

 private:
  std::string cause_;
};

}  // namespace lockstep::agent
