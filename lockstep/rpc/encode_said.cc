// What an agent says.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"
#include "lockstep/rpc/encode_both.h"

namespace lockstep::rpc {
namespace {

// Text of foreign origin (an exception's message) may hold bytes that are not UTF-8.
void Put(const control::EventBody& body, FromAgent& wire) {
  wire.mutable_event()->set_type(control::TypeName(body));
  wire.mutable_event()->set_json(OneLine(control::ToJson(body)));
}

void Put(const control::Holding& holding, FromAgent& wire) {
  wire.mutable_holding()->set_epoch(holding.epoch.value());
  for (const control::CheckpointId& point : holding.points) Put(point, wire.mutable_holding()->add_points());
  for (const control::CheckpointId& point : holding.coming) Put(point, wire.mutable_holding()->add_coming());
  wire.mutable_holding()->set_passed(holding.passed);
}

void Put(const control::RestoreFound& found, FromAgent& wire) {
  RestoreFound* to = wire.mutable_restore_found();
  to->set_epoch(found.epoch.value());
  for (const control::CheckpointId& point : found.points) Put(point, to->add_points());
  for (const std::string& text : found.rejected) to->add_rejected(text);
  if (found.not_above) Put(*found.not_above, to->mutable_not_above());
  for (const control::KeptFor& kept : found.kept) {
    KeptFor* one = to->add_kept();
    one->set_node(kept.node);
    Put(kept.point, one->mutable_point());
  }
  if (found.fetched) Put(*found.fetched, to->mutable_fetched());
  to->set_held_node(found.held.node);
  to->set_held_nodes(found.held.nodes);
  to->set_as_node(found.as.node);
  to->set_as_nodes(found.as.nodes);
  to->set_unfit(found.unfit);
  for (const control::Replica& replica : found.replicas) {
    Replica* one = to->add_replicas();
    one->set_node(replica.node);
    Put(replica.point, one->mutable_point());
    one->set_low(replica.low);
    one->set_high(replica.high);
  }
}

void Put(const control::KeepsAt& where, FromAgent& wire) {
  wire.mutable_keeps_at()->set_host(where.host);
  wire.mutable_keeps_at()->set_port(where.port);
  wire.mutable_keeps_at()->set_ring_port(where.ring_port);
  wire.mutable_keeps_at()->set_writes_parts(where.writes_parts);
}

void Put(const control::PeerCopies& peers, PeerCopies* to) {
  if (peers.newest) Put(*peers.newest, to->mutable_newest());
  to->set_alone(peers.alone);
  to->set_kept_bytes(peers.kept.value);
  to->set_sent_bytes(peers.sent.value);
  to->set_in_gaps_bytes(peers.in_gaps.value);
  to->set_held_bytes(peers.held.value);
  to->set_error(peers.error);
}

void Put(const detect::RankSample& sample, RankSample* wire) {
  wire->set_rank(sample.rank.value());
  wire->set_at_ns(sample.at.value);
  wire->set_state(static_cast<int>(sample.state));
  wire->set_traced(sample.traced);
  wire->set_frozen(sample.frozen);
  wire->set_cpu_ns(sample.cpu.value);
  wire->set_io_bytes(sample.io_bytes);
  wire->set_faults(sample.faults);
  wire->set_switches(sample.switches);
  wire->set_step(sample.step);
  wire->set_step_end_ns(sample.step_end.value);
  wire->set_steps(sample.steps);
  wire->set_stepping_ns(sample.stepping.value);
  wire->set_in_loop(sample.in_loop);
  wire->set_finished(sample.finished);
  wire->set_joined(sample.joined);
}

void Put(const detect::StackSample& sample, StackSample* wire) {
  wire->set_rank(sample.rank.value());
  wire->set_at_ns(sample.at.value);
  wire->set_in_collective(static_cast<int>(sample.in_collective));
  wire->set_waits_forever(sample.waits_forever);
  wire->set_python(sample.python);
  wire->set_signature(sample.signature);
  wire->set_native(sample.native);
  wire->set_code(static_cast<int>(sample.code));
}

void Put(const control::Samples& samples, FromAgent& wire) {
  Samples* to = wire.mutable_samples();
  to->set_epoch(samples.epoch.value());
  for (const detect::RankSample& sample : samples.ranks) Put(sample, to->add_ranks());
  for (const detect::StackSample& sample : samples.stacks) Put(sample, to->add_stacks());
  to->mutable_progress()->set_step(samples.progress.step);
  to->mutable_progress()->set_step_end_ns(samples.progress.step_end.value);
  to->set_joined(std::ranges::any_of(samples.ranks, &detect::RankSample::joined));
  for (const control::BadLoss& loss : samples.losses) {
    BadLoss* one = to->add_losses();
    one->set_rank(loss.rank.value());
    one->set_from(loss.from);
    one->set_seen_since(loss.seen_since);
    one->set_step(loss.step);
    one->set_epoch(loss.epoch.value());
  }
}

template <typename Plain>
std::string BytesOf(const std::vector<Plain>& all) {
  return {reinterpret_cast<const char*>(all.data()), all.size() * sizeof(Plain)};
}

void Put(const control::StacksSeen& seen, FromAgent& wire) {
  wire.mutable_stacks_seen()->set_epoch(seen.epoch.value());
  wire.mutable_stacks_seen()->set_text(seen.text);
}

void Put(const control::CommunicationSeen& seen, FromAgent& wire) {
  wire.mutable_communication_seen()->set_epoch(seen.epoch.value());
  for (const trace::TrailSnapshot& trail : seen.trails) {
    Trail* to = wire.mutable_communication_seen()->add_trails();
    to->set_origin(&trail.origin, sizeof trail.origin);
    to->set_wall_minus_boot_ns(trail.wall_minus_boot_ns);
    to->set_taken_ns(trail.taken_ns);
    to->set_alive(trail.alive);
    to->set_stopped(trail.stopped);
    to->set_communicators(BytesOf(trail.communicators));
    to->set_ended(BytesOf(trail.ended));
    to->set_under_way(BytesOf(trail.under_way));
    to->set_no_place(trail.no_place);
    to->set_no_communicator(trail.no_communicator);
    to->set_no_peer(trail.no_peer);
    to->set_no_cell(trail.no_cell);
    to->set_missed(trail.missed);
    to->set_no_op(trail.no_op);
    to->set_libraries(trail.libraries);
    for (const uint32_t one_of : trail.told_one_of) to->add_told_one_of(one_of);
    to->set_long_ns(trail.long_ns);
    for (const uint32_t one_of : trail.long_told_one_of) to->add_long_told_one_of(one_of);
    for (const int64_t end_ns : trail.step_ends_ns) to->add_step_ends_ns(end_ns);
    to->set_step_ns(trail.step_ns);
  }
}

void Put(const control::StoreAt& store, FromAgent& wire) {
  StoreAt* to = wire.mutable_store_at();
  to->set_epoch(store.epoch.value());
  to->set_host(store.host);
  to->set_port(store.port);
  to->set_hosted(store.hosted);
}

void Put(const control::Uploaded& upload, Uploaded* to) {
  to->set_url(upload.url);
  if (upload.newest) Put(*upload.newest, to->mutable_newest());
  to->set_age_s(upload.age.value);
  to->set_uploads(upload.uploads);
  to->set_failures(upload.failures);
  to->set_took_s(upload.took.value);
  to->set_uploading(upload.uploading);
  to->set_error(upload.error);
}

void Put(const control::OnDisk& disk, OnDisk* to) {
  to->set_directory(disk.directory);
  if (disk.flushed) Put(*disk.flushed, to->mutable_flushed());
  to->set_age_s(disk.age.value);
  to->set_flushes(disk.flushes);
  to->set_failures(disk.failures);
  to->set_took_s(disk.took.value);
  to->set_flushing(disk.flushing);
  to->set_error(disk.error);
  if (disk.upload) Put(*disk.upload, to->mutable_upload());
}

void Put(const control::Observed& observed, FromAgent& wire) {
  Observed* to = wire.mutable_observed();
  for (const control::RankStatus& rank : observed.ranks) {
    RankStatus* one = to->add_ranks();
    one->set_rank(rank.rank.value());
    one->set_pid(rank.pid);
    one->set_state(rank.state);
    one->set_step(rank.step);
    one->set_step_time_s(rank.step_time.value);
  }
  to->set_loss(observed.loss);
  if (observed.committed) Put(*observed.committed, to->mutable_committed());
  if (observed.checkpoint_age) to->set_checkpoint_age_s(observed.checkpoint_age->value);
  to->set_checkpoints(observed.checkpoints);
  to->set_checkpoints_skipped(observed.checkpoints_skipped);
  to->set_checkpoints_torn(observed.checkpoints_torn);
  to->set_checkpoint_blocked_s(observed.checkpoint_blocked.value);
  to->set_records(observed.records);
  to->set_records_dropped(observed.records_dropped);
  to->set_records_unwritten(observed.records_unwritten);
  to->set_log_dropped_bytes(observed.log_dropped.value);
  to->set_console_dropped_bytes(observed.console_dropped.value);
  to->set_start_method(observed.start_method);
  if (observed.disk) Put(*observed.disk, to->mutable_disk());
  if (observed.peers) Put(*observed.peers, to->mutable_peers());
}

void Put(const control::FlushWanted& wanted, FromAgent& wire) {
  Put(wanted.point, wire.mutable_flush_wanted()->mutable_point());
}

void Put(const control::ReplayReady& ready, FromAgent& wire) {
  ReplayReady* to = wire.mutable_replay_ready();
  to->set_search(ready.search);
  to->set_host(ready.host);
  to->set_port(ready.port);
  to->mutable_opted_in()->Assign(ready.opted_in.begin(), ready.opted_in.end());
  to->set_processor(ready.processor);
  to->set_run(ready.run);
  to->set_error(ready.error);
}
control::ReplayReady Get(const ReplayReady& wire) {
  return {wire.search(),    wire.host(), wire.port(), {wire.opted_in().begin(), wire.opted_in().end()},
          wire.processor(), wire.run(),  wire.error()};
}

void Put(const control::ReplayEnded& ended, FromAgent& wire) {
  ReplayEnded* to = wire.mutable_replay_ended();
  to->set_search(ended.search);
  to->set_run(ended.run);
  to->set_trouble(ended.trouble);
  to->set_troubled_at_ns(ended.troubled_at.value);
  to->set_port_taken(ended.port_taken);
  to->set_error(ended.error);
  for (const std::string& report : ended.reports) to->add_reports(report);
  to->set_port(ended.port);
}
control::ReplayEnded Get(const ReplayEnded& wire) {
  return {wire.search(),
          wire.run(),
          wire.trouble(),
          {wire.troubled_at_ns()},
          wire.port_taken(),
          wire.error(),
          {wire.reports().begin(), wire.reports().end()},
          wire.port()};
}

void Put(const control::AllSaid& said, FromAgent& wire) { wire.mutable_all_said()->set_epoch(said.epoch.value()); }

template <typename Enum>
Enum Known(int value, Enum last, Enum otherwise) {
  return value >= 0 && value <= static_cast<int>(last) ? static_cast<Enum>(value) : otherwise;
}

detect::RankSample Get(const RankSample& wire) {
  detect::RankSample sample;
  sample.rank = RankId(wire.rank());
  sample.at = {wire.at_ns()};
  sample.state = Known(wire.state(), detect::ProcState::kGone, detect::ProcState::kRunning);
  sample.traced = wire.traced();
  sample.frozen = wire.frozen();
  sample.cpu = {wire.cpu_ns()};
  sample.io_bytes = wire.io_bytes();
  sample.faults = wire.faults();
  sample.switches = wire.switches();
  sample.step = wire.step();
  sample.step_end = {wire.step_end_ns()};
  sample.steps = wire.steps();
  sample.stepping = {wire.stepping_ns()};
  sample.in_loop = wire.in_loop();
  sample.finished = wire.finished();
  sample.joined = wire.joined();
  return sample;
}

detect::StackSample Get(const StackSample& wire) {
  detect::StackSample sample;
  sample.rank = RankId(wire.rank());
  sample.at = {wire.at_ns()};
  sample.in_collective = Known(wire.in_collective(), detect::InCollective::kNo, detect::InCollective::kUnknown);
  sample.waits_forever = wire.waits_forever();
  sample.python = wire.python();
  sample.signature = wire.signature();
  sample.native = wire.native();
  sample.code = Known(wire.code(), detect::CodeKind::kOther, detect::CodeKind::kUnknown);
  return sample;
}

control::Samples Get(const Samples& wire) {
  control::Samples samples{EpochId(wire.epoch()), {}, {}, {wire.progress().step(), {wire.progress().step_end_ns()}}};
  for (const RankSample& sample : wire.ranks()) samples.ranks.push_back(Get(sample));
  const bool tells_which = std::ranges::any_of(samples.ranks, &detect::RankSample::joined);
  for (detect::RankSample& sample : samples.ranks) sample.joined |= wire.joined() && !tells_which;
  for (const StackSample& sample : wire.stacks()) samples.stacks.push_back(Get(sample));
  for (const BadLoss& loss : wire.losses())
    samples.losses.push_back({RankId(loss.rank()), loss.from(), loss.seen_since(), loss.step(), EpochId(loss.epoch())});
  return samples;
}

// Whole ones only: what is left over is of another version.
template <typename Plain>
std::vector<Plain> PlainOf(const std::string& bytes) {
  std::vector<Plain> all(bytes.size() / sizeof(Plain));
  if (!all.empty()) std::memcpy(all.data(), bytes.data(), all.size() * sizeof(Plain));
  return all;
}

absl::StatusOr<control::Said> Get(const CommunicationSeen& wire) {
  control::CommunicationSeen seen{EpochId(wire.epoch()), {}};
  for (const Trail& from : wire.trails()) {
    trace::TrailSnapshot trail;
    if (from.origin().size() != sizeof trail.origin)
      return InvalidArgument("a trail whose origin has {} bytes; expected {}", from.origin().size(),
                             sizeof trail.origin);
    std::memcpy(&trail.origin, from.origin().data(), sizeof trail.origin);
    trail.wall_minus_boot_ns = from.wall_minus_boot_ns();
    trail.taken_ns = from.taken_ns();
    trail.alive = from.alive();
    trail.stopped = from.stopped();
    trail.communicators = PlainOf<ls_communicator>(from.communicators());
    trail.ended = PlainOf<ls_record>(from.ended());
    trail.under_way = PlainOf<ls_record>(from.under_way());
    trail.no_place = from.no_place();
    trail.no_communicator = from.no_communicator();
    trail.no_peer = from.no_peer();
    trail.no_cell = from.no_cell();
    trail.missed = from.missed();
    trail.no_op = from.no_op();
    trail.libraries = from.libraries();
    trail.told_one_of.assign(from.told_one_of().begin(), from.told_one_of().end());
    trail.long_ns = from.long_ns();
    trail.long_told_one_of.assign(from.long_told_one_of().begin(), from.long_told_one_of().end());
    trail.step_ends_ns.assign(from.step_ends_ns().begin(), from.step_ends_ns().end());
    trail.step_ns = from.step_ns();
    seen.trails.push_back(std::move(trail));
  }
  return seen;
}

control::Uploaded Get(const Uploaded& wire) {
  control::Uploaded upload;
  upload.url = wire.url();
  if (wire.has_newest()) upload.newest = Get(wire.newest());
  upload.age = Seconds{wire.age_s()};
  upload.uploads = wire.uploads();
  upload.failures = wire.failures();
  upload.took = Seconds{wire.took_s()};
  upload.uploading = wire.uploading();
  upload.error = wire.error();
  return upload;
}

control::OnDisk Get(const OnDisk& wire) {
  control::OnDisk disk;
  disk.directory = wire.directory();
  if (wire.has_flushed()) disk.flushed = Get(wire.flushed());
  disk.age = Seconds{wire.age_s()};
  disk.flushes = wire.flushes();
  disk.failures = wire.failures();
  disk.took = Seconds{wire.took_s()};
  disk.flushing = wire.flushing();
  disk.error = wire.error();
  if (wire.has_upload()) disk.upload = Get(wire.upload());
  return disk;
}

control::PeerCopies Get(const PeerCopies& wire) {
  control::PeerCopies peers;
  if (wire.has_newest()) peers.newest = Get(wire.newest());
  peers.alone = wire.alone();
  peers.kept = Bytes{wire.kept_bytes()};
  peers.sent = Bytes{wire.sent_bytes()};
  peers.in_gaps = Bytes{wire.in_gaps_bytes()};
  peers.held = Bytes{wire.held_bytes()};
  peers.error = wire.error();
  return peers;
}

control::RestoreFound Get(const RestoreFound& wire) {
  control::RestoreFound found{
      EpochId(wire.epoch()), Get(wire.points()), {wire.rejected().begin(), wire.rejected().end()}};
  if (wire.has_not_above()) found.not_above = Get(wire.not_above());
  for (const KeptFor& kept : wire.kept()) found.kept.push_back({kept.node(), Get(kept.point())});
  if (wire.has_fetched()) found.fetched = Get(wire.fetched());
  if (wire.held_nodes() > 0) found.held = {wire.held_node(), wire.held_nodes()};
  found.unfit = wire.unfit();
  if (wire.as_nodes() > 0) found.as = {wire.as_node(), wire.as_nodes()};
  for (const Replica& replica : wire.replicas())
    found.replicas.push_back({replica.node(), Get(replica.point()), replica.low(), replica.high()});
  return found;
}

control::Observed Get(const Observed& wire) {
  control::Observed observed;
  for (const RankStatus& rank : wire.ranks())
    observed.ranks.push_back({RankId(rank.rank()), rank.pid(), rank.state(), rank.step(), Seconds{rank.step_time_s()}});
  observed.loss = wire.loss();
  if (wire.has_committed()) observed.committed = Get(wire.committed());
  if (wire.has_checkpoint_age_s()) observed.checkpoint_age = Seconds{wire.checkpoint_age_s()};
  observed.checkpoints = wire.checkpoints();
  observed.checkpoints_skipped = wire.checkpoints_skipped();
  observed.checkpoints_torn = wire.checkpoints_torn();
  observed.checkpoint_blocked = Seconds{wire.checkpoint_blocked_s()};
  observed.records = wire.records();
  observed.records_dropped = wire.records_dropped();
  observed.records_unwritten = wire.records_unwritten();
  observed.log_dropped = Bytes{wire.log_dropped_bytes()};
  observed.console_dropped = Bytes{wire.console_dropped_bytes()};
  observed.start_method = wire.start_method();
  if (wire.has_disk()) observed.disk = Get(wire.disk());
  if (wire.has_peers()) observed.peers = Get(wire.peers());
  return observed;
}

void Move(Nanos& moment, Nanos offset) {
  if (moment.value != 0) moment = moment + offset;
}

}  // namespace

FromAgent Encode(const control::Join& join) {
  FromAgent wire;
  Join* to = wire.mutable_join();
  to->set_version(join.version);
  to->set_name(join.name);
  to->set_token(join.token);
  to->set_run(join.run);
  to->set_node_rank(join.node_rank);
  to->set_ranks(join.ranks);
  to->set_least_nodes(join.least_nodes);
  to->set_most_nodes(join.most_nodes);
  to->set_keeps_on_disk(join.keeps_on_disk);
  to->set_first_epoch(join.first_epoch);
  to->set_rdzv_id(join.rdzv_id);
  to->set_layout(join.layout);
  to->set_term(join.term);
  to->set_job(join.job);
  to->set_entry(join.entry);
  return wire;
}

control::Join Decode(const Join& wire) {
  return {wire.version(), wire.name(),        wire.token(),      wire.run(),           wire.node_rank(),
          wire.ranks(),   wire.least_nodes(), wire.most_nodes(), wire.keeps_on_disk(), wire.first_epoch(),
          wire.rdzv_id(), wire.layout(),      wire.term(),       wire.job(),           wire.entry()};
}

FromAgent Encode(const control::Said& said) {
  FromAgent wire;
  std::visit([&](const auto& body) { Put(body, wire); }, said);
  return wire;
}

absl::StatusOr<control::Said> DecodeSaid(const FromAgent& wire) {
  switch (wire.said_case()) {
    case FromAgent::kEvent: {
      const Json json = ParseJson(wire.event().json());
      if (json.is_discarded()) return DataLoss("event {}: its body is not JSON", wire.event().type());
      LS_ASSIGN_OR_RETURN(control::EventBody body, control::EventFromJson(wire.event().type(), json));
      return control::Said(std::move(body));
    }
    case FromAgent::kHolding:
      return control::Holding{EpochId(wire.holding().epoch()), Get(wire.holding().points()),
                              Get(wire.holding().coming()), wire.holding().passed()};
    case FromAgent::kRestoreFound:
      return Get(wire.restore_found());
    case FromAgent::kKeepsAt:
      return control::KeepsAt{wire.keeps_at().host(), wire.keeps_at().port(), wire.keeps_at().ring_port(),
                              wire.keeps_at().writes_parts()};
    case FromAgent::kSamples:
      return Get(wire.samples());
    case FromAgent::kCommunicationSeen:
      return Get(wire.communication_seen());
    case FromAgent::kStacksSeen:
      return control::StacksSeen{EpochId(wire.stacks_seen().epoch()), wire.stacks_seen().text()};
    case FromAgent::kStoreAt: {
      const StoreAt& store = wire.store_at();
      return control::StoreAt{EpochId(store.epoch()), store.host(), store.port(), store.hosted()};
    }
    case FromAgent::kObserved:
      return Get(wire.observed());
    case FromAgent::kFlushWanted:
      return control::FlushWanted{Get(wire.flush_wanted().point())};
    case FromAgent::kPartWritten:
      return Get(wire.part_written());
    case FromAgent::kDiskDone:
      return control::DiskDone{};
    case FromAgent::kReplayReady:
      return Get(wire.replay_ready());
    case FromAgent::kReplayEnded:
      return Get(wire.replay_ended());
    case FromAgent::kAllSaid:
      return control::AllSaid{EpochId(wire.all_said().epoch())};
    default:
      return InvalidArgument("a message of kind {}, which this version does not know",
                             static_cast<int>(wire.said_case()));
  }
}

void Shift(control::Said& said, Nanos offset) {
  if (auto* samples = std::get_if<control::Samples>(&said)) {
    Move(samples->progress.step_end, offset);
    for (detect::RankSample& sample : samples->ranks) {
      Move(sample.at, offset);
      Move(sample.step_end, offset);
    }
    for (detect::StackSample& sample : samples->stacks) Move(sample.at, offset);
  }
  if (auto* ended = std::get_if<control::ReplayEnded>(&said)) Move(ended->troubled_at, offset);
  auto* event = std::get_if<control::EventBody>(&said);
  if (event == nullptr) return;
  std::visit(
      [&](auto& body) {
        if constexpr (requires { body.progress; }) Move(body.progress.step_end, offset);
        if constexpr (requires { body.begin; }) Move(body.begin, offset);
        if constexpr (requires { body.exited; }) Move(body.exited, offset);
        if constexpr (requires { body.finding; }) Move(body.finding.since, offset);
        if constexpr (requires { body.since; }) Move(body.since, offset);
        if constexpr (requires { body.findings; }) {
          for (incident::Finding& finding : body.findings) Move(finding.since, offset);
        }
      },
      *event);
}

}  // namespace lockstep::rpc
