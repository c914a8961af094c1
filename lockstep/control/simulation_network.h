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
    std::function<void(int machine)> connected;  // both sides: the agent wants to join
    std::function<void(int machine, const std::string& why, Seconds silence)> lost;  // to the coordinator
  };

  Network(int machines, Schedule& schedule, Chance& chance, Listener listener)
      : schedule_(schedule), chance_(chance), listener_(std::move(listener)), links_(static_cast<size_t>(machines)) {}

  // So many machines there are by now.
  void Know(int machines) { links_.resize(static_cast<size_t>(machines)); }

  // The coordinator's process begins to listen, or dies.
  void Open() { open_ = true; }
  void Close() {
    open_ = false;
    for (Link& link : links_) link.up = false;
  }

  // The agent tries; nothing happens if it can't get through, or is connected.
  void Connect(int machine) {
    Link& link = Of(machine);
    if (link.up || link.refused || !open_ || schedule_.now() < link.barred_until) return;
    link.up = true;
    ++link.connection;
    listener_.connected(machine);
  }

  // Nothing but a process at the other end keeps its agent from being there.
  bool IsOpenTo(int machine) const { return schedule_.now() >= links_[static_cast<size_t>(machine)].barred_until; }
  bool IsUp(int machine) const { return links_[static_cast<size_t>(machine)].up; }

  // When all that it has been told by now is there.
  Nanos ToldBy(int machine) const { return links_[static_cast<size_t>(machine)].last_down; }

  // It is out of the job: nothing from it is heard any more.
  void Refuse(int machine) {
    Of(machine).up = false;
    Of(machine).refused = true;
  }

  void Cut(int machine, Seconds duration) {
    Bar(machine, duration);
    Drop(machine, "its connection was lost");
  }

  // Packets are lost, or the agent is stopped: what is said arrives when that is over, if the stream lives so long.
  void Silence(int machine, Seconds duration) {
    Bar(machine, duration);
    schedule_.In(kSilenceNoticed, [this, machine, connection = Of(machine).connection] {
      const Link& link = Of(machine);
      if (link.connection == connection && schedule_.now() < link.barred_until)
        Drop(machine, "nothing heard for 4 s", kSilenceNoticed);
    });
  }

  void ToCoordinator(int machine, bool may_repeat, Action deliver) {
    Send(machine, Of(machine).last_up, may_repeat, std::move(deliver));
  }
  void ToAgent(int machine, bool may_repeat, Action deliver) {
    Send(machine, Of(machine).last_down, may_repeat, std::move(deliver));
  }

 private:
  static constexpr double kRepeated = 0.03, kSlow = 0.02;

  struct Link {
    bool up = false, refused = false;
    int64_t connection = 0;
    Nanos barred_until;        // nothing gets through before
    Nanos last_up, last_down;  // what arrives keeps its order
  };

  Link& Of(int machine) { return links_[static_cast<size_t>(machine)]; }

  void Bar(int machine, Seconds duration) {
    Link& link = Of(machine);
    link.barred_until = std::max(link.barred_until, schedule_.now() + ToNanos(duration));
    schedule_.In(duration, [this, machine] { Connect(machine); });
  }

  void Drop(int machine, const std::string& why, Seconds silence = {}) {
    if (std::exchange(Of(machine).up, false)) listener_.lost(machine, why, silence);
  }

  void Send(int machine, Nanos& last, bool may_repeat, Action deliver) {
    Link& link = Of(machine);
    if (!link.up) return;
    const Seconds delay = chance_.Hits(kSlow) ? chance_.Between(0.1, 0.8) : chance_.Between(0.0005, 0.01);
    last = std::max({last, schedule_.now() + ToNanos(delay), link.barred_until});
    const bool repeated = may_repeat && chance_.Hits(kRepeated);
    schedule_.At(last, [this, machine, deliver = std::move(deliver), repeated, connection = link.connection] {
      if (!Of(machine).up || Of(machine).connection != connection) return;
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
