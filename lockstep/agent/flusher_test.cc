// The flusher with real buffers, a real directory, and a disk that can be told to hang.
#include "lockstep/agent/flusher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "lockstep/agent/points.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/checkpoint/test_slot.h"
#include "lockstep/client/commit.h"
#include "lockstep/cluster/layout.h"

namespace lockstep::agent {
namespace {

using checkpoint::Disk;
using checkpoint::Point;
using checkpoint::TestSlot;
using testing::ElementsAre;
using testing::HasSubstr;

// Every thread that comes through waits here while it is shut.
class Gate {
 public:
  void Shut() { Set(false); }
  void Open() { Set(true); }
  void Pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
  }

 private:
  void Set(bool open) {
    const std::lock_guard lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
};

class GatedDisk : public Disk {
 public:
  explicit GatedDisk(std::shared_ptr<Gate> gate) : gate_(std::move(gate)), disk_(checkpoint::PosixDisk()) {}
  absl::Status MakeDirectory(const std::string& path) override { return disk_->MakeDirectory(path); }
  absl::StatusOr<std::unique_ptr<checkpoint::DiskFile>> Create(const std::string& path) override {
    gate_->Pass();
    return disk_->Create(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override { return disk_->Rename(from, to); }
  absl::Status RemoveFile(const std::string& path) override { return disk_->RemoveFile(path); }
  absl::Status RemoveDirectory(const std::string& path) override { return disk_->RemoveDirectory(path); }
  absl::Status SyncDirectory(const std::string& path) override { return disk_->SyncDirectory(path); }
  bool IsDirectory(const std::string& path) override { return disk_->IsDirectory(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override { return disk_->List(path); }
  absl::StatusOr<uint64_t> Size(const std::string& path) override { return disk_->Size(path); }
  absl::Status Read(const std::string& path, uint64_t offset, std::span<std::byte> data) override {
    return disk_->Read(path, offset, data);
  }

 private:
  std::shared_ptr<Gate> gate_;  // shared with the test, which a hung thread may outlive
  std::unique_ptr<Disk> disk_;
};

constexpr int kRanks = 2;

void Fill(ls_slot& slot, int index, const RankBuffers& own, uint32_t seed) {
  const TestSlot content = checkpoint::MakeTestSlot(seed);
  const Fd& fd = own.slot[static_cast<size_t>(index)];
  ASSERT_EQ(pwrite(fd.get(), content.content.data(), content.content.size(), 0),
            static_cast<ssize_t>(content.content.size()));
  ls_slot_done(&slot, content.content.size(), content.meta_bytes, content.image().crc32c, 0);
}

// Every rank of the node saves the step, as ls_save does. Alike: replicas of one state.
void SaveAll(const BoardMap& board, const RanksBuffers& buffers, int64_t step, bool alike = false) {
  for (uint32_t rank = 0; rank < board->ranks; ++rank) {
    ls_rank_block& block = board->rank[rank];
    __atomic_store_n(&block.epoch, 1, __ATOMIC_RELEASE);
    const int slot = ls_slot_choose(board.get(), rank, 1, step);
    if (slot < 0) continue;
    ls_slot_open(&block.slot[slot], 1, step, board->world_size);
    ls_attempted(&block, step);
    Fill(block.slot[slot], slot, buffers.at(static_cast<int>(rank)),
         static_cast<uint32_t>(step) * 10 + (alike ? 0 : board->first_rank + rank));
  }
}

class Flushes : public testing::Test {
 protected:
  Flushes() : board_(BoardMap::Create(kRanks).value()) {
    spec_.checkpoint_dir = folder_.path();
    spec_.ranks = spec_.place.world_size = kRanks;
    spec_.checkpoint_interval = Seconds{600};
    const MakeDisk make_disk = [gate = gate_] { return std::make_unique<GatedDisk>(gate); };
    writer_ = std::make_unique<PartWriter>(spec_, clock_, make_disk);
    flusher_ = std::make_unique<Flusher>(
        spec_, clock_,
        Flusher::Listener{[this](const std::string& text) { notes_.push_back(text); },
                          [this](const control::Said& said) { Coordinate(std::get<control::FlushWanted>(said)); }},
        make_disk);
    EXPECT_EQ(flusher_->Open(), absl::OkStatus());
    for (int rank = 0; rank < kRanks; ++rank) buffers_[rank] = MakeBuffers(8192).value();
    board_->epoch = 1;
  }
  ~Flushes() override {
    gate_->Open();
    flusher_.reset();
    writer_.reset();
  }

  void Save(int64_t step) { SaveAll(board_, buffers_, step); }
  // What the coordinator and the agent do with the word, on one node.
  void Coordinate(const control::FlushWanted& wanted) {
    flusher_->Begun(ToPoint(wanted.point));
    writer_->Begin({wanted.point}, *board_, buffers_);
  }
  void Tick() {
    for (const control::PartWritten& part : writer_->Tick(*board_)) flusher_->Hear(part);
    flusher_->Tick(*board_);
  }
  void Due() {
    clock_.Advance(Seconds{601});
    Tick();
  }
  // Until the flush under way has landed.
  void Land() {
    while (flusher_->Observe()->flushing) {
      std::this_thread::yield();
      Tick();
    }
  }
  std::vector<int64_t> OnDisk() {
    std::vector<int64_t> steps;
    const std::unique_ptr<Disk> disk = checkpoint::PosixDisk();
    const checkpoint::Store store(*disk, spec_.checkpoint_dir);
    const std::vector<Point> points = store.List().value();
    for (const Point& point : points) {
      EXPECT_EQ(store.Verify(point), absl::OkStatus());
      steps.push_back(point.step.value());
    }
    return steps;
  }

  const TestFolder folder_;
  RunSpec spec_;
  FakeClock clock_;
  BoardMap board_;
  RanksBuffers buffers_;
  std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();  // shared with the disks
  std::vector<std::string> notes_;
  std::unique_ptr<PartWriter> writer_;
  std::unique_ptr<Flusher> flusher_;
};

TEST_F(Flushes, TheManifestSaysWhoIsAlikeAndOfWhichWorldItIs) {
  spec_.layout = cluster::LayoutJson({.dp = 3});  // as the job began
  const auto flushed = [&](int64_t step, bool alike) {
    SaveAll(board_, buffers_, step, alike);
    Due();
    Land();
    const std::unique_ptr<Disk> disk = checkpoint::PosixDisk();
    return checkpoint::Store(*disk, spec_.checkpoint_dir).ReadManifest({EpochId(1), StepId(step)}).value();
  };
  EXPECT_FALSE(AreReplicas(flushed(0, false)));
  const checkpoint::Manifest alike = flushed(1, true);
  EXPECT_TRUE(AreReplicas(alike));
  EXPECT_EQ(cluster::LayoutFromJson(alike.layout)->WorldSize(), kRanks);
  for (int rank = 0; rank < kRanks; ++rank) board_->rank[rank].other_worlds = LS_WORLDS_REPLICA;
  EXPECT_TRUE(AreReplicas(flushed(2, false))) << "by the script's word";
  for (int rank = 0; rank < kRanks; ++rank) board_->rank[rank].other_worlds = LS_WORLDS_CUT;
  const checkpoint::Manifest cut = flushed(3, false);
  EXPECT_TRUE(AreCutAnew(cut));
  EXPECT_FALSE(AreReplicas(cut));
}

TEST_F(Flushes, TheNewestAtEachIntervalAndNothingTwice) {
  Tick();
  EXPECT_FALSE(flusher_->Observe()->flushing) << "not due";
  Due();
  EXPECT_FALSE(flusher_->Observe()->flushing) << "nothing committed";
  Save(0);
  Save(1);
  Due();
  Land();
  Due();
  EXPECT_FALSE(flusher_->Observe()->flushing) << "it is there";
  EXPECT_THAT(OnDisk(), ElementsAre(1));
  for (int64_t step = 2; step < 6; ++step) {
    Save(step);
    Due();
    Land();
  }
  EXPECT_THAT(OnDisk(), ElementsAre(5, 4));
  EXPECT_EQ(flusher_->Observe()->flushes, 5);
  EXPECT_EQ(flusher_->Observe()->flushed->step, 5);
  EXPECT_THAT(notes_, ElementsAre());
  EXPECT_EQ(board_->pinned_epoch, 0u);
}

// A second job would write there, too.
TEST_F(Flushes, ADirectoryThatIsMadeAnewIsLockedAnew) {
  std::filesystem::remove_all(spec_.checkpoint_dir);
  std::filesystem::create_directory(spec_.checkpoint_dir);
  Save(1);
  Due();
  Land();
  EXPECT_TRUE(store::WriterLock::IsHeld(spec_.checkpoint_dir + "/.lock"));
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("was removed under the run")));
  EXPECT_THAT(OnDisk(), ElementsAre(1));
  std::filesystem::remove_all(spec_.checkpoint_dir);
  Save(2);
  Due();
  Land();
  Save(3);
  Due();
  Land();
  EXPECT_EQ(OnDisk().back(), 3) << "nobody made it, so it is made";
  EXPECT_TRUE(store::WriterLock::IsHeld(spec_.checkpoint_dir + "/.lock"));
}

TEST_F(Flushes, RanksTrainOnBesideAPinnedSlot) {
  Save(0);
  gate_->Shut();
  Due();
  for (int64_t step = 1; step < 5; ++step) Save(step);
  EXPECT_EQ(ls_newest_committed(board_.get(), 0).step, 1) << "beside the pinned one";
  EXPECT_TRUE(ls_committed(board_.get(), {1, 0}));
  gate_->Open();
  Land();
  EXPECT_THAT(OnDisk(), ElementsAre(0));
  Save(5);
  EXPECT_EQ(ls_newest_committed(board_.get(), 0).step, 5);
}

TEST_F(Flushes, AHungDiskIsGivenUpAndHoldsNothingUp) {
  Save(0);
  gate_->Shut();
  Due();
  clock_.Advance(Seconds{121});
  Tick();
  EXPECT_EQ(board_->pinned_epoch, 0u);
  EXPECT_EQ(flusher_->Observe()->failures, 1);
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("not done after 120 s; training goes on")));
  Save(1);
  Save(2);
  EXPECT_EQ(ls_newest_committed(board_.get(), 0).step, 2) << "all slots are free again";
  Due();
  Land();
  EXPECT_THAT(flusher_->Observe()->error, HasSubstr("the flush before still hangs"));
  gate_->Open();
  while (flusher_->Observe()->flushes == 0) {  // its thread ends some time
    Due();
    Land();
    std::this_thread::yield();
  }
  EXPECT_THAT(OnDisk(), ElementsAre(2)) << "what was given up is not kept";
  EXPECT_THAT(notes_.back(), HasSubstr("the checkpoint of step 2 is in"));
}

TEST_F(Flushes, AKeeperHasTheLimitForEachPart) {
  Save(0);
  gate_->Shut();
  const auto kept = std::make_shared<keep::Image>();
  kept->outline.world_size = kRanks;
  ASSERT_TRUE(writer_->Begin({{EpochId(1), 0}, {{1, kRanks, "b"}}}, *board_, buffers_, {kept}));
  clock_.Advance(Seconds{239});
  EXPECT_TRUE(writer_->Tick(*board_).empty());
  clock_.Advance(Seconds{2});
  const std::vector<control::PartWritten> parts = writer_->Tick(*board_);
  ASSERT_EQ(parts.size(), 2u);
  for (const control::PartWritten& part : parts) EXPECT_THAT(part.error, HasSubstr("not done after 240 s"));
}

TEST_F(Flushes, AHungDiskDoesNotHoldUpTheEnd) {
  Save(0);
  gate_->Shut();
  bool done = false;
  flusher_->FlushLast([&done] { done = true; });
  Tick();
  EXPECT_FALSE(done);
  writer_->GiveUp("given up at a second signal");
  flusher_->GiveUp("given up at a second signal");
  Tick();
  EXPECT_TRUE(done);
  flusher_.reset();  // returns, though the thread hangs
}

TEST_F(Flushes, TheLastOneIsWrittenBeforeTheEnd) {
  Save(3);
  bool done = false;
  flusher_->FlushLast([&done] { done = true; });
  while (!done) Tick();
  EXPECT_THAT(OnDisk(), ElementsAre(3));
}

TEST_F(Flushes, ADamagedSlotIsNeverWrittenAndTheCauseIsToldOnce) {
  Save(0);
  board_->rank[1].slot[0].crc32c ^= 1;
  for (int i = 0; i < 3; ++i) {
    Due();
    Land();
  }
  EXPECT_THAT(OnDisk(), ElementsAre());
  EXPECT_EQ(flusher_->Observe()->failures, 3);
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("rank 1: its memory has CRC")));
}

