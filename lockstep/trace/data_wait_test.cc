#include "lockstep/trace/data_wait.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "lockstep/trace/trails.h"

namespace lockstep::trace {
namespace {

constexpr int64_t kMs = 1'000'000;

// Rounding to the units of deltas allowed.
void ExpectAbout(int64_t expected, int64_t found) {
  EXPECT_GE(found, expected - 256);
  EXPECT_LE(found, expected + 256);
}

ls_record Record(const char* data_set, int64_t end_ns, DataParts parts, uint8_t busy = 100) {
  ls_record record{};
  record.kind = LS_RECORD_DATA;
  record.time_ns = end_ns;
  record.body.data.rank = 1;
  record.body.data.waits = 1;
  record.body.data.threads = 2;
  record.body.data.busy = busy;
  std::strncpy(record.body.data.data_set, data_set, sizeof record.body.data.data_set - 1);
  ls_data_set_parts(&record, {parts.gone_ns, parts.behind_ns, parts.read_ns, parts.decode_ns, parts.own_ns});
  return record;
}

std::string TextOf(std::initializer_list<ls_record> records) {
  DataSources sources;
  for (const ls_record& record : records) sources.Add(ToDataWait(record));
  return sources.Text();
}

TEST(DataSources, NameWhatWasWaitedForMost) {
  EXPECT_EQ("data set photos: decoding (2 of 2 threads busy)",
            TextOf({Record("photos", 0, {.read_ns = 4 * kMs, .decode_ns = 96 * kMs})}));
  EXPECT_EQ("data set photos: reading from storage 60 %, decoding 38 % (1 of 2 threads busy)",
            TextOf({Record("photos", 0, {.behind_ns = 2 * kMs, .read_ns = 60 * kMs, .decode_ns = 38 * kMs}, 50)}));
  EXPECT_EQ(
      "data set b: there was no service 67 %, the service was busy with other batches 33 % (2 of 2 threads busy)",
      TextOf({Record("a", 0, {.decode_ns = 5 * kMs}), Record("b", 0, {.gone_ns = 4 * kMs, .behind_ns = 2 * kMs})}));
}

TEST(DataSources, NameTheScriptsOwnFunctionsAndAnotherMachine) {
  EXPECT_EQ("data set photos: the script's own functions", TextOf({Record("photos", 0, {.own_ns = 9 * kMs})}));
  EXPECT_EQ("data set photos: the script's own functions 75 %, decoding 25 % (2 of 2 threads busy)",
            TextOf({Record("photos", 0, {.decode_ns = 3 * kMs, .own_ns = 9 * kMs})}));
  ls_record relayed = Record("photos", 0, {.read_ns = 9 * kMs}, 50);
  relayed.body.data.relayed = 1;
  EXPECT_EQ("data set photos: reading there, or the way from that machine (1 of 2 threads busy)", TextOf({relayed}));
}

TEST(DataSources, AWaitLongerThanADeltaHoldsKeepsItsParts) {
  constexpr int64_t kMinute = 60'000 * kMs;
  const DataWait wait = ToDataWait(Record("a", 0, {.gone_ns = 5 * kMinute, .decode_ns = kMinute}));
  ExpectAbout(5 * kMinute, wait.parts.gone_ns);
  ExpectAbout(kMinute, wait.parts.decode_ns);
}

TEST(SumWaits, KeepsEverySumOfADataSet) {
  std::vector<ls_record> records;
  for (int i = 0; i < 100; ++i)
    records.push_back(Record(i < 50 ? "a" : "b", i * 10 * kMs, {.read_ns = kMs, .decode_ns = i * kMs},
                             static_cast<uint8_t>(i % 2 * 100)));
  SumWaits(records, 12);
  EXPECT_LE(records.size(), 13U);
  std::map<std::string, DataParts> parts;
  int64_t waits = 0;
  for (const ls_record& record : records) {
    const DataWait wait = ToDataWait(record);
    parts[wait.data_set].Add(wait.parts);
    waits += wait.waits;
    EXPECT_NEAR(0.5, wait.busy, 0.3);
  }
  EXPECT_EQ(100, waits);
  ExpectAbout(50 * kMs, parts["a"].read_ns);
  ExpectAbout(49 * 50 / 2 * kMs, parts["a"].decode_ns);
  ExpectAbout((50 + 99) * 50 / 2 * kMs, parts["b"].decode_ns);
  EXPECT_EQ(990 * kMs, records.back().time_ns);
}

TrailSnapshot Trail(const char* source, uint32_t rank) {
  TrailSnapshot trail;
  trail.origin.rank = rank;
  trail.origin.world = 2;
  std::strncpy(trail.origin.source, source, sizeof trail.origin.source - 1);
  trail.wall_minus_boot_ns = 1000 * kMs;
  trail.taken_ns = 500 * kMs;
  trail.alive = true;
  return trail;
}

TEST(Trails, TellOfWaitsForData) {
  TrailSnapshot trail = Trail("feed", 1);
  trail.ended.push_back(Record("photos", 400 * kMs, {.decode_ns = 30 * kMs}));
  trail.under_way.push_back(Record("photos", 450 * kMs, {}));
  const CommLog log = JoinTrails({Trail("gloo", 0), trail});
  ASSERT_EQ(1U, log.data_waits.size());
  const DataWait& wait = log.data_waits.front();
  EXPECT_EQ(1, wait.rank);
  EXPECT_EQ("photos", wait.data_set);
  EXPECT_EQ(1370 * kMs, wait.begin_ns());
  EXPECT_EQ(400 * kMs, wait.boot_end_ns);
  EXPECT_EQ("has waited 0.1 s for a batch of the data set photos", log.remarks.at(1));
  EXPECT_THAT(log.reported, testing::ElementsAre(0));  // rank 1 said nothing of its communication
  EXPECT_TRUE(log.ops.empty());
}

TEST(Trails, AreThinnedWithoutLosingWaits) {
  TrailSnapshot trail = Trail("feed", 1);
  for (int i = 0; i < 1000; ++i) trail.ended.push_back(Record("photos", i * kMs, {.decode_ns = kMs / 2}));
  Thin(trail, 500 * kMs, 48);
  EXPECT_LE(trail.ended.size(), 12U);
  int64_t waited = 0;
  for (const ls_record& record : trail.ended) waited += ToDataWait(record).parts.sum_ns();
  ExpectAbout(250 * kMs, waited);
}

}  // namespace
}  // namespace lockstep::trace
