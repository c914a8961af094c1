/* The worker's end of join.h: one connection to the starter, one request at a time, each answered within a bound. */
#ifndef LOCKSTEP_CLIENT_STARTER_H_
#define LOCKSTEP_CLIENT_STARTER_H_

#include "lockstep/client/join.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LS_STARTER_FDS = 2, LS_STARTER_TIMEOUT_MS = 60000 };

struct ls_answer {
  struct ls_join_message message;
  int fd[LS_STARTER_FDS]; /* -1: not sent; the caller's to close */
  int fds;
};

/* A connected socket, or -1: errno says why. */
int ls_starter_connect(const char* run_directory);
/* Sends `request` and waits for the answer. 0, or an errno value: then the connection is closed, and *socket is -1. */
int ls_starter_ask(int* socket, const struct ls_join_message* request, struct ls_answer* answer, int64_t limit_ms);
void ls_answer_close(struct ls_answer*);

#ifdef __cplusplus
}
#endif
#endif
