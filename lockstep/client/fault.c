#define _GNU_SOURCE
#include "lockstep/client/fault.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lockstep/client/client.h"

static const int kTaken[] = {SIGSEGV, SIGBUS};
static struct sigaction before[2]; /* whose they were */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static struct {
  bool copies; /* what follows holds; atomic */
  pthread_t thread;
  uintptr_t from;
  uint64_t bytes;
  sigjmp_buf escape;
} copy;

/* An instruction that is run again faults again; of what a process sent, or memory that broke unread, no more comes. */
static bool comes_again(int signal, const siginfo_t* info) {
  return info->si_code > 0 && !(signal == SIGBUS && info->si_code == BUS_MCEERR_AO);
}

static bool is_ours(const siginfo_t* info) {
  return __atomic_load_n(&copy.copies, __ATOMIC_ACQUIRE) && pthread_equal(copy.thread, pthread_self()) &&
         (uintptr_t)info->si_addr - copy.from < copy.bytes;
}

static void on_fault(int signal, siginfo_t* info, void* context) {
  (void)context;
  const int error = errno;
  const bool again = comes_again(signal, info);
  if (again && is_ours(info)) siglongjmp(copy.escape, 1);
  sigaction(signal, &before[signal == SIGBUS], NULL);
  if (!again) syscall(SYS_rt_tgsigqueueinfo, getpid(), (pid_t)syscall(SYS_gettid), signal, info);
  errno = error;
}

static void take(void) {
  struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < 2; ++i) {
    sigaction(kTaken[i], NULL, &before[i]); /* first: the handler may run at once */
    sigaction(kTaken[i], &action, NULL);
  }
}

void ls_fault_catch(void) { pthread_once(&once, take); }

/* Not in the handler, which did not return. */
static void unblock(void) {
  sigset_t taken;
  sigemptyset(&taken);
  for (int i = 0; i < 2; ++i) sigaddset(&taken, kTaken[i]);
  pthread_sigmask(SIG_UNBLOCK, &taken, NULL);
}

bool ls_fault_copy(void* to, const void* from, uint64_t bytes, uint32_t* crc) {
  copy.thread = pthread_self();
  copy.from = (uintptr_t)from;
  copy.bytes = bytes;
  const bool gone = sigsetjmp(copy.escape, 0) != 0;
  __atomic_store_n(&copy.copies, !gone, __ATOMIC_RELEASE);
  if (gone) {
    unblock();
    return false;
  }
  *crc = ls_copy_crc32c(*crc, to, from, bytes);
  __atomic_store_n(&copy.copies, false, __ATOMIC_RELEASE);
  return true;
}
