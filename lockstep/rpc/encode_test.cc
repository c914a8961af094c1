#include "lockstep/rpc/encode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace lockstep::rpc {
namespace {

using testing::HasSubstr;

template <typename Body>
Body Sent(const Body& body) {
  const FromAgent wire = Encode(control::Said(body));
  FromAgent arrived;
  EXPECT_TRUE(arrived.ParseFromString(wire.SerializeAsString()));
  const absl::StatusOr<control::Said> said = DecodeSaid(arrived);
  EXPECT_TRUE(said.ok()) << said.status();
  return std::get<Body>(*said);
}

template <typename Body>
Body SentEvent(const Body& body) {
  return std::get<Body>(Sent(control::EventBody(body)));
}

template <typename Body>
Body Ordered(const Body& body) {
  const std::optional<FromCoordinator> wire = Encode(control::Told(control::Command(body)));
  EXPECT_TRUE(wire.has_value());
  FromCoordinator arrived;
  EXPECT_TRUE(arrived.ParseFromString(wire->SerializeAsString()));
  const absl::StatusOr<control::Told> told = DecodeTold(arrived);
  EXPECT_TRUE(told.ok()) << told.status();
  return std::get<Body>(std::get<control::Command>(*told));
}

template <typename Body>
Body ToldOf(const Body& body) {
  const std::optional<FromCoordinator> wire = Encode(control::Told(body));
  EXPECT_TRUE(wire.has_value());
  return std::get<Body>(DecodeTold(*wire).value());
}

TEST(Encode, WhoJoinsSaysWhatItRuns) {
  EXPECT_EQ(Decode(Encode(control::Join{.entry = "train.py"}).join()).entry, "train.py");
}

TEST(Encode, WhoKeepsSaysWhetherItWritesForOthers) {
  EXPECT_TRUE(Sent(control::KeepsAt{"host", 7}).writes_parts);
  FromAgent of_before;
  of_before.mutable_keeps_at()->set_host("host");
  EXPECT_FALSE(std::get<control::KeepsAt>(*DecodeSaid(of_before)).writes_parts);
}

TEST(Encode, WhatGoesToDiskIsAgreedOn) {
  const control::CheckpointId point{EpochId(2), 7};
  EXPECT_EQ(Sent(control::FlushWanted{point}).point, point);
  const control::WritePart write{point, {{1, 2, "b"}, {3, 6, "d"}}};
  EXPECT_EQ(ToldOf(write), write);
  EXPECT_EQ(ToldOf(control::ChooseOnDisk{EpochId(3), point}), (control::ChooseOnDisk{EpochId(3), point}));
  EXPECT_EQ(Sent(control::RestoreFound{EpochId(3), {}, {}, point}).not_above, point);
  EXPECT_FALSE(Sent(control::RestoreFound{EpochId(3), {}, {}}).not_above);
  control::RestoreFound moved{EpochId(3), {}, {}};
  moved.held = {2, 3};
  moved.as = {1, 2};
  moved.unfit = "written by 3 ranks";
  EXPECT_EQ(Sent(moved).held, moved.held);
  EXPECT_EQ(Sent(moved).as, moved.as);
  EXPECT_EQ(Sent(moved).unfit, moved.unfit);
  const control::PartWritten part{point, 1, "disk full", true, "[]"};
  for (const control::PartWritten& arrived : {Sent(part), ToldOf(part)}) {
    EXPECT_EQ(arrived.point, point);
    EXPECT_EQ(arrived.node, 1);
    EXPECT_EQ(arrived.error, "disk full");
    EXPECT_TRUE(arrived.gone);
    EXPECT_EQ(arrived.files, "[]");
  }
  Sent(control::DiskDone{});
  ToldOf(control::DiskDone{});
  control::Observed observed;
  EXPECT_FALSE(Sent(observed).disk);
  observed.disk = control::OnDisk{"/data", point, Seconds{1}, 2, 3, Seconds{4}, true, "full"};
  EXPECT_FALSE(Sent(observed).disk->upload);
  observed.disk->upload = control::Uploaded{"s3://b/p", point, Seconds{5}, 6, 7, Seconds{8}, true, "dead"};
  const control::Uploaded upload = Sent(observed).disk->upload.value();
  EXPECT_EQ(upload.url, "s3://b/p");
  EXPECT_EQ(upload.newest, point);
  EXPECT_EQ((std::vector{upload.age.value, upload.took.value}), (std::vector{5.0, 8.0}));
  EXPECT_EQ((std::vector{upload.uploads, upload.failures}), (std::vector<int64_t>{6, 7}));
  EXPECT_TRUE(upload.uploading);
  EXPECT_EQ(upload.error, "dead");
  const control::OnDisk disk = Sent(observed).disk.value();
  EXPECT_EQ(disk.directory, "/data");
  EXPECT_EQ(disk.flushed, point);
  EXPECT_EQ(disk.age.value, 1);
  EXPECT_EQ(disk.flushes, 2);
  EXPECT_EQ(disk.failures, 3);
  EXPECT_EQ(disk.took.value, 4);
  EXPECT_TRUE(disk.flushing);
  EXPECT_EQ(disk.error, "full");
}

TEST(Encode, TrailsArriveWhole) {
  trace::TrailSnapshot trail;
  trail.origin.rank = 7;
  std::memcpy(trail.origin.host, "node-b", 7);
  trail.wall_minus_boot_ns = -5;
  trail.taken_ns = 6;
  trail.alive = trail.stopped = true;
  trail.communicators.resize(2);
  trail.communicators[1].id = 77;
  ls_record record{};
  record.kind = LS_RECORD_OP;
  record.body.op.bytes = 1 << 20;
  trail.ended = {record, record, record};
  trail.under_way = {record};
  trail.missed = 8;
  trail.no_op = 9;
  trail.libraries = 3;
  trail.told_one_of = {8, 1};
  trail.long_ns = 5;
  trail.long_told_one_of = {2, 1};
  trail.step_ends_ns = {100, 200};
  trail.step_ns = 90;
  const control::CommunicationSeen seen = Sent(control::CommunicationSeen{EpochId(3), {trail, trail}});
  EXPECT_EQ(seen.epoch, EpochId(3));
  ASSERT_EQ(seen.trails.size(), 2u);
  const trace::TrailSnapshot& arrived = seen.trails[1];
  EXPECT_EQ(arrived.origin.rank, 7u);
  EXPECT_EQ(arrived.host(), "node-b");
  EXPECT_EQ(arrived.wall_minus_boot_ns, -5);
  EXPECT_EQ(arrived.taken_ns, 6);
  EXPECT_TRUE(arrived.alive && arrived.stopped);
  ASSERT_EQ(arrived.communicators.size(), 2u);
  EXPECT_EQ(arrived.communicators[1].id, 77u);
  ASSERT_EQ(arrived.ended.size(), 3u);
  EXPECT_EQ(arrived.ended[2].body.op.bytes, 1u << 20);
  EXPECT_EQ(arrived.under_way.size(), 1u);
  EXPECT_EQ(arrived.missed, 8u);
  EXPECT_EQ(arrived.no_op, 9u);
  EXPECT_EQ(arrived.libraries, 3u);
  EXPECT_EQ(arrived.told_one_of, trail.told_one_of);
  EXPECT_EQ(arrived.long_ns, trail.long_ns);
  EXPECT_EQ(arrived.long_told_one_of, trail.long_told_one_of);
  EXPECT_EQ(arrived.step_ends_ns, trail.step_ends_ns);
  EXPECT_EQ(arrived.step_ns, trail.step_ns);

  FromAgent wire = Encode(control::CommunicationSeen{EpochId(3), {trail}});
  wire.mutable_communication_seen()->mutable_trails(0)->set_origin("of another version");
  EXPECT_FALSE(DecodeSaid(wire).ok());
}

TEST(Encode, SamplesArriveWhole) {
  detect::RankSample rank{RankId(7), {5}, detect::ProcState::kStopped, true, true, {6}, 1, 2, 3, 4, {8}, 12, {13}, true,
                          true,      true};
  detect::StackSample stack{RankId(7), {9},           detect::InCollective::kNo, true, "f.py:1 in f",
                            10,        "f (libf.so)", detect::CodeKind::kOther};
  const std::vector<control::BadLoss> losses = {{RankId(7), 3, 4, 5, EpochId(2)}};
  const control::Samples samples = Sent(control::Samples{EpochId(3), {rank}, {stack}, {11, {12}}, losses});
  EXPECT_EQ(samples.losses, losses);
  EXPECT_EQ(samples.epoch, EpochId(3));
  EXPECT_EQ(samples.ranks, std::vector{rank});
  EXPECT_EQ(samples.stacks, std::vector{stack});
  EXPECT_EQ(samples.progress.step, 11);
  EXPECT_EQ(samples.progress.step_end, Nanos{12});
}

TEST(Encode, OfAnOlderVersionAllRanksHaveJoinedIfOneHas) {
  control::Samples two{EpochId(3), std::vector<detect::RankSample>(2), {}, {}};
  two.ranks[1].joined = true;
  FromAgent wire = Encode(two);
  const auto joined = [&wire] {
    std::vector<bool> told;
    const absl::StatusOr<control::Said> said = DecodeSaid(wire);
    for (const detect::RankSample& rank : std::get<control::Samples>(*said).ranks) told.push_back(rank.joined);
    return told;
  };
  EXPECT_EQ(joined(), (std::vector{false, true}));
  wire.mutable_samples()->mutable_ranks(1)->set_joined(false);
  EXPECT_EQ(joined(), (std::vector{true, true}));
  wire.mutable_samples()->set_joined(false);
  EXPECT_EQ(joined(), (std::vector{false, false}));
}

TEST(Encode, StacksArriveWhole) {
  const control::StacksSeen seen = Sent(control::StacksSeen{EpochId(3), "rank 0 \xff"});
  EXPECT_EQ(seen.epoch, EpochId(3));
  EXPECT_EQ(seen.text, "rank 0 \xff");
}

TEST(Encode, TextsArriveThoughTheyAreNoUtf8) {
  const std::string odd = "r\xe9sum\xe9";
  const control::PartWritten part{{EpochId(2), 7}, 1, odd, true, "[]"};
  EXPECT_EQ((std::vector{Sent(part).error, ToldOf(part).error}), std::vector(2, odd));
  control::RestoreFound found{EpochId(2), {}, {odd}};
  found.unfit = odd;
  EXPECT_EQ((std::vector{Sent(found).rejected.at(0), Sent(found).unfit}), std::vector(2, odd));
  control::Observed observed;
  observed.disk.emplace().error = odd;
  observed.disk->upload.emplace().error = odd;
  observed.peers.emplace().error = odd;
  const control::Observed seen = Sent(observed);
  EXPECT_EQ((std::vector{seen.disk->error, seen.disk->upload->error, seen.peers->error}), std::vector(3, odd));
  detect::StackSample stack;
  stack.python = stack.native = odd;
  const control::Samples samples = Sent(control::Samples{EpochId(3), {}, {stack}, {}, {}});
  EXPECT_EQ((std::vector{samples.stacks.at(0).python, samples.stacks.at(0).native}), std::vector(2, odd));
  EXPECT_EQ(Sent(control::ReplayReady{7, "10.0.0.1", 4711, {}, "EPYC", 3, odd}).error, odd);
  const control::ReplayEnded ended = Sent(control::ReplayEnded{7, 3, odd, {9}, true, odd, {odd}, 12});
  EXPECT_EQ((std::vector{ended.trouble, ended.error, ended.reports.at(0)}), std::vector(3, odd));
  EXPECT_EQ(Ordered(control::Finish{1, odd}).verdict, odd);
}

TEST(Encode, FactsArriveWhole) {
  control::RankExited exited{EpochId(2), RankId(3), {1, 0}, {}, {4, {5}}, {6}, 7};
  exited.exception = control::ExceptionInfo{"ValueError", "bad byte \xff", "train.py:1 in f", true};
  const control::RankExited arrived = SentEvent(exited);
  EXPECT_EQ(arrived.rank, RankId(3));
  EXPECT_EQ(arrived.exited, Nanos{6});
  EXPECT_EQ(arrived.step, 7);
  EXPECT_EQ(arrived.exception->type, "ValueError");
  EXPECT_THAT(arrived.exception->message, HasSubstr("bad byte"));

  const control::Holding holding =
      Sent(control::Holding{EpochId(2), {{EpochId(1), 7}, {EpochId(2), 8}}, {{EpochId(2), 9}}, 9});
  EXPECT_EQ(holding.passed, 9);
  EXPECT_EQ(holding.coming.size(), 1u);
  EXPECT_EQ(holding.points, (std::vector<control::CheckpointId>{{EpochId(1), 7}, {EpochId(2), 8}}));
  const control::RestoreFound found = Sent(control::RestoreFound{EpochId(2), {{EpochId(1), 7}}, {"rank 1: CRC"}});
  EXPECT_EQ(found.points.size(), 1u);
  EXPECT_EQ(found.rejected, std::vector<std::string>{"rank 1: CRC"});
  EXPECT_FALSE(Sent(control::StoreAt{EpochId(2), "10.0.0.1", 4711, false}).hosted);

  control::Observed observed;
  observed.ranks = {{RankId(1), 99, "running", 5, Seconds{0.5}}};
  observed.committed = control::CheckpointId{EpochId(1), 4};
  observed.checkpoint_age = Seconds{0.5};
  observed.log_dropped = Bytes{17};
  observed.records_dropped = 3;
  observed.records_unwritten = 5;
  const control::Observed seen = Sent(observed);
  EXPECT_EQ(seen.ranks.front().pid, 99);
  EXPECT_EQ(seen.committed, observed.committed);
  EXPECT_EQ(seen.checkpoint_age, observed.checkpoint_age);
  EXPECT_EQ(Sent(control::Observed{}).checkpoint_age, std::nullopt);
  EXPECT_EQ(seen.log_dropped, Bytes{17});
  EXPECT_EQ(seen.records_dropped, 3);
  EXPECT_EQ(seen.records_unwritten, 5);
  EXPECT_TRUE(std::isnan(seen.loss));
}

TEST(Encode, OrdersArriveWhole) {
  const control::Spawn spawn = Ordered(
      control::Spawn{EpochId(2), 1, "10.0.0.1", 4711, false, {2, "/new", "abc", {{"LR", "1"}, {"TAG", ""}}, true}});
  EXPECT_EQ(spawn.store_host, "10.0.0.1");
  EXPECT_EQ(spawn.store_port, 4711);
  EXPECT_FALSE(spawn.store_hosted);
  EXPECT_EQ(spawn.version, (control::Version{2, "/new", "abc", {{"LR", "1"}, {"TAG", ""}}, true}));
  EXPECT_EQ(Ordered(control::KeepCode{spawn.version}).version, spawn.version);
  EXPECT_TRUE(Ordered(control::KillEpoch{EpochId(2), {}, 15, {}, true}).anew);
  EXPECT_EQ(Ordered(control::KillEpoch{EpochId(2), Seconds{1.5}, 10}).grace, Seconds{1.5});
  EXPECT_EQ(Ordered(control::PublishRestore{EpochId(2), {}}).point, std::nullopt);
  EXPECT_EQ(Ordered(control::PublishRestore{EpochId(2), control::CheckpointId{EpochId(1), 3}}).point->step, 3);
  EXPECT_EQ(Ordered(control::Finish{1, "why"}).verdict, "why");
  const control::Probe probe = Ordered(control::Probe{EpochId(2), control::Rung::kReplay, 3, Seconds{60}});
  EXPECT_EQ(probe.rung, control::Rung::kReplay);
  EXPECT_EQ(probe.at_most, Seconds{60});
  const std::vector<std::string> ring = {"a:1", "[::1]:2"};
  EXPECT_EQ(Ordered(control::Probe{EpochId(2), control::Rung::kDiagnose, 3, Seconds{60}, ring}).ring, ring);
  EXPECT_EQ(Ordered(control::Probe{EpochId(2), control::Rung::kReplay, 3, Seconds{60}, {}, 7}).search, 7u);
  const std::vector<control::CheckpointId> poisoned = {{EpochId(1), 9}};
  EXPECT_EQ(Ordered(control::ChooseRestore{EpochId(2), poisoned}).poisoned, poisoned);
  EXPECT_FALSE(Encode(control::Told(control::Command(control::Announce{}))).has_value()) << "the coordinator's own";
}

TEST(Encode, AReplayArrivesWhole) {
  const control::ReplayReady ready = Sent(control::ReplayReady{7, "10.0.0.1", 4711, {0, 2}, "EPYC", 3, "no port"});
  EXPECT_EQ(std::tuple(ready.search, ready.host, ready.port, ready.run), std::tuple(7u, "10.0.0.1", 4711, 3u));
  EXPECT_EQ(ready.opted_in, (std::vector{0, 2}));
  EXPECT_EQ(std::pair(ready.processor, ready.error), std::pair(std::string("EPYC"), std::string("no port")));
  control::ReplayEnded said{7, 3, "left with \xff", {9}, true, "no folder", {"{}\n", ""}, 12};
  const control::ReplayEnded ended = Sent(said);
  EXPECT_EQ(std::tuple(ended.search, ended.run, ended.troubled_at, ended.port), std::tuple(7u, 3u, Nanos{9}, 12));
  EXPECT_THAT(ended.trouble, HasSubstr("left with"));
  EXPECT_TRUE(ended.port_taken);
  EXPECT_EQ(ended.error, "no folder");
  EXPECT_EQ(ended.reports, said.reports);
  control::Said moved = said;
  Shift(moved, Nanos{100});
  EXPECT_EQ(std::get<control::ReplayEnded>(moved).troubled_at, Nanos{109});

  control::ReplayRun wanted{.search = 7, .run = 3, .incident = 2, .own_script = false, .version = {2, "/new", "abc"}};
  wanted.nodes = {4, 8};
  wanted.index = 1;
  wanted.first_rank = 2;
  wanted.ranks = 4;
  wanted.master_host = "10.0.0.1";
  wanted.master_port = 4711;
  wanted.deadline = Seconds{60};
  wanted.layers = 5;
  wanted.steps = 6;
  const control::ReplayRun run = ToldOf(wanted);
  EXPECT_EQ(std::tuple(run.search, run.run, run.incident, run.own_script), std::tuple(7u, 3u, 2, false));
  EXPECT_EQ(run.version, wanted.version);
  EXPECT_EQ(run.nodes, wanted.nodes);
  EXPECT_EQ(std::tuple(run.index, run.first_rank, run.ranks), std::tuple(1, 2, 4));
  EXPECT_EQ(std::tuple(run.master_host, run.master_port), std::tuple("10.0.0.1", 4711));
  EXPECT_EQ(std::tuple(run.deadline, run.layers, run.steps), std::tuple(Seconds{60}, 5, 6));
  const control::ReplayStop stop = ToldOf(control::ReplayStop{7, 3});
  EXPECT_EQ(std::pair(stop.search, stop.run), (std::pair<uint64_t, uint64_t>(7, 3)));
}

TEST(Encode, TimesMoveToTheOtherClock) {
  detect::RankSample rank;
  rank.at = Nanos{100};
  control::Said said = control::Samples{EpochId(1), {rank}, {}, {3, {90}}};
  Shift(said, Nanos{1000});
  const control::Samples& samples = std::get<control::Samples>(said);
  EXPECT_EQ(samples.ranks[0].at, Nanos{1100});
  EXPECT_EQ(samples.ranks[0].step_end, Nanos{0}) << "no step yet";
  EXPECT_EQ(samples.progress.step_end, Nanos{1090});
  control::Said exited = control::EventBody(control::RankExited{EpochId(1), RankId(0), {}, {}, {3, {90}}, {95}});
  Shift(exited, Nanos{-5});
  EXPECT_EQ(std::get<control::RankExited>(std::get<control::EventBody>(exited)).exited, Nanos{90});
}

TEST(Encode, WhatIsNotKnownIsNamed) {
  FromAgent newer;
  newer.mutable_event()->set_type("rank_danced");
  newer.mutable_event()->set_json("{}");
  EXPECT_THAT(Message(DecodeSaid(newer).status()), HasSubstr("rank_danced"));
  EXPECT_FALSE(DecodeSaid(FromAgent()).ok());
  EXPECT_FALSE(DecodeTold(FromCoordinator()).ok());
}

}  // namespace
}  // namespace lockstep::rpc
