#include "lockstep/prepare/jpeg_guard.h"

#include <jerror.h>

#include <type_traits>

namespace lockstep::prepare {

static_assert(std::is_standard_layout_v<JpegGuard>, "the address of the manager must be that of the guard");

JpegGuard::JpegGuard() {
  jpeg_std_error(&manager_);
  manager_.error_exit = OnError;
  manager_.emit_message = OnMessage;
}

JpegGuard& JpegGuard::Of(j_common_ptr info) { return *reinterpret_cast<JpegGuard*>(info->err); }

bool JpegGuard::Run(void (*work)(void*), void* argument) {
  damaged_ = false;
  if (setjmp(jump_) != 0) return false;
  work(argument);
  return true;
}

absl::Status JpegGuard::Error() const { return DataLoss("{}", text_); }

void JpegGuard::Fail(const char* why) {
  std::snprintf(text_, sizeof text_, "%s", why);
  std::longjmp(jump_, 1);
}

void JpegGuard::OnError(j_common_ptr info) {
  JpegGuard& guard = Of(info);
  (*info->err->format_message)(info, guard.text_);
  std::longjmp(guard.jump_, 1);
}

void JpegGuard::OnMessage(j_common_ptr info, int level) {
  if (level >= 0) return;  // a trace
  JpegGuard& guard = Of(info);
  if (info->err->msg_code == JWRN_JPEG_EOF) guard.Fail("the file ends within the image: it is truncated");
  guard.damaged_ = true;
}

}  // namespace lockstep::prepare
