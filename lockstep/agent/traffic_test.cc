#include "lockstep/agent/traffic.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "lockstep/base/test_folder.h"

namespace lockstep::agent {
namespace {

constexpr uint32_t kCells = 16;

class TrafficTest : public testing::Test {
 protected:
  ~TrafficTest() override {
    for (ls_trail* trail : written_) munmap(trail, ls_trail_bytes(kCells));
  }
  ls_trail* Write(const std::string& name, std::vector<trace::TrailFile>& trails) {
    const std::string path = folder_ / name;
    const ls_origin origin{};
    written_.push_back(ls_trail_create(path.c_str(), &origin, kCells));
    trails.push_back(trace::TrailFile::Open(path).value());
    return written_.back();
  }

  const TestFolder folder_;
  std::vector<ls_trail*> written_;
};

TEST_F(TrafficTest, IsUnderWayWhileAnyRankHasSomethingUnderWay) {
  Traffic traffic;
  EXPECT_EQ(traffic.IsUnderWay(), std::nullopt);
  std::vector<trace::TrailFile> trails;
  Write("0.trail", trails);
  ls_trail* second = Write("1.trail", trails);
  traffic.Follow(std::move(trails));
  EXPECT_EQ(traffic.IsUnderWay(), false);
  const ls_record record{};
  const ls_handle op = ls_trail_open(second, &record);
  EXPECT_EQ(traffic.IsUnderWay(), true);
  ls_trail_close(second, op);
  EXPECT_EQ(traffic.IsUnderWay(), false);
  traffic.Follow({});
  EXPECT_EQ(traffic.IsUnderWay(), std::nullopt);
}

}  // namespace
}  // namespace lockstep::agent
