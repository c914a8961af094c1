/* Preloaded into ranks of a test: takes their connections to each other through the proxy of slow_links.py.
 *
 *   DETOUR_DIR    where each listening rank leaves its number, in a file named by its port
 *   DETOUR_PORT   of the proxy, which is told first where to go: ranks of both ends (int32), then a sockaddr_storage
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int own_rank(void) { return atoi(getenv("RANK")); }

/* Others inherit this, too: shells, and those that start ranks. */
static int is_rank(void) { return getenv("RANK") != NULL && getenv("MASTER_PORT") != NULL; }

static int port_of(const struct sockaddr* address) {
  if (address->sa_family == AF_INET) return ntohs(((const struct sockaddr_in*)address)->sin_port);
  if (address->sa_family == AF_INET6) return ntohs(((const struct sockaddr_in6*)address)->sin6_port);
  return 0;
}

static FILE* note(int port, const char* mode) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%d", getenv("DETOUR_DIR"), port);
  return fopen(path, mode);
}

/* gloo's own sockets only: the rendezvous store listens too, but in a thread of rank 0 that answers to everybody. */
__attribute__((visibility("default"))) int listen(int fd, int backlog) {
  int (*original)(int, int) = (int (*)(int, int))dlsym(RTLD_NEXT, "listen");
  struct sockaddr_storage own;
  socklen_t length = sizeof own;
  if (is_rank() && getsockname(fd, (struct sockaddr*)&own, &length) == 0 &&
      port_of((struct sockaddr*)&own) != atoi(getenv("MASTER_PORT"))) {
    FILE* file = note(port_of((struct sockaddr*)&own), "w");
    if (file != NULL) {
      fprintf(file, "%d", own_rank());
      fclose(file);
    }
  }
  return original(fd, backlog);
}

__attribute__((visibility("default"))) int connect(int fd, const struct sockaddr* address, socklen_t length) {
  int (*original)(int, const struct sockaddr*, socklen_t) =
      (int (*)(int, const struct sockaddr*, socklen_t))dlsym(RTLD_NEXT, "connect");
  if (!is_rank()) return original(fd, address, length);
  int32_t ends[2] = {own_rank(), -1};
  FILE* file = port_of(address) == 0 ? NULL : note(port_of(address), "r");
  if (file == NULL) return original(fd, address, length);
  const int read = fscanf(file, "%d", &ends[1]);
  fclose(file);
  if (read != 1) return original(fd, address, length);
  struct sockaddr_storage target, proxy;
  memset(&target, 0, sizeof target);
  memset(&proxy, 0, sizeof proxy);
  memcpy(&target, address, length);
  const uint16_t port = htons((uint16_t)atoi(getenv("DETOUR_PORT")));
  proxy.ss_family = address->sa_family;
  if (address->sa_family == AF_INET) {
    ((struct sockaddr_in*)&proxy)->sin_port = port;
    ((struct sockaddr_in*)&proxy)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  } else {
    ((struct sockaddr_in6*)&proxy)->sin6_port = port;
    ((struct sockaddr_in6*)&proxy)->sin6_addr = in6addr_loopback;
  }
  const int flags = fcntl(fd, F_GETFL);
  fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
  const int failed = original(fd, (struct sockaddr*)&proxy, length);
  if (failed == 0 &&
      (send(fd, ends, sizeof ends, 0) != sizeof ends || send(fd, &target, sizeof target, 0) != sizeof target))
    return -1;
  const int before = errno;
  fcntl(fd, F_SETFL, flags);
  errno = before;
  return failed;
}
