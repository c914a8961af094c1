// The job behind Telemetry (telemetry.h): who is in which group, where each rank stands, what a step does.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/synth/chance.h"
#include "lockstep/synth/schedule.h"
#include "lockstep/synth/telemetry.h"

namespace lockstep::synth {

class Telemetry::Job {
 public:
  static constexpr int64_t kBegin = 1'000'000'000'000;  // CLOCK_BOOTTIME when the job begins

  Job(const TelemetryShape& shape, const std::vector<TelemetryFault>& faults, uint64_t seed);
  void Run(Seconds since_begin);
  std::vector<trace::TrailSnapshot> Take();
  bool IsStuck() const { return stuck_ > 0; }
  std::vector<TelemetryFault> Unmet() const;

 private:
  enum Kind : uint8_t { kWorld, kData, kTensor, kPipeline, kExpert, kContext, kKinds };
  struct Group {
    uint64_t id;
    Kind kind;
    std::vector<size_t> members;  // ranks
  };
  struct Rank {
    int64_t now = 0;                      // ns
    int64_t left = 0;                     // a collective, later by what it waited for since; 0: never
    bool stuck = false, stopped = false;  // the latter: by a signal
    size_t host = 0, replica = 0;
    std::array<int, kKinds> group{}, place{};  // group -1: none
    std::array<uint32_t, kKinds> launched{};
    std::array<std::vector<int64_t>, 2> sent;  // backward and forward, by microbatch; kNever: not
    std::vector<ls_record> ended, under_way;
  };
  // What messages on one edge and port of a collective come to. Ends are places in the group.
  struct Edge {
    size_t from, to;
    int port;
    uint64_t bytes;
    uint32_t count;  // of messages
    int64_t credit_ns, wire_ns, first_ns;
  };

  void AddGroups(Kind kind, const std::vector<std::vector<RankId>>& groups);
  void OrderSchedule();
  Group& GroupOf(size_t rank, Kind kind) { return groups_[static_cast<size_t>(ranks_[rank].group[kind])]; }

  void Step();
  void BeginStep();
  void Microbatch(int stage, const Compute& compute);
  void WorkOnShards(int stage, bool forward, Seconds of_layer);
  void Gradients();
  void PauseAll(Seconds seconds, double spread);
  void Work(size_t rank, Seconds seconds);
  void Receive(size_t rank, const Compute& compute);
  void Send(size_t rank, const Compute& compute);

  void OfStage(int stage, Kind kind, uint8_t function, Bytes bytes);  // its groups' collective
  void Collective(const Group& group, uint8_t function, Bytes bytes);
  bool Hinder(const Group& group, uint8_t function, Bytes bytes);
  void LoseMessage(const Group& group, uint8_t function, Bytes bytes, size_t from);
  std::vector<Edge> EdgesOf(const Group& group, Bytes bytes, const std::vector<int64_t>& came);
  Edge EdgeOf(const Group& group, std::pair<size_t, size_t> ends, int port, double bytes, int64_t ready,
              const std::vector<int64_t>& came);
  void Tell(const Group& group, const Edge& edge, int64_t at);
  void TellAlone(size_t from, int peer, int port, double wire_ns, int64_t at);

  double FactorOf(size_t from, size_t to, int port);
  const TelemetryFault* Active(TelemetryFaultKind kind, size_t rank) const;
  Seconds SinceBegin(int64_t now) const;
  bool IsTree(const Group& group) const { return shape_.trees && group.kind == kData && group.members.size() > 2; }

  static uint32_t IndexIn(const Rank& rank, Kind kind);  // in its trail
  ls_record Launch(size_t rank, Kind kind, uint8_t function, Bytes bytes);
  ls_record LaunchTransfer(size_t rank, size_t peer, uint8_t function);
  void Stick(size_t rank, const ls_record* in);
  void End(size_t rank, ls_record record, int64_t at);
  std::vector<ls_communicator> CommunicatorsOf(const Rank& rank) const;

  TelemetryShape shape_;
  std::vector<TelemetryFault> faults_;
  std::vector<bool> met_;  // of them, by a message
  Chance chance_;
  std::vector<Group> groups_;
  std::array<std::vector<size_t>, kKinds> of_kind_;  // indices of groups
  std::vector<Rank> ranks_;
  std::vector<std::vector<size_t>> of_stage_;      // ranks
  std::vector<int64_t> clock_offset_;              // by host
  std::vector<std::pair<int, Compute>> schedule_;  // of all stages, so that each finds what it needs
  std::vector<double> length_;                     // of this step, by replica
  int64_t step_ = 0, end_ = 0;
  size_t stuck_ = 0;
};

}  // namespace lockstep::synth