// One rank each; the test is the coordinator.
class TwoNodes : public testing::Test {
 protected:
  struct Node {
    Node(int index, const std::string& directory, const Clock& clock)
        : board(BoardMap::Create(1, index, 2).value()), spec(SpecOf(index, directory)), writer(spec, clock) {
      buffers[0] = MakeBuffers(8192).value();
      board->epoch = 1;
    }
    static RunSpec SpecOf(int index, const std::string& directory) {
      RunSpec spec;
      spec.node_name = "ab"[index];
      spec.checkpoint_dir = directory;
      spec.place = {index, index, 2, 2};
      return spec;
    }
    void Publish(int64_t step) { ls_publish(board.get(), {1, step}, -1, 0); }
    bool Write(int64_t step, const KeptImages& kept = {}) {
      control::WritePart command{{EpochId(1), step}};
      if (!kept.empty()) command.wards = {{1, 1, "b"}};
      return writer.Begin(command, *board, buffers, kept);
    }
    std::vector<control::PartWritten> AllWritten() {
      for (;;) {
        if (std::vector<control::PartWritten> parts = writer.Tick(*board); !parts.empty()) return parts;
        std::this_thread::yield();
      }
    }
    control::PartWritten Written() { return AllWritten().front(); }
    // What its keeper has of step 0.
    std::shared_ptr<const keep::Image> Kept() {
      const MappedBuffers mapped(1, buffers);
      const ls_slot& slot = board->rank[0].slot[0];
      const std::span<const std::byte> content = mapped.slots()[0].slot[0].first(slot.bytes);
      keep::Outline outline{
          spec.place.node, {EpochId(1), StepId(0)}, 2, {{slot.bytes, slot.meta_bytes, slot.crc32c}}, {}};
      keep::HashChunks(outline, std::array{content}, checkpoint::Always);
      auto image = std::make_shared<keep::Image>();
      image->places = keep::PlacesOf(outline.slots);
      const auto copy = std::make_shared<std::vector<std::byte>>(content.begin(), content.end());
      for (const keep::Place& place : image->places)
        image->pieces.push_back({copy, std::span(*copy).subspan(place.offset, place.bytes)});
      image->outline = std::move(outline);
      return image;
    }
    BoardMap board;
    RanksBuffers buffers;
    const RunSpec spec;
    PartWriter writer;
  };

