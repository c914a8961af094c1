// For tests: a limit of this process (RLIMIT_NOFILE, RLIMIT_FSIZE, ...) as long as it lives.
#pragma once

#include <sys/resource.h>

#include <cerrno>
#include <system_error>

namespace lockstep {

class TestLimit {
 public:
  TestLimit(__rlimit_resource resource, rlim_t most) : resource_(resource) {
    getrlimit(resource_, &before_);
    const rlimit limit{most, before_.rlim_max};
    if (setrlimit(resource_, &limit) != 0) throw std::system_error(errno, std::generic_category(), "setrlimit");
  }
  ~TestLimit() { setrlimit(resource_, &before_); }
  TestLimit(const TestLimit&) = delete;
  TestLimit& operator=(const TestLimit&) = delete;

 private:
  const __rlimit_resource resource_;
  rlimit before_{};
};

}  // namespace lockstep
