// What an agent is told.
#include "lockstep/rpc/encode_both.h"

namespace lockstep::rpc {
namespace {

using Out = FromCoordinator;

void Put(const control::Version& version, Version* to) {
  to->set_number(version.number);
  to->set_code(version.code);
  to->set_hash(version.hash);
  to->mutable_env()->insert(version.env.begin(), version.env.end());
  to->set_kept(version.kept);
}
control::Version Get(const Version& version) {
  return {
      version.number(), version.code(), version.hash(), {version.env().begin(), version.env().end()}, version.kept()};
}
void Put(const control::Spawn& command, Out& wire) {
  Spawn* to = wire.mutable_spawn();
  to->set_epoch(command.epoch.value());
  to->set_restart_count(command.restart_count);
  to->set_store_host(command.store_host);
  to->set_store_port(command.store_port);
  to->set_store_hosted(command.store_hosted);
  Put(command.version, to->mutable_version());
}
void Put(const control::KeepStacks& command, Out& wire) {
  wire.mutable_keep_stacks()->set_epoch(command.epoch.value());
  wire.mutable_keep_stacks()->set_incident(command.incident);
}
void Put(const control::KillEpoch& command, Out& wire) {
  wire.mutable_kill_epoch()->set_epoch(command.epoch.value());
  wire.mutable_kill_epoch()->set_grace_s(command.grace.value);
  wire.mutable_kill_epoch()->set_signal(command.signal);
  for (const RankId rank : command.suspects) wire.mutable_kill_epoch()->add_suspects(rank.value());
  wire.mutable_kill_epoch()->set_anew(command.anew);
}
void Put(const control::ChooseRestore& command, Out& wire) {
  wire.mutable_choose_restore()->set_next(command.next.value());
  for (const control::CheckpointId& point : command.poisoned) Put(point, wire.mutable_choose_restore()->add_poisoned());
}
void Put(const control::PublishRestore& command, Out& wire) {
  wire.mutable_publish_restore()->set_epoch(command.epoch.value());
  if (command.point) Put(*command.point, wire.mutable_publish_restore()->mutable_point());
}
void Put(const control::Finish& command, Out& wire) {
  wire.mutable_finish()->set_exit_code(command.exit_code);
  wire.mutable_finish()->set_verdict(command.verdict);
}
void Put(const control::Commit& commit, Out& wire) {
  wire.mutable_commit()->set_epoch(commit.epoch.value());
  Put(commit.point, wire.mutable_commit()->mutable_point());
  wire.mutable_commit()->set_dead_step(commit.dead_step);
  wire.mutable_commit()->set_meet_from(commit.meet_from);
}
void Put(const control::LookClosely& look, Out& wire) {
  wire.mutable_look_closely()->set_epoch(look.epoch.value());
  wire.mutable_look_closely()->set_closely(look.closely);
}
void Put(const control::HostStore& wish, Out& wire) {
  wire.mutable_host_store()->set_epoch(wish.epoch.value());
  wire.mutable_host_store()->set_restart_count(wish.restart_count);
}
void Put(const control::ChooseOnDisk& question, Out& wire) {
  wire.mutable_choose_on_disk()->set_next(question.next.value());
  Put(question.not_above, wire.mutable_choose_on_disk()->mutable_not_above());
}
void Put(const control::KeepWith& keeper, Out& wire) {
  wire.mutable_keep_with()->set_name(keeper.name);
  wire.mutable_keep_with()->set_host(keeper.host);
  wire.mutable_keep_with()->set_port(keeper.port);
}
void Put(const control::FetchKept& question, Out& wire) {
  wire.mutable_fetch_kept()->set_next(question.next.value());
  Put(question.point, wire.mutable_fetch_kept()->mutable_point());
  wire.mutable_fetch_kept()->set_host(question.host);
  wire.mutable_fetch_kept()->set_port(question.port);
  wire.mutable_fetch_kept()->set_part(question.part + 1);
}
void Put(const control::WritePart& command, Out& wire) {
  WritePart* to = wire.mutable_write_part();
  Put(command.point, to->mutable_point());
  for (const control::Ward& ward : command.wards) {
    WritePart::Ward* added = to->add_wards();
    added->set_node(ward.node);
    added->set_first_rank(ward.first_rank);
    added->set_name(ward.name);
  }
}
void Put(const control::Probe& command, Out& wire) {
  Probe* to = wire.mutable_probe();
  to->set_epoch(command.epoch.value());
  to->set_rung(control::RungName(command.rung));
  to->set_incident(command.incident);
  to->set_at_most_s(command.at_most.value);
  to->mutable_ring()->Assign(command.ring.begin(), command.ring.end());
  to->set_search(command.search);
}
void Put(const control::ReplayRun& run, Out& wire) {
  ReplayRun* to = wire.mutable_replay_run();
  to->set_search(run.search);
  to->set_run(run.run);
  to->set_incident(run.incident);
  to->set_own_script(run.own_script);
  Put(run.version, to->mutable_version());
  to->mutable_nodes()->Assign(run.nodes.begin(), run.nodes.end());
  to->set_index(run.index);
  to->set_first_rank(run.first_rank);
  to->set_ranks(run.ranks);
  to->set_master_host(run.master_host);
  to->set_master_port(run.master_port);
  to->set_deadline_s(run.deadline.value);
  to->set_layers(run.layers);
  to->set_steps(run.steps);
}
control::WritePart Get(const WritePart& wire) {
  control::WritePart command{Get(wire.point())};
  for (const WritePart::Ward& ward : wire.wards())
    command.wards.push_back({ward.node(), ward.first_rank(), ward.name()});
  return command;
}
control::ReplayRun Get(const ReplayRun& wire) {
  return {wire.search(),      wire.run(),          wire.incident(),
          wire.own_script(),  Get(wire.version()), {wire.nodes().begin(), wire.nodes().end()},
          wire.index(),       wire.first_rank(),   wire.ranks(),
          wire.master_host(), wire.master_port(),  Seconds{wire.deadline_s()},
          wire.layers(),      wire.steps()};
}
void Put(const control::ReplayStop& stop, Out& wire) {
  wire.mutable_replay_stop()->set_search(stop.search);
  wire.mutable_replay_stop()->set_run(stop.run);
}
void Put(const control::KeepCode& command, Out& wire) {
  Put(command.version, wire.mutable_keep_code()->mutable_version());
}
void Put(const control::WaitForStop&, Out&) {}
void Put(const control::AskForNodes&, Out&) {}
void Put(const control::Announce&, Out&) {}
void Put(const control::Seat&, Out&) {}
void Put(const control::Vacate&, Out&) {}
void Put(const control::Resize&, Out&) {}
void Put(const control::WaitForCulprit&, Out&) {}
template <std::same_as<control::Command> C>  // itself: a command without a Put() of its own does not compile
void Put(const C& command, Out& wire) {
  std::visit([&](const auto& body) { Put(body, wire); }, command);
}

}  // namespace

std::optional<FromCoordinator> Encode(const control::Told& told) {
  FromCoordinator wire;
  std::visit([&](const auto& body) { Put(body, wire); }, told);
  if (wire.told_case() == FromCoordinator::TOLD_NOT_SET) return std::nullopt;
  return wire;
}

absl::StatusOr<control::Told> DecodeTold(const FromCoordinator& wire) {
  using control::Command;
  using control::Told;
  switch (wire.told_case()) {
    case FromCoordinator::kSpawn: {
      const Spawn& spawn = wire.spawn();
      return Told(Command(control::Spawn{EpochId(spawn.epoch()), spawn.restart_count(), spawn.store_host(),
                                         spawn.store_port(), spawn.store_hosted(), Get(spawn.version())}));
    }
    case FromCoordinator::kKeepStacks:
      return Told(Command(control::KeepStacks{EpochId(wire.keep_stacks().epoch()), wire.keep_stacks().incident()}));
    case FromCoordinator::kKillEpoch: {
      const KillEpoch& kill = wire.kill_epoch();
      control::KillEpoch to{EpochId(kill.epoch()), Seconds{kill.grace_s()}, kill.signal()};
      for (const int rank : kill.suspects()) to.suspects.emplace_back(rank);
      to.anew = kill.anew();
      return Told(Command(to));
    }
    case FromCoordinator::kChooseRestore:
      return Told(Command(
          control::ChooseRestore{EpochId(wire.choose_restore().next()), Get(wire.choose_restore().poisoned())}));
    case FromCoordinator::kProbe: {
      const Probe& probe = wire.probe();
      const std::optional<control::Rung> rung = control::RungFromName(probe.rung());
      if (!rung) return InvalidArgument("a probe of an unknown kind, \"{}\"", probe.rung());
      return Told(Command(control::Probe{.epoch = EpochId(probe.epoch()),
                                         .rung = *rung,
                                         .incident = probe.incident(),
                                         .at_most{probe.at_most_s()},
                                         .ring{probe.ring().begin(), probe.ring().end()},
                                         .search = probe.search()}));
    }
    case FromCoordinator::kKeepCode:
      return Told(Command(control::KeepCode{Get(wire.keep_code().version())}));
    case FromCoordinator::kPublishRestore: {
      control::PublishRestore publish{EpochId(wire.publish_restore().epoch()), {}};
      if (wire.publish_restore().has_point()) publish.point = Get(wire.publish_restore().point());
      return Told(Command(publish));
    }
    case FromCoordinator::kFinish:
      return Told(Command(control::Finish{wire.finish().exit_code(), wire.finish().verdict()}));
    case FromCoordinator::kCommit:
      return Told(control::Commit{EpochId(wire.commit().epoch()), Get(wire.commit().point()), wire.commit().dead_step(),
                                  wire.commit().meet_from()});
    case FromCoordinator::kLookClosely:
      return Told(control::LookClosely{EpochId(wire.look_closely().epoch()), wire.look_closely().closely()});
    case FromCoordinator::kHostStore:
      return Told(control::HostStore{EpochId(wire.host_store().epoch()), wire.host_store().restart_count()});
    case FromCoordinator::kChooseOnDisk:
      return Told(control::ChooseOnDisk{EpochId(wire.choose_on_disk().next()), Get(wire.choose_on_disk().not_above())});
    case FromCoordinator::kKeepWith:
      return Told(control::KeepWith{wire.keep_with().name(), wire.keep_with().host(), wire.keep_with().port()});
    case FromCoordinator::kFetchKept: {
      const FetchKept& fetch = wire.fetch_kept();
      return Told(
          control::FetchKept{EpochId(fetch.next()), Get(fetch.point()), fetch.host(), fetch.port(), fetch.part() - 1});
    }
    case FromCoordinator::kWritePart:
      return Told(Get(wire.write_part()));
    case FromCoordinator::kPartWritten:
      return Told(Get(wire.part_written()));
    case FromCoordinator::kDiskDone:
      return Told(control::DiskDone{});
    case FromCoordinator::kReplayRun:
      return Told(Get(wire.replay_run()));
    case FromCoordinator::kReplayStop:
      return Told(control::ReplayStop{wire.replay_stop().search(), wire.replay_stop().run()});
    default:
      return InvalidArgument("a message of kind {}, which this version does not know",
                             static_cast<int>(wire.told_case()));
  }
}

FromCoordinator EncodeWelcome(const control::Place& place, const std::string& run, int64_t term) {
  FromCoordinator wire;
  Welcome* to = wire.mutable_welcome();
  to->set_run(run);
  to->set_node(place.node);
  to->set_first_rank(place.first_rank);
  to->set_world_size(place.world_size);
  to->set_nodes(place.nodes);
  to->set_term(term);
  return wire;
}

control::Place DecodePlace(const Welcome& wire) {
  return {wire.node(), wire.first_rank(), wire.world_size(), wire.nodes()};
}

}  // namespace lockstep::rpc