  TwoNodes() {
    EXPECT_EQ(flusher_.Open(), absl::OkStatus());
    for (Node* node : {&a_, &b_}) {
      SaveAll(node->board, node->buffers, 0);
      node->Publish(0);
    }
    clock_.Advance(Seconds{601});
    flusher_.Tick(*a_.board);
    EXPECT_EQ(wanted_, 0);
    flusher_.Begun({EpochId(1), StepId(0)});
  }
  void Land() {
    while (flusher_.Observe()->flushing) {
      flusher_.Tick(*a_.board);
      std::this_thread::yield();
    }
  }
  std::vector<std::string> OnDisk() const {
    const std::unique_ptr<Disk> disk = checkpoint::PosixDisk();
    std::vector<std::string> names = disk->List(directory_.path()).value();
    std::erase(names, ".lock");
    return names;
  }

  const TestFolder directory_;
  FakeClock clock_;
  Node a_{0, directory_.path(), clock_}, b_{1, directory_.path(), clock_};
  int64_t wanted_ = -1;
  std::vector<std::string> notes_;
  Flusher flusher_{a_.spec,
                   clock_,
                   {[this](const std::string& text) { notes_.push_back(text); },
                    [this](const control::Said& said) { wanted_ = std::get<control::FlushWanted>(said).point.step; }}};
};

