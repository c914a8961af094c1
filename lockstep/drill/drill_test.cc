#include "lockstep/drill/drill.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/agent/test_child.h"
#include "lockstep/drill/process.h"

namespace lockstep::drill {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Drill, WhoIsNoWorkerOfAStarterIsNotStruck) {
  agent::TestChild child({"sleep", "100"});
  agent::RunSpec spec;
  int announced = 0;
  Rim rim;
  rim.status = [&]() -> absl::StatusOr<Json> {
    return Json({{"state", "running"}, {"epoch", 1}, {"ranks", {{{"rank", 0}, {"pid", child.pid()}}}}});
  };
  rim.announce = [&](const Json&) -> absl::StatusOr<Json> {
    ++announced;
    return Json({{"step", 1}, {"watcher_pid", getpid()}});
  };
  rim.say = [](const std::string&) {};
  Plan plan;
  plan.seed = 1;
  plan.faults.emplace_back().fault.rank = 0;
  const SystemClock clock;
  const Report report = Drill(spec, plan, rim, clock).Run();
  EXPECT_THAT(report.failed, ElementsAre(HasSubstr("is no starter")));
  EXPECT_TRUE(report.faults.empty());
  EXPECT_EQ(announced, 0);
  EXPECT_TRUE(Process::Open(child.pid())->Alive());
}

}  // namespace
}  // namespace lockstep::drill
