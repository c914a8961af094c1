#include "lockstep/agent/exception.h"

#include <gtest/gtest.h>

#include "lockstep/base/file.h"
#include "lockstep/base/test_folder.h"

namespace lockstep::agent {
namespace {

TEST(Exception, IsReadFromTheWorkersNote) {
  const TestFolder folder;
  const std::string path = folder / "note";
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
}

class TorchError : public testing::Test {
 protected:
  absl::StatusOr<ExceptionNote> Read(const std::string& text) {
    EXPECT_TRUE(WriteFileAtomically(path_, text).ok());
    return ReadTorchError(path_);
  }
  const TestFolder folder_;
  const std::string path_ = folder_ / "error";
};

// As torch 1.13.1 and 2.x write it for an exception under @record.
TEST_F(TorchError, TellsTypeMessageAndPlace) {
  const auto note = Read(
      R"({"message": {"message": "ValueError: a bad: batch\nmore", "extraInfo": {"py_callstack": "Traceback (most recent call last):\n  File \"/usr/lib/python3/dist-packages/torch/x.py\", line 346, in wrapper\n    return f(*args)\n  File \"/home/me/train.py\", line 41, in forward\n    raise\n  File \"/usr/lib/python3.11/json/decoder.py\", line 3, in decode\nValueError: a bad: batch\n", "timestamp": "1700000000"}, "errorCode": 1}})");
  ASSERT_TRUE(note.ok()) << note.status();
  EXPECT_EQ(note->info.type, "ValueError");
  EXPECT_EQ(note->info.message, "a bad: batch");
  EXPECT_EQ(note->info.where, "train.py:41 in forward");
  EXPECT_EQ(note->at.value, 0);
}

// The other shape, of handlers that have no exception to speak of.
TEST_F(TorchError, MayBeAMessageAlone) {
  const auto note = Read(R"({"message": "out of quota", "timestamp": 1700000000})");
  ASSERT_TRUE(note.ok()) << note.status();
  EXPECT_EQ(note->info.type, "error");
  EXPECT_EQ(note->info.message, "out of quota");
}

TEST_F(TorchError, OfALostPeerIsSecondary) {
  EXPECT_TRUE(Read(R"({"message": {"message": "RuntimeError: Connection reset by peer"}})")->info.connection);
}

TEST_F(TorchError, DamagedHugeOrMissingIsAnErrorThatNamesTheFile) {
  EXPECT_TRUE(absl::IsNotFound(ReadTorchError(path_).status()));
  for (const std::string text : {"", "half a {", "[]", "{}", R"({"message": 3})", R"({"message": {"message": []}})",
                                 R"({"message": null})", "\xff\xfe"}) {
    const auto note = Read(text);
    EXPECT_TRUE(absl::IsDataLoss(note.status())) << text;
    EXPECT_NE(Message(note.status()).find(path_), std::string::npos);
  }
  EXPECT_TRUE(absl::IsDataLoss(Read(std::string(5 << 20, ' ')).status()));
  EXPECT_TRUE(absl::IsDataLoss(ReadTorchError("/").status()));
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

// As torch 1.13.1 and 2.6 without libuv, and torch 2 with it, say it.
TEST(Exception, APortThatIsTakenIsNobodysFault) {
  const std::string begin = "The server socket has failed to listen on any local network address. ";
  EXPECT_TRUE(
      IsPortTaken("RuntimeError",
                  begin + "The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use)."));
  EXPECT_TRUE(
      IsPortTaken("DistNetworkError",
                  begin + "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"));
  EXPECT_FALSE(IsPortTaken(
      "RuntimeError", begin + "The server socket has failed to bind to [::]:29500 (errno: 13 - Permission denied)."));
  EXPECT_FALSE(IsPortTaken("OSError", "[Errno 98] Address already in use"));
}

}  // namespace
}  // namespace lockstep::agent