TEST_F(TwoNodes, PartsBecomeOneCheckpoint) {
  b_.Write(0);
  flusher_.Hear(b_.Written());
  EXPECT_TRUE(flusher_.Observe()->flushing) << "one is missing";
  a_.Write(0);
  EXPECT_EQ(a_.board->pinned_epoch, 1u);
  flusher_.Hear(a_.Written());
  EXPECT_EQ(a_.board->pinned_epoch, 0u) << "only the disk is at work";
  Land();
  EXPECT_THAT(OnDisk(), ElementsAre("step_000000000000_epoch_1"));
  const std::unique_ptr<Disk> disk = checkpoint::PosixDisk();
  const checkpoint::Store store(*disk, directory_.path());
  EXPECT_EQ(store.Verify({EpochId(1), StepId(0)}), absl::OkStatus());
  EXPECT_EQ(store.ReadManifest({EpochId(1), StepId(0)})->files.size(), 2u);
  EXPECT_THAT(notes_, ElementsAre());
}

TEST_F(TwoNodes, RanksThatWereFasterAreAskedAgainAtOnce) {
  a_.Write(0);
  flusher_.Hear(a_.Written());
  SaveAll(b_.board, b_.buffers, 1);
  b_.Publish(1);
  b_.Write(0);
  const control::PartWritten gone = b_.Written();
  EXPECT_TRUE(gone.gone);
  SaveAll(a_.board, a_.buffers, 1);
  a_.Publish(1);
  flusher_.Hear(gone);
  while (wanted_ != 1) {
    flusher_.Tick(*a_.board);
    std::this_thread::yield();
  }
  EXPECT_THAT(OnDisk(), ElementsAre()) << "what one node had written went";
  EXPECT_EQ(flusher_.Observe()->failures, 0);
}

