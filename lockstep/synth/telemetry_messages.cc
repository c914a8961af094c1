// How the ranks of a simulated job communicate, and what is noted of it.
#include <string.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>

#include "lockstep/synth/telemetry_job.h"

namespace lockstep::synth {
namespace {

using FaultKind = TelemetryFaultKind;

constexpr double kChunk = 1 << 20;     // bytes of a message
constexpr double kLatencyNs = 20'000;  // of a message between hosts
constexpr double kLatencySpread = 0.2, kWireSpread = 0.05;
constexpr double kHandOverNs = 10'000;  // of a send that nobody waits for

int64_t Rounded(double ns) { return static_cast<int64_t>(ns); }

}  // namespace

// ---- records ----

uint32_t Telemetry::Job::IndexIn(const Rank& rank, Kind kind) {
  return static_cast<uint32_t>(
      std::count_if(rank.group.begin(), rank.group.begin() + kind, [](int group) { return group >= 0; }));
}

ls_record Telemetry::Job::Launch(size_t index, Kind kind, uint8_t function, Bytes bytes) {
  Rank& rank = ranks_[index];
  ls_record record{};
  record.kind = LS_RECORD_OP;
  record.time_ns = rank.now;
  ls_op_body& op = record.body.op;
  op.bytes = bytes.value;
  op.communicator = IndexIn(rank, kind);
  op.number = ++rank.launched[kind];
  op.tag = LS_NO_TAG;
  op.rank = static_cast<uint32_t>(index);
  op.peer = op.waits_for = LS_NO_PEER;
  op.function = function;
  op.state = LS_OP_STARTED;
  ls_op_set_alone(&record, rank.left == 0 ? -1 : rank.now - rank.left);
  return record;
}

ls_record Telemetry::Job::LaunchTransfer(size_t index, size_t peer, uint8_t function) {
  Rank& rank = ranks_[index];
  ls_record record = Launch(index, kPipeline, function, shape_.activations);
  --rank.launched[kPipeline];
  record.body.op.number = 0;
  record.body.op.peer = ranks_[peer].place[kPipeline];
  ls_op_set_alone(&record, -1);
  return record;
}

// It goes no further; `in` (null: nothing) is what it is in.
void Telemetry::Job::Stick(size_t index, const ls_record* in) {
  Rank& rank = ranks_[index];
  rank.stuck = true;
  ++stuck_;
  if (in != nullptr) rank.under_way.push_back(*in);
}

void Telemetry::Job::End(size_t index, ls_record record, int64_t at) {
  Rank& rank = ranks_[index];
  ls_op_body& op = record.body.op;
  if (op.number == 0) ls_op_set_alone(&record, at - record.time_ns);  // it is waited for at once
  ls_op_set_duration(&record, at - record.time_ns);
  record.time_ns = at;
  op.state = LS_OP_COMPLETED;
  rank.ended.push_back(record);
  rank.now = std::max(rank.now, at);
  if (op.number != 0) rank.left = at;
}

void Telemetry::Job::Tell(const Group& group, const Edge& edge, int64_t at) {
  const auto tell = [&](size_t own, size_t peer, uint8_t direction, int64_t waited, int64_t credit) {
    const size_t index = group.members[own];
    Rank& rank = ranks_[index];
    ls_record record{};
    record.kind = LS_RECORD_TRANSFER;
    record.time_ns = at;
    record.delta_shift = ls_delta_shift(std::max(waited, std::max<int64_t>(credit, 0)));
    record.body.transfer = {.bytes = edge.bytes,
                            .communicator = IndexIn(rank, group.kind),
                            .number = rank.launched[group.kind],
                            .rank = static_cast<uint32_t>(index),
                            .peer = static_cast<int32_t>(peer),
                            .count = edge.count,
                            .waited = ls_delta(waited, record.delta_shift),
                            .first = direction == LS_RECEIVE ? ls_delta(edge.first_ns, record.delta_shift) : 0,
                            .own = 0,
                            .credit = credit < 0 ? LS_UNKNOWN : ls_delta(credit, record.delta_shift),
                            .channel = static_cast<uint16_t>(edge.port),
                            .direction = direction,
                            .port = static_cast<uint8_t>(edge.port)};
    rank.ended.push_back(record);
  };
  tell(edge.from, edge.to, LS_SEND, edge.wire_ns, edge.credit_ns);
  tell(edge.to, edge.from, LS_RECEIVE, edge.first_ns, -1);
}

// What a proxy of the sender tells of a send outside of collectives.
void Telemetry::Job::TellAlone(size_t from, int peer, int port, double wire_ns, int64_t at) {
  Rank& rank = ranks_[from];
  const double bytes = static_cast<double>(shape_.activations.value) / shape_.ports;
  ls_record record{};
  record.kind = LS_RECORD_TRANSFER;
  record.time_ns = at;
  record.delta_shift = ls_delta_shift(Rounded(wire_ns));
  record.body.transfer = {.bytes = static_cast<uint64_t>(bytes),
                          .communicator = IndexIn(rank, kPipeline),
                          .number = 0,
                          .rank = static_cast<uint32_t>(from),
                          .peer = peer,
                          .count = static_cast<uint32_t>(std::max(1.0, std::ceil(bytes / kChunk))),
                          .waited = ls_delta(Rounded(wire_ns), record.delta_shift),
                          .first = 0,
                          .own = 0,
                          .credit = 0,
                          .channel = static_cast<uint16_t>(port),
                          .direction = LS_SEND,
                          .port = static_cast<uint8_t>(port)};
  rank.ended.push_back(record);
}

// ---- from rank to rank ----

double Telemetry::Job::FactorOf(size_t from, size_t to, int port) {
  double factor = 1;
  for (size_t i = 0; i < faults_.size(); ++i) {
    const TelemetryFault& fault = faults_[i];
    if (fault.port >= 0 && fault.port != port) continue;
    const auto rank = static_cast<size_t>(fault.rank), peer = static_cast<size_t>(fault.peer);
    const bool leaves = rank <= from && from <= peer, comes = rank <= to && to <= peer;  // what a block is
    const bool hit =
        (fault.kind == FaultKind::kSlowSender && rank == from) ||
        (fault.kind == FaultKind::kSlowReceiver && rank == to) ||
        (fault.kind == FaultKind::kSlowBlock && leaves != comes) ||
        (fault.kind == FaultKind::kSlowBlockOut && leaves && !comes) ||
        (fault.kind == FaultKind::kSlowBlockIn && comes && !leaves) ||
        (fault.kind == FaultKind::kSlowLink && ((rank == from && peer == to) || (rank == to && peer == from)));
    if (!hit || !fault.IsOn(SinceBegin(ranks_[from].now))) continue;
    factor *= fault.factor;
    met_[i] = true;
  }
  return factor;
}

void Telemetry::Job::Receive(size_t index, const Compute& compute) {
  Rank& rank = ranks_[index];
  if (rank.stuck) return;
  const auto place = static_cast<size_t>(rank.place[kPipeline]) + (compute.forward ? size_t(-1) : 1);
  const size_t from = GroupOf(index, kPipeline).members[place];
  const ls_record record = LaunchTransfer(index, from, LS_RECEIVE);
  const int64_t sent = ranks_[from].sent[compute.forward][static_cast<size_t>(compute.microbatch)];
  if (sent < 0) return Stick(index, &record);
  const double bytes = static_cast<double>(shape_.activations.value);
  double passage = bytes / shape_.host_bytes_per_s * 1e9;
  std::vector<double> wire;  // by port, as long as its share takes
  if (rank.host != ranks_[from].host) {
    for (int port = 0; port < shape_.ports; ++port)
      wire.push_back(bytes / shape_.ports / shape_.port_bytes_per_s * 1e9 * FactorOf(from, index, port));
    passage = *std::ranges::max_element(wire);
  }
  passage += kLatencyNs * chance_.Spread(kLatencySpread);
  const int64_t came = rank.now;
  End(index, record, std::max(came, sent + Rounded(passage)));
  for (size_t port = 0; port < wire.size(); ++port)
    TellAlone(from, rank.place[kPipeline], static_cast<int>(port), wire[port] * chance_.Spread(kWireSpread), rank.now);
  if (rank.left != 0) rank.left += rank.now - came;
}

void Telemetry::Job::Send(size_t index, const Compute& compute) {
  Rank& rank = ranks_[index];
  if (rank.stuck) return;
  const auto place = static_cast<size_t>(rank.place[kPipeline]) + (compute.forward ? 1 : size_t(-1));
  const ls_record record = LaunchTransfer(index, GroupOf(index, kPipeline).members[place], LS_SEND);
  rank.sent[compute.forward][static_cast<size_t>(compute.microbatch)] = rank.now;
  End(index, record, rank.now + Rounded(kHandOverNs));
}

// ---- collectives ----

Telemetry::Job::Edge Telemetry::Job::EdgeOf(const Group& group, std::pair<size_t, size_t> ends, int port, double bytes,
                                            int64_t ready, const std::vector<int64_t>& came) {
  const auto [from, to] = ends;
  const double factor = FactorOf(group.members[from], group.members[to], port);
  const double count = std::max(1.0, std::ceil(bytes / kChunk));
  const double message = bytes / count / shape_.port_bytes_per_s * 1e9 * factor;
  const double first = kLatencyNs * chance_.Spread(kLatencySpread) + message;
  return {from,
          to,
          port,
          static_cast<uint64_t>(bytes),
          static_cast<uint32_t>(count),
          std::max<int64_t>(0, came[to] - ready),
          Rounded(count * message * chance_.Spread(kWireSpread)),
          std::max(ready, came[to]) - came[to] + Rounded(first)};
}

// Those between hosts. In a ring each member sends to the next; in a tree to its parent and to its children, when it
// has heard of all below it, or of all.
std::vector<Telemetry::Job::Edge> Telemetry::Job::EdgesOf(const Group& group, Bytes bytes,
                                                          const std::vector<int64_t>& came) {
  const size_t n = group.members.size();
  const auto crosses = [&](size_t a, size_t b) {
    return ranks_[group.members[a]].host != ranks_[group.members[b]].host;
  };
  const double own = static_cast<double>(bytes.value) / shape_.ports;
  std::vector<Edge> edges;
  std::vector<int64_t> below = came;  // when all below have come
  for (size_t i = n; i-- > 1;) below[(i - 1) / 2] = std::max(below[(i - 1) / 2], below[i]);
  for (int port = 0; port < shape_.ports; ++port)
    for (size_t i = 0; i < n; ++i) {
      if (!IsTree(group)) {
        const size_t next = (i + 1) % n;
        if (crosses(i, next)) edges.push_back(EdgeOf(group, {i, next}, port, 2 * own, came[i], came));
      } else if (const size_t parent = (i - 1) / 2; i > 0 && crosses(i, parent)) {
        edges.push_back(EdgeOf(group, {i, parent}, port, own, below[i], came));
        edges.push_back(EdgeOf(group, {parent, i}, port, own, below[0], came));
      }
    }
  return edges;
}

void Telemetry::Job::Collective(const Group& group, uint8_t function, Bytes bytes) {
  if (Hinder(group, function, bytes)) return;
  std::vector<int64_t> came;
  came.reserve(group.members.size());
  for (const size_t rank : group.members) came.push_back(ranks_[rank].now);
  const std::vector<Edge> edges = EdgesOf(group, bytes, came);
  double took = static_cast<double>(bytes.value) / shape_.host_bytes_per_s * 1e9;
  for (const Edge& edge : edges) took = std::max(took, static_cast<double>(edge.wire_ns));
  took += kLatencyNs * static_cast<double>(std::bit_width(group.members.size())) * chance_.Spread(kLatencySpread);
  const int64_t last = *std::max_element(came.begin(), came.end());
  for (const size_t rank : group.members) {
    ls_record record = Launch(rank, group.kind, function, bytes);
    record.body.op.algorithm = IsTree(group) ? LS_ALGORITHM_OTHER : LS_ALGORITHM_RING;
    End(rank, record, last + Rounded(took + kLatencyNs * chance_.Uniform()));
  }
  for (const Edge& edge : edges) Tell(group, edge, last + Rounded(took));
}

// Faults that end all progress. True: nobody gets through.
bool Telemetry::Job::Hinder(const Group& group, uint8_t function, Bytes bytes) {
  for (size_t i = 0; i < group.members.size(); ++i) {
    const size_t rank = group.members[i];
    if (ranks_[rank].stuck || group.kind != kData) continue;
    if (Active(FaultKind::kLostMessage, rank) != nullptr) {
      LoseMessage(group, function, bytes, i);
      return true;
    }
    if (Active(FaultKind::kMismatch, rank) != nullptr) {
      const ls_record other = Launch(rank, group.kind, LS_BROADCAST, bytes);
      Stick(rank, &other);
    } else if (Active(FaultKind::kSkipped, rank) != nullptr && ranks_[rank].group[kWorld] >= 0) {
      const ls_record next = Launch(rank, kWorld, LS_ALL_REDUCE, Bytes{4});
      Stick(rank, &next);
    }
  }
  const bool stuck =
      std::any_of(group.members.begin(), group.members.end(), [&](size_t rank) { return ranks_[rank].stuck; });
  if (!stuck) return false;
  for (const size_t rank : group.members) {
    if (ranks_[rank].stuck) continue;
    const ls_record record = Launch(rank, group.kind, function, bytes);
    Stick(rank, &record);
  }
  return true;
}

// Who should have had it hears nothing more; each behind it in the ring has one message more than the one before it.
void Telemetry::Job::LoseMessage(const Group& group, uint8_t function, Bytes bytes, size_t from) {
  const size_t n = group.members.size();
  for (size_t behind = 0; behind < n; ++behind) {
    const size_t place = (from + 1 + behind) % n;
    if (ranks_[group.members[place]].stuck) continue;
    ls_record record = Launch(group.members[place], group.kind, function, bytes);
    record.body.op.messages = static_cast<uint32_t>(behind);
    record.body.op.waits_for = static_cast<int32_t>((place + n - 1) % n);
    record.body.op.awaits = LS_RECEIVE;
    record.body.op.algorithm = LS_ALGORITHM_RING;
    Stick(group.members[place], &record);
  }
}

// ---- what collectors would have left ----

std::vector<ls_communicator> Telemetry::Job::CommunicatorsOf(const Rank& rank) const {
  static constexpr std::array kNames = {"world",    "data parallel", "tensor parallel",
                                        "pipeline", "experts",       "context parallel"};
  std::vector<ls_communicator> all;
  for (size_t kind = 0; kind < kKinds; ++kind) {
    if (rank.group[kind] < 0) continue;
    const Group& group = groups_[static_cast<size_t>(rank.group[kind])];
    ls_communicator one{};
    one.id = group.id;
    one.key = group.id;
    one.launched = one.ended = rank.launched[kind];
    one.created_ns = 1 + static_cast<int64_t>(kind);
    one.rank = static_cast<uint32_t>(rank.place[kind]);
    one.size = static_cast<uint32_t>(group.members.size());
    snprintf(one.name, sizeof one.name, "%s", kNames[kind]);
    all.push_back(one);
  }
  return all;
}

std::vector<trace::TrailSnapshot> Telemetry::Job::Take() {
  std::vector<trace::TrailSnapshot> snapshots(ranks_.size());
  for (size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    trace::TrailSnapshot& snapshot = snapshots[i];
    snapshot.origin.rank = static_cast<uint32_t>(i);
    snapshot.origin.world = static_cast<uint32_t>(ranks_.size());
    snapshot.origin.pid = static_cast<uint32_t>(1000 + i);
    snprintf(snapshot.origin.host, sizeof snapshot.origin.host, "node%zu", rank.host);
    strcpy(snapshot.origin.source, "simulated");
    snapshot.wall_minus_boot_ns = kTelemetryBegin.value - kBegin;
    snapshot.taken_ns = end_;
    snapshot.alive = true;
    snapshot.stopped = rank.stopped;
    snapshot.communicators = CommunicatorsOf(rank);
    snapshot.ended = std::exchange(rank.ended, {});
    snapshot.under_way = rank.under_way;
    const int64_t offset = clock_offset_[rank.host];
    snapshot.taken_ns += offset;
    for (auto* records : {&snapshot.ended, &snapshot.under_way})
      for (ls_record& record : *records) record.time_ns += offset;
  }
  return snapshots;
}

}  // namespace lockstep::synth
