#include "lockstep/base/open_files.h"

#include <sys/resource.h>

#include <algorithm>

namespace lockstep {
namespace {

rlimit before;
bool is_raised = false;

}  // namespace

uint64_t AllowOpenFiles(uint64_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;  // which never happens
  if (limit.rlim_cur >= wanted) return limit.rlim_cur;
  if (!is_raised) before = limit;
  limit.rlim_cur = std::min<rlim_t>(wanted, limit.rlim_max);
  is_raised = setrlimit(RLIMIT_NOFILE, &limit) == 0 || is_raised;
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

void RestoreOpenFiles() {
  if (is_raised) setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace lockstep
