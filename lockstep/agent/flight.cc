#include "lockstep/agent/flight.h"

#include <atomic>
#include <thread>
#include <utility>

#include "lockstep/base/background_thread.h"

namespace lockstep::agent {

struct Flight::Shared {
  Work work;
  std::atomic<bool> given_up = false, finished = false;
  absl::Status status;
};

Flight::Flight(Work work) : shared_(std::make_shared<Shared>()) {
  shared_->work = std::move(work);
  std::thread([shared = shared_] {
    StepBack();
    shared->status = std::exchange(shared->work, nullptr)([&] { return !shared->given_up.load(); });
    shared->finished.store(true, std::memory_order_release);
  }).detach();
}

void Flight::GiveUp() {
  if (shared_) shared_->given_up = true;
}

bool Flight::finished() const { return shared_->finished.load(std::memory_order_acquire); }
const absl::Status& Flight::status() const { return shared_->status; }

}  // namespace lockstep::agent
