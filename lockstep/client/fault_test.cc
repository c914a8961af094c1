#include "lockstep/client/fault.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csetjmp>
#include <csignal>
#include <cstdlib>
#include <vector>

#include "lockstep/client/client.h"

namespace {

constexpr size_t kBytes = 1 << 20;

// A megabyte, of which the second half is not mapped.
class HalfAPiece : public testing::Test {
 protected:
  void SetUp() override {
    from_ = static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(from_, MAP_FAILED);
    ASSERT_EQ(mprotect(from_ + kBytes / 2, kBytes / 2, PROT_NONE), 0);  // and nobody else's by chance
  }
  void TearDown() override { munmap(from_, kBytes); }
  bool Copy(size_t bytes) { return ls_fault_copy(to_.data(), from_, bytes, &crc_); }
  // The status of a process of its own, in which nobody has taken the signals yet: 0, or what ended it.
  template <typename Function>
  static int StatusOf(const Function& function) {
    const pid_t child = fork();
    if (child == 0) {
      function();
      _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status;
  }
  void Touch() { from_[kBytes - 1] = 1; }

  char* from_ = nullptr;
  std::vector<char> to_ = std::vector<char>(kBytes);
  uint32_t crc_ = 0;
};

TEST_F(HalfAPiece, IsAnAnswerEachTime) {
  const int status = StatusOf([&] {
    ls_fault_catch();
    for (int i = 0; i < 3; ++i) {
      if (Copy(kBytes) || Copy(kBytes / 2 + 1)) _exit(1);
      crc_ = 0;
      if (!Copy(kBytes / 2) || crc_ != ls_crc32c(0, from_, kBytes / 2)) _exit(2);
    }
  });
  EXPECT_EQ(status, 0);
}

TEST_F(HalfAPiece, AFileThatBecameShorterIsAnAnswerToo) {
  const int status = StatusOf([&] {
    const int file = memfd_create("short", MFD_CLOEXEC);
    if (ftruncate(file, kBytes / 2) != 0) _exit(1);
    void* mapped = mmap(from_, kBytes, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0);
    ls_fault_catch();
    if (mapped != from_ || Copy(kBytes) || !Copy(kBytes / 2)) _exit(2);
  });
  EXPECT_EQ(status, 0);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which report such signals and exit
TEST_F(HalfAPiece, AFaultOfTheScriptEndsItAsEver) {
  for (const int signal : {SIGSEGV, SIGBUS}) {
    const int sent = StatusOf([&] {
      ls_fault_catch();
      kill(getpid(), signal);
    });
    ASSERT_TRUE(WIFSIGNALED(sent)) << sent;
    EXPECT_EQ(WTERMSIG(sent), signal);
  }
  const int touched = StatusOf([&] {
    ls_fault_catch();
    Copy(kBytes);
    Touch();
  });
  ASSERT_TRUE(WIFSIGNALED(touched)) << touched;
  EXPECT_EQ(WTERMSIG(touched), SIGSEGV);
}
#endif

sigjmp_buf escape;
volatile std::sig_atomic_t value_sent = 0;
void* volatile address = nullptr;

void Note(int, siginfo_t* info, void*) {
  if (info->si_code == SI_QUEUE) {
    value_sent = info->si_value.sival_int;
    return;
  }
  address = info->si_addr;
  siglongjmp(escape, 1);
}

void TakeAsAScript() {
  struct sigaction action{};
  action.sa_sigaction = Note;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
}

// With all that the kernel tells it; and from then on it is asked first.
TEST_F(HalfAPiece, AHandlerOfTheScriptHasItsFaults) {
  const int touched = StatusOf([&] {
    TakeAsAScript();
    ls_fault_catch();
    if (Copy(kBytes) || address != nullptr) _exit(1);
    if (sigsetjmp(escape, 1) == 0) Touch();
    if (address != from_ + kBytes - 1) _exit(2);
    struct sigaction now{};
    sigaction(SIGSEGV, nullptr, &now);
    if (now.sa_sigaction != Note) _exit(3);
  });
  EXPECT_EQ(touched, 0);
  const int sent = StatusOf([&] {
    TakeAsAScript();
    ls_fault_catch();
    sigval value{};
    value.sival_int = 7;
    sigqueue(getpid(), SIGSEGV, value);
    if (value_sent != 7) _exit(1);
  });
  EXPECT_EQ(sent, 0);
}

// What is copied is not all that may be unmapped.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(HalfAPiece, ADestinationThatIsNotMappedIsNoAnswer) {
  const int status = StatusOf([&] {
    ls_fault_catch();
    ls_fault_copy(from_, to_.data(), kBytes, &crc_);
  });
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  EXPECT_EQ(WTERMSIG(status), SIGSEGV);
}
#endif

}  // namespace
