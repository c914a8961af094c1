// For tests: ranks that launch sends and receives together and wait for them one after the other, as schedules of
// pipelines and ring attention do, told as gloo's collectors tell it. Their clocks are a little apart.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "lockstep/trace/comm_log.h"

namespace lockstep::detect {

enum class Order : uint8_t { kSendsFirst, kReceivesFirst, kSendsLater };  // later: with the next wait for all

struct Act {
  enum class Kind : uint8_t { kWork, kSend, kReceive, kWait, kWaitForReceives, kMeet } kind;
  double seconds = 0;  // of work
  int peer = -1;
  uint64_t bytes = 0;
};
using Program = std::vector<Act>;

// What a rank does in one step. `to`, `from`: -1 nobody.
class ProgramOf {
 public:
  ProgramOf(Order order, uint64_t bytes) : order_(order), bytes_(bytes) {}
  ProgramOf& Work(double seconds) { return Add({Act::Kind::kWork, seconds}); }
  ProgramOf& Meet(uint64_t bytes) { return Add({Act::Kind::kMeet, 0, -1, bytes}); }
  ProgramOf& WaitForAll() { return Add({Act::Kind::kWait}); }
  ProgramOf& Exchange(int to, int from) {
    if (to >= 0) Add({Act::Kind::kSend, 0, to, bytes_});
    if (from >= 0) Add({Act::Kind::kReceive, 0, from, bytes_});
    if (order_ != Order::kSendsFirst) Add({Act::Kind::kWaitForReceives});
    return order_ == Order::kSendsLater ? *this : WaitForAll();
  }
  const Program& acts() const { return acts_; }

