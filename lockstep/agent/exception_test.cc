#include "lockstep/agent/exception.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

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

// _boot.py writes over it what there would be no room for, and leaves the rest blank.
TEST(Exception, IsReadFromItsRoomIfItIsOfTheEpoch) {
  const TestFolder folder;
  const std::string path = folder / "room";
  EXPECT_FALSE(ReadErrorRoom(path, 1).has_value());
  ASSERT_TRUE(MakeErrorRoom(path).ok());
  struct stat info{};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_size, 16384);
  EXPECT_GE(info.st_blocks * 512, info.st_size) << "the disk has given all of it";
  EXPECT_FALSE(ReadErrorRoom(path, 0).has_value()) << "nobody has written";
  const std::string note = R"({"type":"RuntimeError","message":"Connection closed by peer","epoch":2})";
  ASSERT_TRUE(WriteFileAtomically(path, note + std::string(1000, ' ')).ok());
  EXPECT_FALSE(ReadErrorRoom(path, 3).has_value());
  ASSERT_TRUE(ReadErrorRoom(path, 2).has_value());
  EXPECT_TRUE(ReadErrorRoom(path, 2)->info.connection);
  ASSERT_TRUE(MakeErrorRoom(path).ok());
  EXPECT_FALSE(ReadErrorRoom(path, 2).has_value()) << "it is another run's";
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

TEST_F(TorchError, OfTheProgramsOwnConnectionIsNot) {
  const auto read = [&](const std::string& text, const std::string& file) {
    return Read(R"({"message": {"message": ")" + text +
                R"(", "extraInfo": {"py_callstack": "  File \"/home/me/train.py\", line 4, in f\n  File \")" + file +
                R"(\", line 833, in g\n"}}})")
        ->info.connection;
  };
  const std::string refused = "ConnectionRefusedError: [Errno 111] Connection refused";
  EXPECT_FALSE(read(refused, "/usr/lib/python3.11/socket.py"));
  EXPECT_FALSE(read(refused, "/home/me/net.py"));
  EXPECT_FALSE(read("ConnectionResetError: Caught it. [Errno 104] Connection reset by peer",
                    "/usr/lib/python3/dist-packages/torch/_utils.py"));
  EXPECT_TRUE(read(refused, "/usr/lib/python3/dist-packages/torch/distributed/rendezvous.py"));
  EXPECT_TRUE(read("RuntimeError: Connection reset by peer", "/home/me/net.py")) << "c10d's, called from there";
}

// As traceback writes it.
TEST_F(TorchError, RaisedFromALostPeersIsSecondary) {
  const auto after = [&](const std::string& earlier, const std::string& how) {
    const std::string begin = R"(Traceback (most recent call last):\n  File \"/home/me/train.py\", line 9, in step\n)";
    const std::string end = begin + R"(    raise ValueError(\"step 3\")\nValueError: step 3\n)";
    return Read(R"({"message": {"message": "ValueError: step 3", "extraInfo": {"py_callstack": ")" + begin +
                R"(    dist.all_reduce(x)  # Connection refused\n)" + earlier + R"(\n\n)" + how + R"(\n\n)" + end +
                R"("}}})")
        ->info.connection;
  };
  const std::string cause = "The above exception was the direct cause of the following exception:";
  const std::string lost = "RuntimeError: [../gloo/transport/tcp/pair.cc:598] Connection closed by peer";
  EXPECT_TRUE(after(lost, cause));
  EXPECT_TRUE(
      after("torch.distributed.DistBackendError: NCCL error in: x.cpp:1\\nncclRemoteError: A call failed", cause));
  EXPECT_TRUE(after(lost + R"(\n\n)" + cause + R"(\n\nTraceback (most recent call last):\nKeyError: 3)", cause));
  EXPECT_FALSE(after(lost, "During handling of the above exception, another exception occurred:"));
  EXPECT_FALSE(after("KeyError: 3", cause));
}

