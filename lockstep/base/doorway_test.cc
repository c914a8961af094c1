#include "lockstep/base/doorway.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <string>

#include "lockstep/base/packets.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/base/test_limit.h"

namespace lockstep {
namespace {

bool HasNews(int fd) {
  pollfd one{fd, POLLIN, 0};
  return poll(&one, 1, 0) > 0;
}

TEST(Doorway, WhoeverCantComeInIsTurnedAway) {
  const TestFolder folder;
  const std::string path = folder / "socket";
  absl::StatusOr<Doorway> doorway = Doorway::Open(path);
  ASSERT_TRUE(doorway.ok()) << doorway.status();
  absl::StatusOr<Fd> first = ConnectTo(path), second = ConnectTo(path);
  ASSERT_TRUE(first.ok() && second.ok());
  {
    const TestLimit no_more(RLIMIT_NOFILE, static_cast<rlim_t>(Fd(dup(0)).get()));
    EXPECT_FALSE(doorway->Accept().valid());
    EXPECT_TRUE(HasNews(first->get())) << "it was not turned away";
    EXPECT_FALSE(HasNews(second->get()));
    EXPECT_FALSE(doorway->Accept().valid());
    EXPECT_FALSE(HasNews(doorway->fd())) << "somebody still knocks";
    EXPECT_EQ(ConnectTo(path).status().code(), absl::StatusCode::kResourceExhausted);
  }
  const absl::StatusOr<Fd> third = ConnectTo(path);
  ASSERT_TRUE(third.ok());
  EXPECT_TRUE(doorway->Accept().valid());
  EXPECT_FALSE(doorway->Accept().valid());
}

}  // namespace
}  // namespace lockstep