 private:
  ProgramOf& Add(const Act& act) {
    acts_.push_back(act);
    return *this;
  }
  Order order_;
  uint64_t bytes_;
  Program acts_;
};

class ExchangeJob {
 public:
  // `wire_s`: of a message, since both ends were launched, more or less. `slow`: -1 nobody.
  ExchangeJob(int ranks, double wire_s, int slow = -1, double factor = 1) : wire_ns_(Nanoseconds(wire_s)) {
    std::vector<int> all;
    for (int rank = 0; rank < ranks; ++rank) {
      all.push_back(rank);
      ranks_.push_back({.now_ns = Nanoseconds(1'000), .clock_ns = Nanoseconds(2e-4 * rank)});
    }
    if (slow >= 0) ranks_[static_cast<size_t>(slow)].factor = factor;
    log_.communicators = {{"pipe", "", all}, {"world", "", all}};
    log_.functions = {"send", "recv", "all_reduce"};
    log_.reported = all;
  }
  void Steps(const std::vector<Program>& programs, double seconds) {
    const int64_t began_ns = ranks_[0].now_ns;
    int steps = 0;
    while (ranks_[0].now_ns < began_ns + Nanoseconds(seconds)) {
      for (Rank& rank : ranks_) rank.next = 0;
      for (bool any = true; std::exchange(any, false);) {
        for (size_t i = 0; i < ranks_.size(); ++i)
          while (ranks_[i].next < programs[i].size() && Do(i, programs[i][ranks_[i].next])) {
            ++ranks_[i].next;
            any = true;
          }
        any = Meet(programs) || any;
      }
      ++steps;
    }
    step_s_ = static_cast<double>(ranks_[0].now_ns - began_ns) / 1e9 / steps;
  }
  double step_s() const { return step_s_; }
  const trace::CommLog& log() const { return log_; }

 private:
  using Way = std::pair<int, int>;  // sender and receiver
  struct Pending {
    trace::CommOp op;
    int64_t launched_ns;
    Way way;
    size_t number;
  };
  struct Rank {
    int64_t now_ns, clock_ns;
    double factor = 1;
    int64_t held_up_ns = 0;  // since it met the others
    size_t next = 0;
    std::vector<Pending> pending = {};
  };

  static int64_t Nanoseconds(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

  // False: it has to wait for others.
  bool Do(size_t i, const Act& act) {
    Rank& rank = ranks_[i];
    if (act.kind == Act::Kind::kMeet) return false;
    if (act.kind == Act::Kind::kWork)
      rank.now_ns += Nanoseconds(act.seconds * rank.factor * std::exp(jitter_(chance_)));
    else if (act.kind == Act::Kind::kSend || act.kind == Act::Kind::kReceive)
      Launch(static_cast<int>(i), act);
    else
      return Wait(rank, act.kind == Act::Kind::kWaitForReceives);
    return true;
  }

  void Launch(int rank, const Act& act) {
    const bool sends = act.kind == Act::Kind::kSend;
    const Way way = sends ? Way{rank, act.peer} : Way{act.peer, rank};
    std::vector<int64_t>& launched = launched_[{way, sends}];
    Rank& own = ranks_[static_cast<size_t>(rank)];
    trace::CommOp op;
    op.rank = rank;
    op.peer = act.peer;
    op.function = sends ? 0 : 1;
    op.direction = sends ? trace::Direction::kSend : trace::Direction::kReceive;
    op.state = trace::OpState::kCompleted;
    op.bytes = act.bytes;
    op.created_ns = own.now_ns + own.clock_ns;
    own.pending.push_back({op, own.now_ns, way, launched.size()});
    launched.push_back(own.now_ns);
    own.now_ns += 1'000;
  }

  // Of a message of the way, for both of its ends.
  int64_t WireOf(const Way& way, size_t number) {
    std::vector<int64_t>& all = wire_of_[way];
    while (all.size() <= number)
      all.push_back(static_cast<int64_t>(static_cast<double>(wire_ns_) * std::exp(uneven_(chance_))));
    return all[number];
  }

  bool Wait(Rank& rank, bool receives_alone) {
    for (size_t i = 0; i < rank.pending.size();) {
      Pending& one = rank.pending[i];
      const bool sends = one.op.direction == trace::Direction::kSend;
      if (sends && receives_alone) {
        ++i;
        continue;
      }
      const std::vector<int64_t>& others = launched_[{one.way, !sends}];
      if (others.size() <= one.number) return false;
      const int64_t there_ns = std::max(one.launched_ns, others[one.number]) + WireOf(one.way, one.number);
      one.op.held_up_ns = std::max<int64_t>(0, there_ns - rank.now_ns);
      rank.now_ns += one.op.held_up_ns;
      rank.held_up_ns += one.op.held_up_ns;
      one.op.duration_ns = rank.now_ns - one.launched_ns;
      log_.ops.push_back(one.op);
      rank.pending.erase(rank.pending.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return true;
  }

  bool Meet(const std::vector<Program>& programs) {
    int64_t last_ns = 0;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i].next == programs[i].size() || programs[i][ranks_[i].next].kind != Act::Kind::kMeet) return false;
      last_ns = std::max(last_ns, ranks_[i].now_ns);
    }
    for (size_t i = 0; i < ranks_.size(); ++i) {
      Rank& rank = ranks_[i];
      trace::CommOp op;
      op.communicator = 1;
      op.rank = static_cast<int>(i);
      op.function = 2;
      op.state = trace::OpState::kCompleted;
      op.sequence = met_;
      op.bytes = programs[i][rank.next].bytes;
      op.created_ns = rank.now_ns + rank.clock_ns;
      op.duration_ns = last_ns + 500'000 - rank.now_ns;
      if (met_ > 0) op.alone_ns = rank.now_ns - met_at_ns_ - rank.held_up_ns;
      rank.held_up_ns = 0;
      log_.ops.push_back(op);
      ++rank.next;
    }
    for (Rank& rank : ranks_) rank.now_ns = last_ns + 500'000;
    met_at_ns_ = last_ns + 500'000;
    ++met_;
    return true;
  }

  int64_t wire_ns_;
  std::vector<Rank> ranks_;
  std::map<std::pair<Way, bool>, std::vector<int64_t>> launched_;  // sends, or else receives
  std::map<Way, std::vector<int64_t>> wire_of_;
  trace::CommLog log_;
  int64_t met_ = 0, met_at_ns_ = 0;
  double step_s_ = 0;
  std::mt19937_64 chance_{1};
  std::normal_distribution<double> jitter_{0, 0.01}, uneven_{0, 0.2};
};

}  // namespace lockstep::detect
