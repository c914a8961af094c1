/* A module with a gloo of its own, whose functions other modules may see, as pygloo has one. */

#ifndef ANSWER
#define ANSWER 42
#endif

void _ZN4gloo7barrierERNS_14BarrierOptionsE(int* options) { *options = ANSWER; }

int passes_a_barrier(void);
int passes_a_barrier(void) {
  int options = 0;
  _ZN4gloo7barrierERNS_14BarrierOptionsE(&options);
  return options;
}
