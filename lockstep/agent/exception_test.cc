#include "lockstep/agent/exception.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "lockstep/base/file.h"

namespace lockstep::agent {
namespace {

TEST(Exception, IsReadFromTheWorkersNote) {
  const std::string path = testing::TempDir() + "/exception_test." + std::to_string(getpid());
  EXPECT_FALSE(ReadException(path).has_value());
  ASSERT_TRUE(WriteFileAtomically(
                  path, R"({"type":"ValueError","message":"bad\nmore","where":"train.py:41 in forward","at_ns":1})")
                  .ok());
  const auto info = ReadException(path);
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->at.value, 1);
  EXPECT_EQ(info->info.type, "ValueError");
  EXPECT_EQ(info->info.message, "bad");
  EXPECT_EQ(info->info.where, "train.py:41 in forward");
  EXPECT_FALSE(info->info.connection);
  unlink(path.c_str());
}

// Texts as torch 1.13.1 with gloo printed them when a peer was killed.
TEST(Exception, ALostPeerIsSecondary) {
  EXPECT_TRUE(IsConnectionError(
      "RuntimeError",
      "[../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [127.0.0.1]:4242"));
  EXPECT_TRUE(IsConnectionError("RuntimeError", "[pair.cc:598] Read error [127.0.0.1]:4242: Connection reset by peer"));
  EXPECT_TRUE(IsConnectionError("RuntimeError", "Socket Timeout"));
  EXPECT_FALSE(IsConnectionError("RuntimeError", "mat1 and mat2 shapes cannot be multiplied"));
  EXPECT_FALSE(IsConnectionError("ValueError", "Connection reset by peer"));
}

}  // namespace
}  // namespace lockstep::agent
