// The streams between the agents and the coordinator of a simulation. What is said arrives in order and late; a stream
// breaks, which both sides see at once, or falls silent, which the coordinator sees after 4 s; and now and then what
// has arrived comes a second time, whatever became of its stream. Only the simulation includes this.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/control/simulation_schedule.h"

namespace lockstep::control {

inline constexpr Seconds kSilenceNoticed{4};  // as rpc::kSilence
inline constexpr Seconds kForGood{1e9};

class Network {
 public:
  using Action = std::function<void()>;
  struct Listener {
    std::function<void(int node)> connected;                     // to the agent: say all you know
    std::function<void(int node, const std::string& why)> lost;  // to the coordinator
  };

  Network(int nodes, Schedule& schedule, Chance& chance, Listener listener)
      : schedule_(schedule), chance_(chance), listener_(std::move(listener)), links_(static_cast<size_t>(nodes)) {}

  // The coordinator's process begins to listen, or dies.
  void Open() { open_ = true; }
  void Close() {
    open_ = false;
    for (Link& link : links_) link.up = false;
  }

  // The agent tries; nothing happens if it can't get through, or is connected.
  void Connect(int node) {
    Link& link = Of(node);
    if (link.up || !open_ || schedule_.now() < link.barred_until) return;
    link.up = true;
    ++link.connection;
    listener_.connected(node);
  }

  // Another machine has the place of this node, and is in reach.
  void Replace(int node) {
    Link fresh;
    fresh.connection = Of(node).connection;
    Of(node) = fresh;
    Connect(node);
  }

  void Cut(int node, Seconds duration) {
    Bar(node, duration);
    Drop(node, "its connection was lost");
  }

  // Packets are lost, or the agent is stopped: what is said arrives when that is over, if the stream lives so long.
  void Silence(int node, Seconds duration) {
    Bar(node, duration);
    schedule_.In(kSilenceNoticed, [this, node, connection = Of(node).connection] {
      const Link& link = Of(node);
      if (link.connection == connection && schedule_.now() < link.barred_until) Drop(node, "nothing heard for 4 s");
    });
  }

  void ToCoordinator(int node, bool may_repeat, const Action& deliver) {
    Send(node, Of(node).last_up, may_repeat, deliver);
  }
  void ToAgent(int node, bool may_repeat, const Action& deliver) {
    Send(node, Of(node).last_down, may_repeat, deliver);
  }

 private:
  static constexpr double kRepeated = 0.03, kSlow = 0.02;

  struct Link {
    bool up = false;
    int64_t connection = 0;
    Nanos barred_until;        // nothing gets through before
    Nanos last_up, last_down;  // what arrives keeps its order
  };

  Link& Of(int node) { return links_[static_cast<size_t>(node)]; }

  void Bar(int node, Seconds duration) {
    Link& link = Of(node);
    link.barred_until = std::max(link.barred_until, schedule_.now() + ToNanos(duration));
    schedule_.In(duration, [this, node] { Connect(node); });
  }

  void Drop(int node, const std::string& why) {
    if (std::exchange(Of(node).up, false)) listener_.lost(node, why);
  }

  void Send(int node, Nanos& last, bool may_repeat, const Action& deliver) {
    Link& link = Of(node);
    if (!link.up) return;
    const Seconds delay = chance_.Hits(kSlow) ? chance_.Between(0.1, 0.8) : chance_.Between(0.0005, 0.01);
    last = std::max({last, schedule_.now() + ToNanos(delay), link.barred_until});
    const bool repeated = may_repeat && chance_.Hits(kRepeated);
    schedule_.At(last, [this, node, deliver, repeated, connection = link.connection] {
      if (!Of(node).up || Of(node).connection != connection) return;
      deliver();
      if (repeated) schedule_.In(chance_.Between(0, 3), deliver);
    });
  }

  Schedule& schedule_;
  Chance& chance_;
  const Listener listener_;
  std::vector<Link> links_;
  bool open_ = false;
};

}  // namespace lockstep::control