TEST_F(TwoNodes, WhatMayBeLostIsAskedForAnew) {
  a_.Write(0);
  flusher_.Hear(a_.Written());
  wanted_ = -1;
  flusher_.Interrupted();  // what b wrote, or the order to do so, went with the coordinator
  while (wanted_ != 0) {
    flusher_.Tick(*a_.board);
    std::this_thread::yield();
  }
  flusher_.Begun({EpochId(1), StepId(0)});
  for (Node* node : {&a_, &b_}) {
    node->Write(0);
    flusher_.Hear(node->Written());
  }
  Land();
  EXPECT_THAT(OnDisk(), ElementsAre("step_000000000000_epoch_1"));
  EXPECT_THAT(notes_, ElementsAre());
}

TEST_F(TwoNodes, AWriterAtWorkOnAnotherOneSaysSo) {
  b_.Write(0);
  EXPECT_TRUE(b_.Write(0)) << "told twice";
  EXPECT_FALSE(b_.Write(1));
  EXPECT_FALSE(b_.Write(0, {nullptr})) << "and for another node";
  EXPECT_EQ(b_.Written().point.step, 0);
}

TEST_F(TwoNodes, OneNodesFailureIsThatOfAllAndNamesIt) {
  b_.board->rank[0].slot[0].crc32c ^= 1;
  for (Node* node : {&a_, &b_}) {
    node->Write(0);
    flusher_.Hear(node->Written());
  }
  Land();
  EXPECT_THAT(OnDisk(), ElementsAre());
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("this time: node b: rank 1: its memory has CRC")));
}

// Node b is lost, and a is its keeper.
TEST_F(TwoNodes, AKeeperWritesAnothersPart) {
  b_.Write(0);
  const std::string own = b_.Written().files;
  ASSERT_EQ(unlink((directory_.path() + "/.incoming_step_000000000000_epoch_1/rank_00001.safetensors").c_str()), 0);
  a_.Write(0, {b_.Kept()});
  const std::vector<control::PartWritten> parts = a_.AllWritten();
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[1].node, 1);
  EXPECT_EQ(parts[1].files, own) << "byte for byte";
  for (const control::PartWritten& part : parts) flusher_.Hear(part);
  Land();
  EXPECT_THAT(OnDisk(), ElementsAre("step_000000000000_epoch_1"));
  const std::unique_ptr<Disk> disk = checkpoint::PosixDisk();
  EXPECT_EQ(checkpoint::Store(*disk, directory_.path()).Verify({EpochId(1), StepId(0)}), absl::OkStatus());
}

TEST_F(TwoNodes, NothingIsSealedOfWhichAKeptPartIsDamaged) {
  const std::shared_ptr<const keep::Image> kept = b_.Kept();
  keep::Image damaged = *kept;
  damaged.outline.slots[0].crc32c ^= 1;
  a_.Write(0, {std::make_shared<const keep::Image>(damaged)});
  for (const control::PartWritten& part : a_.AllWritten()) flusher_.Hear(part);
  Land();
  EXPECT_THAT(OnDisk(), ElementsAre());
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("this time: node a: rank 1: its memory has CRC")));
}

TEST_F(TwoNodes, NothingIsSealedOfWhichAPartIsNotKept) {
  a_.Write(0, {nullptr});
  for (const control::PartWritten& part : a_.AllWritten()) flusher_.Hear(part);
  Land();
  EXPECT_THAT(OnDisk(), ElementsAre());
  EXPECT_THAT(notes_,
              ElementsAre(HasSubstr("node a: node b is out of reach, and its part of step 0 is not kept here")));
}

TEST_F(TwoNodes, ANodeThatDoesNotAnswerIsNotWaitedForForEver) {
  a_.Write(0);
  flusher_.Hear(a_.Written());
  clock_.Advance(Seconds{121});
  flusher_.Tick(*a_.board);
  EXPECT_FALSE(flusher_.Observe()->flushing);
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("not done after 120 s; training goes on")));
  b_.Write(0);
  flusher_.Hear(b_.Written());  // too late: means nothing
  EXPECT_FALSE(flusher_.Observe()->flushing);
}

TEST_F(TwoNodes, AtTheEndAKeeperIsWaitedForWhileItWritesTwoParts) {
  flusher_.FlushLast([] {});
  clock_.Advance(Seconds{239});
  flusher_.Tick(*a_.board);
  EXPECT_THAT(notes_, ElementsAre());
  clock_.Advance(Seconds{2});
  flusher_.Tick(*a_.board);
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("not done after 240 s")));
}

}  // namespace
}  // namespace lockstep::agent
