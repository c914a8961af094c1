#include "lockstep/base/check.h"

#include <cstdlib>

namespace lockstep {

void CheckFailed(const char* file, int line, const char* condition, std::string_view values) {
  fmt::print(stderr, "{}:{}: check failed: {}{}{}\n", file, line, condition, values.empty() ? "" : ": ", values);
  std::abort();
}

}  // namespace lockstep
