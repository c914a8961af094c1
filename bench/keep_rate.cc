// How fast a checkpoint comes back from its keeper's memory, and how fast it gets there: 4 slots of 100 MB, each over a
// connection of its own when fetched, as an agent does it; with the hashes and CRCs of the real thing. Beside it, in
// turns, what as many plain connections of loopback carry. Prints JSON: GB/s, samples.
#include <sys/socket.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/base/report.h"
#include "lockstep/client/client.h"
#include "lockstep/keep/fetch.h"
#include "lockstep/keep/keeper.h"
#include "lockstep/keep/sender.h"

namespace lockstep {
namespace {

constexpr size_t kSlots = 4, kSlotBytes = 100'000'000, kBlock = 1 << 20;
constexpr int kRounds = 9;
constexpr Bytes kPlenty{uint64_t{1} << 40};
constexpr char kToken[] = "0123456789abcdef0123456789abcdef";

using Memory = std::vector<std::byte>;

double RateSince(std::chrono::steady_clock::time_point begin) {
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(kSlots * kSlotBytes) / took.count() * 1e-9;
}

std::vector<Memory> Slots(uint64_t seed) {
  std::vector<Memory> slots(kSlots, Memory(kSlotBytes));
  std::mt19937_64 random(seed);
  for (Memory& slot : slots)
    for (size_t at = 0; at + 8 <= slot.size(); at += 8) {
      const uint64_t word = random();
      std::memcpy(&slot[at], &word, 8);
    }
  return slots;
}

// Memory is as warm as that of a fetch.
class Loopback {
 public:
  double Once(const std::vector<Memory>& from, std::vector<Memory>& to) {
    int port = 0;
    const Fd listener = keep::ListenOnFreePort(true, port).value();
    std::vector<std::jthread> threads;
    const auto begin = std::chrono::steady_clock::now();
    for (size_t slot = 0; slot < kSlots; ++slot) {
      keep::Connection sends = keep::Connection::To({"127.0.0.1", port}, {}).value();
      Fd takes(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      LS_CHECK(takes.valid());
      threads.emplace_back([&from, slot, connection = std::move(sends)]() mutable { Send(connection, from[slot]); });
      threads.emplace_back([&to, slot, socket = std::move(takes)] { Take(socket, to[slot]); });
    }
    threads.clear();
    return RateSince(begin);
  }

 private:
  static void Send(keep::Connection& connection, const Memory& memory) {
    for (size_t at = 0; at < memory.size(); at += kBlock)
      LS_CHECK(connection.Write(std::span(memory).subspan(at, std::min(kBlock, memory.size() - at))).ok());
  }
  static void Take(const Fd& socket, Memory& memory) {
    for (size_t at = 0; at < memory.size();) {
      const ssize_t got = recv(socket.get(), &memory[at], std::min(kBlock, memory.size() - at), 0);
      LS_CHECK(got > 0);
      at += static_cast<size_t>(got);
    }
  }
};

// One node's keeper, and another one's sender.
class Pair {
 public:
  Pair() : own_(kPlenty), keeper_(kToken, kPlenty), sender_(kToken, own_, Listener()) {
    LS_CHECK(keeper_.Open(true).ok());
    sender_.SendTo(keep::Address{"127.0.0.1", keeper_.port()});
  }

  // From the offer until it is kept.
  double Keep(std::vector<Memory> slots) {
    const auto memory = std::make_shared<std::vector<Memory>>(std::move(slots));
    keep::OwnPart part{{1, At(++step_), kSlots, {}, {}}, {}, memory};
    for (const Memory& slot : *memory) {
      part.outline.slots.push_back({slot.size(), 0, ls_crc32c(0, slot.data(), slot.size())});
      part.contents.emplace_back(slot);
    }
    // Of its own ranks the keeper holds nothing alike; it knows that at once.
    keeper_.store().SetOwn(
        std::make_shared<const keep::OwnPart>(keep::OwnPart{{0, At(step_), kSlots, {}, {}}, {}, {}}));
    const auto begin = std::chrono::steady_clock::now();
    sender_.Offer(std::move(part));
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return kept_ == step_; });
    return RateSince(begin);
  }

  double Fetch(std::vector<Memory>& to) {
    const auto begin = std::chrono::steady_clock::now();
    const auto outline =
        keep::Fetch({"127.0.0.1", keeper_.port()}, kToken, 1, At(step_), {}, [&](size_t slot, const keep::SlotHeader&) {
          return absl::StatusOr<std::span<std::byte>>(std::span(to[slot]));
        });
    LS_CHECK(outline.ok());
    return RateSince(begin);
  }

 private:
  static checkpoint::Point At(int64_t step) { return {EpochId(1), StepId(step)}; }
  keep::Sender::Listener Listener() {
    return {.kept =
                [this](const checkpoint::Point& point) {
                  const std::lock_guard lock(mutex_);
                  kept_ = point.step.value();
                  changed_.notify_all();
                },
            .trouble = [](const absl::Status& why) { std::cerr << Message(why) << "\n"; }};
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t step_ = 0, kept_ = 0;
  keep::Store own_;
  keep::Keeper keeper_;
  keep::Sender sender_;
};

Json Measure() {
  Loopback loopback;
  Pair pair;
  std::vector<Memory> to(kSlots, Memory(kSlotBytes));
  Json plain = Json::array(), kept = Json::array(), fetched = Json::array();
  for (int round = 0; round <= kRounds; ++round) {  // the first one warms up
    std::vector<Memory> from = Slots(static_cast<uint64_t>(round));
    const double carries = loopback.Once(from, to);
    const double gets_there = pair.Keep(from);
    const double comes_back = pair.Fetch(to);
    LS_CHECK(from == to);
    if (round == 0) continue;
    plain.push_back(carries);
    kept.push_back(gets_there);
    fetched.push_back(comes_back);
  }
  return {{"loopback", plain}, {"kept", kept}, {"fetched", fetched}};
}

}  // namespace
}  // namespace lockstep

int main() { std::cout << lockstep::Measure().dump(2) << "\n"; }