// An agent reads them on its own thread: of 20,000 causes it was busy for minutes.
TEST_F(TorchError, OfALongChainTheNearestCausesAreLookedAt) {
  const auto after = [&](int others) {
    const std::string link = R"(\n\nThe above exception was the direct cause of the following exception:\n\n)";
    std::string stack = R"(  File \"/home/me/a.py\", line 9, in f\nRuntimeError: gloo/transport/tcp/pair.cc: closed)";
    for (int i = 0; i < others; ++i) stack += link + R"(  File \"/home/me/a.py\", line 9, in f\nKeyError: 3)";
    return Read(R"({"message": {"message": "KeyError: 3", "extraInfo": {"py_callstack": ")" + stack + R"("}}})")
        ->info.connection;
  };
  EXPECT_TRUE(after(20));
  EXPECT_FALSE(after(21));
  EXPECT_FALSE(after(20'000));
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
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');  // less than a file may have
  for (const char* around : {R"({{"message": {}}})", R"({{"message": {{"message": {}}}}})",
                             R"({{"message": {{"message": "x", "extraInfo": {{"py_callstack": {}}}}}}})"})
    EXPECT_TRUE(absl::IsDataLoss(Read(fmt::format(fmt::runtime(around), deep)).status()));
  EXPECT_TRUE(absl::IsDataLoss(ReadTorchError("/").status()));
}

// Texts as torch 1.13.1 with gloo printed them when a peer was killed. Where compiled code was called, its caller is
// not known to have raised it.
TEST(Exception, ALostPeerIsSecondary) {
  const std::string pair =
      "[../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [127.0.0.1]:4242";
  for (const char* raised_in : {"", "torch", "torch.autograd", "torch.distributed.distributed_c10d"}) {
    EXPECT_TRUE(IsConnectionError("RuntimeError", pair, raised_in));
    EXPECT_TRUE(IsConnectionError("RuntimeError", "Connection reset by peer", raised_in)) << raised_in;
    EXPECT_TRUE(IsConnectionError("RuntimeError", "Socket Timeout", raised_in)) << raised_in;
  }
  EXPECT_TRUE(IsConnectionError("RuntimeError", "step 3: " + pair, "__main__")) << "gloo's own words";
  EXPECT_FALSE(IsConnectionError("RuntimeError", "mat1 and mat2 shapes cannot be multiplied", ""));
  EXPECT_FALSE(IsConnectionError("ValueError", "Connection reset by peer", ""));
}

// As torch 1.13.1 with gloo, and torch 2 with NCCL, say it of a collective to which somebody did not come.
TEST(Exception, ATimeoutIsTold) {
  const TestFolder folder;
  const auto timed_out = [&](const std::string& message, const std::string& more = "") {
    return ReadException(folder.Write("note", R"({"type":"RuntimeError","message":")" + message + "\"" + more + "}"))
        ->info.timed_out;
  };
  EXPECT_TRUE(timed_out("[../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 8000ms for recv operation"));
  EXPECT_TRUE(timed_out("Application timeout caused pair closure"));
  EXPECT_TRUE(timed_out("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"));
  EXPECT_FALSE(timed_out("[../gloo/transport/tcp/pair.cc:598] Connection closed by peer"));
  EXPECT_FALSE(timed_out("Timed out waiting for the license server", R"(,"raised_in":"license")"));
  const std::string told = R"(,"earlier":[{"message":"Timed out waiting 8000ms for recv","raised_in":"","retold":)";
  EXPECT_TRUE(timed_out("training failed", told + "true}]"));
  EXPECT_FALSE(timed_out("training failed", told + "false}]")) << "an error of its own";
}

TEST(Exception, AConnectionOfTheProgramIsNoPeer) {
  for (const char* raised_in : {"socket", "__main__", "urllib3.connection", "torchvision.datasets", "torch._utils"})
    EXPECT_FALSE(IsConnectionError("ConnectionRefusedError", "[Errno 111] Connection refused", raised_in)) << raised_in;
  EXPECT_FALSE(IsConnectionError("RuntimeError", "the store of metrics: Connection refused", "metrics"));
}

TEST(Exception, TheNoteTellsWhoRaisedIt) {
  const TestFolder folder;
  const auto is_lost = [&](const std::string& more) {
    const std::string note = R"({"type":"ConnectionRefusedError","message":"[Errno 111] Connection refused")";
    const std::string path = folder.Write("note", note + more + "}");
    return ReadException(path)->info.connection;
  };
  EXPECT_FALSE(is_lost(R"(,"raised_in":"socket")"));
  EXPECT_TRUE(is_lost(R"(,"raised_in":"torch.distributed.rendezvous")"));
  EXPECT_TRUE(is_lost("")) << "of another version: it is not known";
  const auto after = [&](const std::string& message, const std::string& raised_in) {
    return is_lost(R"(,"raised_in":"socket","earlier":[{"message":"no","raised_in":"x"},{"message":")" + message +
                   R"(","raised_in":")" + raised_in + R"("}])");
  };
  EXPECT_TRUE(after("Connection reset by peer", "torch.distributed.distributed_c10d"));
  EXPECT_TRUE(after("Connection reset by peer", "")) << "c10d's, perhaps";
  EXPECT_TRUE(after("[gloo/transport/tcp/pair.cc:598] Read error", "__main__"));
  EXPECT_FALSE(after("[Errno 2] No such file or directory: 'cache.pt'", "torch.serialization"));
  EXPECT_FALSE(after("dictionary changed size during iteration", ""));
  EXPECT_FALSE(after("[Errno 104] Connection reset by peer", "socket"));
}

// In words of the program's own; or an error of its own that it met while it handled that.
TEST(Exception, ALostPeerMayBeToldInOtherWords) {
  const TestFolder folder;
  const auto read = [&](const std::string& earlier) {
    return ReadException(folder.Write("note", R"({"type":"ValueError","message":"training failed in step 3",)"
                                              R"("raised_in":"__main__","earlier":[)" +
                                                  earlier + "]}"))
        ->info;
  };
  const std::string lost = R"({"message":"[gloo/transport/tcp/pair.cc:598] Read error","raised_in":"","retold":)";
  const std::string other = R"({"message":"no","raised_in":"x","retold":true},)";
  EXPECT_TRUE(read(lost + "true}").connection);
  EXPECT_FALSE(read(lost + "true}").after_loss);
  EXPECT_TRUE(read(other + lost + "true}").connection);
  EXPECT_FALSE(read(lost + "false}").connection);
  EXPECT_TRUE(read(lost + "false}").after_loss);
  EXPECT_FALSE(read(other + R"({"message":"[Errno 104] Connection reset by peer","raised_in":"socket","retold":true})")
                   .connection);
  EXPECT_FALSE(read(R"({"message":"no","raised_in":"x","retold":true})").after_loss);
  EXPECT_FALSE(read("").after_loss);
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
