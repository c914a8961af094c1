#define _GNU_SOURCE
#include "lockstep/client/starter.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "lockstep/record/clock.h"

static int64_t now_ms(void) { return ls_clock_ns(CLOCK_MONOTONIC) / 1000000; }

/* Signals may come more often than the limit lasts: what is left of it counts, not a new one. */
static int connect_until(int fd, const struct sockaddr_un* address, int64_t deadline_ms) {
  for (int64_t left; (left = deadline_ms - now_ms()) > 0;) {
    const struct timeval bound = {.tv_sec = left / 1000, .tv_usec = left % 1000 * 1000};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &bound, sizeof bound);
    if (connect(fd, (const struct sockaddr*)address, sizeof *address) == 0) return 0;
    if (errno != EINTR) return errno == EAGAIN ? ETIMEDOUT : errno; /* else nothing was begun, of such a socket */
  }
  return ETIMEDOUT;
}

/* A socket's address holds 107 characters and a run directory may be longer, so the path goes through a descriptor of
 * it. */
static int connect_in(int directory) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/" LS_JOIN_SOCKET, directory);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int error = connect_until(fd, &address, now_ms() + LS_STARTER_TIMEOUT_MS);
  if (error == 0) return fd;
  close(fd);
  errno = error;
  return -1;
}

struct ls_starter ls_starter_of(int socket) {
  struct stat info;
  if (socket < 0 || fstat(socket, &info) != 0) return (struct ls_starter){.socket = -1};
  return (struct ls_starter){.socket = socket, .device = info.st_dev, .inode = info.st_ino};
}

struct ls_starter ls_starter_connect(const char* run_directory) {
  const int directory = open(run_directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return (struct ls_starter){.socket = -1};
  const int fd = connect_in(directory);
  const int error = errno;
  close(directory);
  const struct ls_starter starter = ls_starter_of(fd);
  errno = error;
  return starter;
}

static bool is_there(const struct ls_starter* starter) {
  struct stat info;
  return starter->socket >= 0 && fstat(starter->socket, &info) == 0 && info.st_dev == starter->device &&
         info.st_ino == starter->inode;
}

void ls_starter_close(struct ls_starter* starter) {
  if (is_there(starter)) close(starter->socket);
  starter->socket = -1;
}

static void take_descriptors(struct msghdr* header, struct ls_answer* answer) {
  for (struct cmsghdr* part = CMSG_FIRSTHDR(header); part != NULL; part = CMSG_NXTHDR(header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count && answer->fds < LS_STARTER_FDS; ++i) {
      memcpy(&answer->fd[answer->fds++], CMSG_DATA(part) + i * sizeof(int), sizeof(int));
    }
  }
}

static int await(int socket, short events, int64_t deadline_ms) {
  for (int64_t left; (left = deadline_ms - now_ms()) > 0;) {
    struct pollfd ready = {.fd = socket, .events = events};
    const int count = poll(&ready, 1, (int)left);
    if (count > 0) return 0;
    if (count < 0 && errno != EINTR) return errno;
  }
  return ETIMEDOUT;
}

static int send_request(int socket, const struct ls_join_message* request, int64_t deadline_ms) {
  for (;;) {
    const int error = await(socket, POLLOUT, deadline_ms);
    if (error != 0) return error;
    if (send(socket, request, sizeof *request, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return 0;
    if (errno != EAGAIN && errno != EINTR) return errno;
  }
}

static int receive(int socket, struct ls_answer* answer, int64_t deadline_ms) {
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(LS_STARTER_FDS * sizeof(int))];
  } control;
  struct iovec part = {.iov_base = &answer->message, .iov_len = sizeof answer->message};
  struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  ssize_t got;
  do {
    const int error = await(socket, POLLIN, deadline_ms);
    if (error != 0) return error;
    got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (got < 0 && (errno == EAGAIN || errno == EINTR));
  if (got < 0) return errno;
  take_descriptors(&header, answer);
  if (got == 0) return ECONNRESET;
  return got == (ssize_t)sizeof answer->message ? 0 : EPROTO;
}

int ls_starter_ask(struct ls_starter* starter, const struct ls_join_message* request, struct ls_answer* answer,
                   int64_t limit_ms) {
  *answer = (struct ls_answer){.fd = {-1, -1}};
  if (!is_there(starter)) return ENOTCONN;
  const int64_t deadline_ms = now_ms() + limit_ms;
  int error = send_request(starter->socket, request, deadline_ms);
  if (error == 0) error = receive(starter->socket, answer, deadline_ms);
  if (error != 0) { /* what may yet come would be taken for the answer to the next request */
    ls_answer_close(answer);
    ls_starter_close(starter);
  }
  answer->message.text[sizeof answer->message.text - 1] = '\0';
  return error;
}

void ls_answer_close(struct ls_answer* answer) {
  for (int i = 0; i < LS_STARTER_FDS; ++i) {
    if (answer->fd[i] >= 0) close(answer->fd[i]);
    answer->fd[i] = -1;
  }
}
