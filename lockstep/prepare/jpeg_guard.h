// libjpeg reports what is wrong by a function that must not return. Here that is a longjmp out of one function, whose
// locals, as those of all it calls, are trivially destructible: nothing is leaked, nothing is undefined.
//
//   JpegGuard guard;                        // also holds what was wrong
//   cinfo.err = guard.manager();
//   if (!guard.Run([](void* p) { Work(*static_cast<Task*>(p)); }, &task)) return guard.Error();
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdio>
// jpeglib.h wants stdio.h and size_t before it.
#include <jpeglib.h>

#include "lockstep/base/status.h"

namespace lockstep::prepare {

class JpegGuard {
 public:
  JpegGuard();
  JpegGuard(const JpegGuard&) = delete;
  JpegGuard& operator=(const JpegGuard&) = delete;

  jpeg_error_mgr* manager() { return &manager_; }
  // `work` and what it calls may hold nothing that has a destructor. False: libjpeg gave up; Error() says why.
  bool Run(void (*work)(void*), void* argument);
  absl::Status Error() const;
  // Gives up, from within `work`.
  [[noreturn]] void Fail(const char* why);
  // libjpeg found the data damaged and went on, as PIL does too.
  bool damaged() const { return damaged_; }
  static JpegGuard& Of(j_common_ptr info);

 private:
  static void OnError(j_common_ptr info);
  static void OnMessage(j_common_ptr info, int level);

  jpeg_error_mgr manager_;  // first: libjpeg hands its address back
  std::jmp_buf jump_;
  char text_[JMSG_LENGTH_MAX] = "";
  bool damaged_ = false;
};

}  // namespace lockstep::prepare
