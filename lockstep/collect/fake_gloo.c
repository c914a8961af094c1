/* Stands in for libgloo.so.0 in gloo_test.cc and bench/gloo_path.cc: what a small all-reduce of two ranks calls of the
 * transport, and nothing behind it. Calls go through the dynamic linker, as libgloo's own do, so whoever was loaded
 * before stands in between.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void connect_mesh(void* context, void* store, void* device) __asm__(
    "_ZN4gloo10rendezvous7Context15connectFullMeshERNS0_5StoreERSt10shared_ptrINS_9transport6DeviceEE");
void connect_mesh(void* context, void* store, void* device) { (void)context, (void)store, (void)device; }

/* What the caller wants to send is the buffer, too. */
void* create_buffer(void** result, void* context, void* memory,
                    size_t bytes) __asm__("_ZN4gloo7Context19createUnboundBufferEPvm");
void* create_buffer(void** result, void* context, void* memory, size_t bytes) {
  (void)context, (void)bytes;
  *result = memory;
  return result;
}

void send(void* buffer, int peer, uint64_t slot, size_t offset,
          size_t bytes) __asm__("_ZN4gloo9transport3tcp13UnboundBuffer4sendEimmm");
void send(void* buffer, int peer, uint64_t slot, size_t offset, size_t bytes) {
  (void)buffer, (void)peer, (void)slot, (void)offset, (void)bytes;
}

void receive(void* buffer, int peer, uint64_t slot, size_t offset,
             size_t bytes) __asm__("_ZN4gloo9transport3tcp13UnboundBuffer4recvEimmm");
void receive(void* buffer, int peer, uint64_t slot, size_t offset, size_t bytes) {
  (void)buffer, (void)peer, (void)slot, (void)offset, (void)bytes;
}

void delete_buffer(void* buffer) __asm__("_ZN4gloo9transport3tcp13UnboundBufferD0Ev");
void delete_buffer(void* buffer) { (void)buffer; }

/* What is called while a send is waited for; it may throw, as gloo does where the time is up. */
extern void (*fake_gloo_waits)(void);
void (*fake_gloo_waits)(void);

#define MILLISECONDS "NSt6chrono8durationIlSt5ratioILl1ELl1000EEEE"
bool wait_send(void* buffer, int* peer,
               int64_t timeout_ms) __asm__("_ZN4gloo9transport3tcp13UnboundBuffer8waitSendEPi" MILLISECONDS);
bool wait_send(void* buffer, int* peer, int64_t timeout_ms) {
  (void)buffer, (void)timeout_ms;
  if (fake_gloo_waits != NULL) fake_gloo_waits();
  if (peer != NULL) *peer = 1;
  return true;
}

bool wait_receive(void* buffer, int* peer,
                  int64_t timeout_ms) __asm__("_ZN4gloo9transport3tcp13UnboundBuffer8waitRecvEPi" MILLISECONDS);
bool wait_receive(void* buffer, int* peer, int64_t timeout_ms) {
  (void)buffer, (void)timeout_ms;
  if (peer != NULL) *peer = 1;
  return true;
}

/* A ring of two takes two turns, in each of which a rank receives, sends, and waits for both. Behind their context the
 * options may say how many turns: none without elements. */
struct options {
  void* context;
  const uint64_t* turns; /* NULL: two */
};

void all_reduce(const struct options* options) __asm__("_ZN4gloo9allreduceERKNS_16AllreduceOptionsE");
void all_reduce(const struct options* options) {
  static uint64_t buffer[8] = {[2] = 4000}, received[8] = {[2] = 64}; /* as long as that */
  const uint64_t turns = options->turns == NULL ? 2 : *options->turns;
  for (uint64_t turn = 0; turn < turns; ++turn) {
    receive(received, 1, turn, 0, 32);
    send(buffer, 1, turn, 0, 32);
    wait_receive(buffer, NULL, 1000);
    wait_send(buffer, NULL, 1000);
  }
}

/* With each of so many others: sends to them, and receives from them. */
void all_to_all(const struct options* options) __asm__("_ZN4gloo8alltoallERNS_15AlltoallOptionsE");
void all_to_all(const struct options* options) {
  static char buffer[64];
  for (uint64_t peer = 1; peer <= *options->turns; ++peer) {
    receive(buffer, (int)peer, 0, 0, 32);
    send(buffer, (int)peer, 0, 0, 32);
  }
}

/* Its root hears from each of so many others. */
void reduce(const struct options* options) __asm__("_ZN4gloo6reduceERNS_13ReduceOptionsE");
void reduce(const struct options* options) {
  static char buffer[64];
  for (uint64_t peer = 1; peer <= *options->turns; ++peer) receive(buffer, (int)peer, 0, 0, 32);
}

/* Nor does a leaf of its tree send. */
void broadcast(const struct options* options) __asm__("_ZN4gloo9broadcastERNS_16BroadcastOptionsE");
void broadcast(const struct options* options) {
  static uint64_t buffer[8] = {[2] = 3000};
  receive(buffer, (int)*options->turns, 0, 0, 32);
}

/* Who is not its root hears from that alone. */
void scatter(const struct options* options) __asm__("_ZN4gloo7scatterERNS_14ScatterOptionsE");
void scatter(const struct options* options) {
  static char buffer[64];
  receive(buffer, (int)*options->turns, 0, 0, 32);
}
