// One rank of a job of this machine, and the stream on which its batches come from another: a thread that fills its
// ring. Included where gRPC's headers are.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/feed/ring.h"
#include "lockstep/relay/far.h"

namespace lockstep::relay {

// Of all carriers.
struct Carried {
  uint64_t ring_limit = 0;  // 0: half of the machine's memory
  std::atomic<uint64_t> ring_bytes = 0, ranks = 0, batches = 0, bytes = 0;
};

class Carrier {
 public:
  // `guest`: the loader's socket, open for as long as this lives. What is lost or refused is told to it; where batches
  // end, the socket is shut down, and the loader joins anew.
  Carrier(const Far& far, Join join, int guest, Carried& carried, const Clock& clock);
  ~Carrier();
  // The loader has released a slot.
  void Wake();

 private:
  using Reader = grpc::ClientReader<Part>;

  void Run();
  absl::Status Carry(Reader& reader);
  absl::Status MakeRing(const Joined& joined);
  absl::Status Fill(Reader& reader, uint32_t slot, uint64_t ticket);
  std::optional<uint32_t> AwaitSlot();
  absl::Status Read(Reader& reader, Part& part) const;
  void Tell(const char* what, const absl::Status& why) const;

  const Far& far_;
  const Join join_;
  const int guest_;
  Carried& carried_;
  const Clock& clock_;
  grpc::ClientContext context_;
  std::mutex mutex_;  // guards woken_ and stopped_
  std::condition_variable changed_;
  bool woken_ = false, stopped_ = false;
  std::optional<feed::Ring> ring_;  // once it has joined; of the thread
  std::thread thread_;
};

}  // namespace lockstep::relay
