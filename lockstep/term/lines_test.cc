#include "lockstep/term/lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace lockstep::term {
namespace {

using testing::HasSubstr;

// A node that stands by, or still looks for its coordinator, says null.
TEST(HeadLine, HasADashForWhatIsNotKnown) {
  const Json status = {
      {"job", "gpt"}, {"state", "standby"}, {"epoch", nullptr}, {"step", nullptr}, {"ettr", Json::object()}};
  EXPECT_THAT(HeadLine(status), HasSubstr("standby  epoch -  step -  "));
}

}  // namespace
}  // namespace lockstep::term
