#define _GNU_SOURCE
#include "lockstep/client/starter.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* A socket's address holds 107 characters and a run directory may be longer, so the path goes through a descriptor of
 * it. */
static int connect_in(int directory) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/" LS_JOIN_SOCKET, directory);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const struct timeval bound = {.tv_sec = LS_STARTER_TIMEOUT_S};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof bound);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &bound, sizeof bound);
  int result;
  do {
    result = connect(fd, (const struct sockaddr*)&address, sizeof address);
  } while (result != 0 && errno == EINTR); /* of such a socket, nothing was begun */
  if (result == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

int ls_starter_connect(const char* run_directory) {
  const int directory = open(run_directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return -1;
  const int fd = connect_in(directory);
  const int error = errno;
  close(directory);
  errno = error;
  return fd;
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

static int receive(int socket, struct ls_answer* answer) {
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(LS_STARTER_FDS * sizeof(int))];
  } control;
  struct iovec part = {.iov_base = &answer->message, .iov_len = sizeof answer->message};
  struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  ssize_t got;
  do {
    got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return errno == EAGAIN ? ETIMEDOUT : errno;
  take_descriptors(&header, answer);
  if (got == 0) return ECONNRESET;
  return got == (ssize_t)sizeof answer->message ? 0 : EPROTO;
}

int ls_starter_ask(int socket, const struct ls_join_message* request, struct ls_answer* answer) {
  *answer = (struct ls_answer){.fd = {-1, -1}};
  ssize_t sent;
  do {
    sent = send(socket, request, sizeof *request, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return errno == EAGAIN ? ETIMEDOUT : errno;
  const int error = receive(socket, answer);
  if (error != 0) ls_answer_close(answer);
  answer->message.text[sizeof answer->message.text - 1] = '\0';
  return error;
}

void ls_answer_close(struct ls_answer* answer) {
  for (int i = 0; i < LS_STARTER_FDS; ++i) {
    if (answer->fd[i] >= 0) close(answer->fd[i]);
    answer->fd[i] = -1;
  }
}
