// Virtual time and chance: all that decides what happens when in a simulation. Only the simulation includes this.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/units.h"

namespace lockstep::control {

// Virtual time: things happen in order, and nothing takes time but what says so.
class Schedule {
 public:
  Nanos now() const { return now_; }
  void In(Seconds delay, std::function<void()> action) { At(now_ + ToNanos(delay), std::move(action)); }
  void At(Nanos moment, std::function<void()> action) {
    queue_.push_back({moment, ++count_, std::move(action)});
    std::push_heap(queue_.begin(), queue_.end());
  }
  // False: nothing is left to happen.
  bool Next() {
    if (queue_.empty()) return false;
    std::pop_heap(queue_.begin(), queue_.end());
    const Item next = std::move(queue_.back());
    queue_.pop_back();
    now_ = next.at;
    next.action();
    return true;
  }

 private:
  struct Item {
    Nanos at;
    int64_t order;
    std::function<void()> action;
    bool operator<(const Item& other) const { return std::tie(other.at, other.order) < std::tie(at, order); }
  };
  Nanos now_{1'000'000'000};
  int64_t count_ = 0;
  std::vector<Item> queue_;  // a heap
};

class VirtualClock final : public Clock {
 public:
  explicit VirtualClock(const Schedule& schedule) : schedule_(schedule) {}
  Nanos Now() const override { return schedule_.now(); }
  Nanos WallNow() const override { return schedule_.now(); }

 private:
  const Schedule& schedule_;
};

class Chance {
 public:
  explicit Chance(uint64_t seed) : engine_(seed) {}
  bool Hits(double probability) { return std::bernoulli_distribution(probability)(engine_); }
  Seconds Between(double low, double high) { return Seconds{std::uniform_real_distribution(low, high)(engine_)}; }
  int Below(int limit) { return std::uniform_int_distribution(0, limit - 1)(engine_); }

 private:
  std::mt19937_64 engine_;
};

}  // namespace lockstep::control
