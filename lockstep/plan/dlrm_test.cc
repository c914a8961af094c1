#include "lockstep/plan/dlrm.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <random>

#include "lockstep/base/test_folder.h"
#include "lockstep/plan/test_workload.h"

namespace lockstep::plan {
namespace {

using testing::DoubleNear;
using testing::HasSubstr;

DlrmCluster ClusterOf(int accelerators) { return {TestWorkload().machine, accelerators}; }

Dlrm RandomModel(std::mt19937_64& random, int tables) {
  Dlrm model{.tables = {}, .bottom = {256, 512, 128}, .top = {512, 1024, 1}, .batch = 8192};
  for (int i = 0; i < tables; ++i)
    model.tables.push_back(
        {std::to_string(i), std::exp2(double(10 + random() % 14)), 1.0 + double(random() % 60), 32 << (random() % 3)});
  return model;
}

// Of one table of 128 columns and 10 rows a sample, at the rate of streaming kernels of 2 TB/s.
TEST(Dlrm, ALookupByHand) {
  Dlrm model{.tables = {{"t", 1e6, 10, 128}}, .bottom = {16, 16}, .top = {16, 1}, .batch = 65'536};
  Rates rates;
  rates.kernel = 0;
  const DlrmTime time = PredictDlrm(model, ClusterOf(1), rates, {{0, 128, 0}});
  EXPECT_THAT(time.lookup, DoubleNear(3 * 65'536 * (11 * 128 * 4 + 96 + 64.0) / (2e12 * rates.stream), 1e-9));
  EXPECT_EQ(time.exchange + time.reduce, 0);
  EXPECT_THAT(time.memory, DoubleNear(1e6 * (128 * 4 + 4) + 18 * (16 * 16 + 16), 1));
}

// A hundred rows are fetched once and then come from the cache; of a million those have to be fetched, each time, that
// the other 90 % of it leave out; where the cache is the slower way all go through it.
TEST(Dlrm, RowsThatAreCached) {
  Dlrm model{.tables = {{"t", 100, 10, 128}}, .bottom = {16, 16}, .top = {16, 1}, .batch = 65'536};
  DlrmCluster cluster = ClusterOf(1);
  cluster.machine.cache = 40e6, cluster.machine.cache_bandwidth = 1e15;
  const Rates rates;
  const double row = 128 * 4, others = 65'536 * (row + 96 + 64), rate = 2e12 * rates.stream;
  const auto lookup = [&] { return PredictDlrm(model, cluster, rates, {{0, 128, 0}}).lookup; };
  EXPECT_THAT(lookup(), DoubleNear(3 * (100 * row + others) / rate, 1e-9));
  model.tables[0].rows = 1e6;
  const double room = .9 * 40e6 / row, fetched = room + (655'360 - room) * (1e6 - room) / 1e6;
  EXPECT_THAT(lookup(), DoubleNear(3 * (fetched * row + others) / rate, 1e-9));
  cluster.machine.cache_bandwidth = 1e12;
  EXPECT_THAT(lookup(), DoubleNear(3 * (655'360 * row + others) / 1e12, 1e-9));
  const double alone = lookup();
  cluster.accelerators = 8;
  EXPECT_EQ(lookup(), alone) << "on one of eight it has one cache, not eight";
}

// Eight tables on as many accelerators: pieces of them share the cache that a whole one has, so they gain nothing by
// it, and narrow rows take longer.
TEST(Dlrm, PiecesShareTheCache) {
  Dlrm model{.tables = {}, .bottom = {16, 16}, .top = {16, 1}, .batch = 65'536};
  for (int i = 0; i < 8; ++i) model.tables.push_back({std::to_string(i), 1e6, 80, 128});
  DlrmCluster cluster = ClusterOf(8);
  cluster.machine.cache = 40e6, cluster.machine.cache_bandwidth = 2.271e12;
  Sharding whole, split;
  for (int table = 0; table < 8; ++table) {
    whole.push_back({table, 128, table});
    for (int rank = 0; rank < 8; ++rank) split.push_back({table, 16, rank});
  }
  EXPECT_GT(PredictDlrm(model, cluster, Rates{}, split).lookup, PredictDlrm(model, cluster, Rates{}, whole).lookup);
  model.tables[0].dim = 64;
  const double wide = PredictDlrm(model, cluster, Rates{}, {{1, 128, 0}}).lookup;
  EXPECT_GT(PredictDlrm(model, cluster, Rates{}, {{0, 64, 0}}).lookup, .5 * wide);
}

// The best of all ways to put few whole tables on few accelerators, tried one by one.
double BestOfAll(const Dlrm& model, const DlrmCluster& cluster, const Rates& rates) {
  const size_t tables = model.tables.size();
  double best = 1e9;
  const auto ways = static_cast<size_t>(std::pow(cluster.accelerators, tables));
  for (size_t way = 0; way < ways; ++way) {
    Sharding sharding;
    size_t left = way;
    for (size_t i = 0; i < tables; ++i, left /= size_t(cluster.accelerators))
      sharding.push_back({int(i), model.tables[i].dim, int(left % size_t(cluster.accelerators))});
    best = std::min(best, PredictDlrm(model, cluster, rates, sharding).total());
  }
  return best;
}

TEST(Dlrm, ShardingIsAsGoodAsTryingAll) {
  std::mt19937_64 random(3);
  int as_good = 0;
  constexpr int kTasks = 60;
  for (int task = 0; task < kTasks; ++task) {
    const Dlrm model = RandomModel(random, 4 + int(random() % 4));
    const DlrmCluster cluster = ClusterOf(2 + int(random() % 2));
    const ShardingChoice best = Shardings(model, cluster, Rates{}).front();
    EXPECT_TRUE(best.fits);
    const double bound = BestOfAll(model, cluster, Rates{});
    as_good += best.time.total() <= bound * (1 + 1e-9) ? 1 : 0;
    EXPECT_LE(best.time.total(), bound * 1.05);
  }
  EXPECT_GE(as_good, kTasks * 85 / 100);
}

TEST(Dlrm, EveryColumnIsSomewhereOnce) {
  std::mt19937_64 random(4);
  const Dlrm model = RandomModel(random, 40);
  for (const ShardingChoice& one : Shardings(model, ClusterOf(8), Rates{})) {
    std::vector<int> columns(model.tables.size());
    for (const Shard& shard : one.sharding) {
      columns[size_t(shard.table)] += shard.columns;
      EXPECT_LT(shard.rank, 8);
    }
    for (size_t i = 0; i < columns.size(); ++i) EXPECT_EQ(columns[i], model.tables[i].dim) << one.how;
  }
}

// A table that fits no accelerator whole is split by columns; where all together do not fit, it says so.
TEST(Dlrm, MemoryDecides) {
  Dlrm model{.tables = {{"huge", 1e8, 2, 128}}, .bottom = {16, 16}, .top = {16, 1}, .batch = 4096};
  EXPECT_FALSE(Shardings(model, ClusterOf(1), Rates{}).front().fits);
  const auto two = DlrmReport(model, ClusterOf(2), Rates{});
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ((*two)["shards"].size(), 2U);
  EXPECT_THAT(Message(DlrmReport(model, ClusterOf(1), Rates{}).status()), HasSubstr("no sharding fits the memory"));
}

TEST(Dlrm, ReadsItsFile) {
  const TestFolder folder;
  const auto read = [&](const std::string& text) { return ReadDlrm(folder.Write("dlrm.toml", text)); };
  const std::string layers =
      "[bottom]\ninput = 13\nwidth = 64\nlayers = 2\n[top]\ninput = 512\nwidth = 256\nlayers = 3\n";
  const auto model = read(layers + "[[table]]\nrows = 1e6\ndim = 64\npooling = 20\ncount = 3\n");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->tables.size(), 3U);
  EXPECT_EQ(model->bottom, (std::vector<int>{13, 64, 64}));
  EXPECT_THAT(Message(read(layers).status()), HasSubstr("at least one [[table]]"));
  EXPECT_THAT(Message(read(layers + "[[table]]\nrows = -1\ndim = 64\n").status()),
              HasSubstr("table.rows must not be negative, found -1"));
  EXPECT_THAT(Message(read(layers + "[[table]]\nrow = 1\ndim = 64\n").status()), HasSubstr("rows is missing"));
}

}  // namespace
}  // namespace lockstep::plan
