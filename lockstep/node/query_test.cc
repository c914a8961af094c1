#include "lockstep/node/query.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/agent/spec.h"
#include "lockstep/base/packets.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/store/writer_lock.h"

namespace lockstep::node {
namespace {

using testing::HasSubstr;
using testing::Not;

class Query : public testing::Test {
 protected:
  const TestFolder run_dir_;
};

TEST_F(Query, AnAnswerOfSeveralMegabytesComesWhole) {
  Json ranks = Json::array();
  for (int rank = 0; rank < 500; ++rank) ranks.push_back({{"rank", rank}, {"said", std::string(8192, 'x')}});
  Poller poller;
  ControlSocket socket(poller, [&](const Json&, const ControlSocket::Reply& reply) { reply({{"ranks", ranks}}); });
  ASSERT_TRUE(socket.Listen(run_dir_.path()).ok());
  std::thread watching([&] { poller.Run(Seconds{60}, [] {}); });
  const auto answer = Ask(run_dir_.path(), {{"op", "status"}});
  poller.Stop();
  watching.join();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ((*answer)["ranks"], ranks);
}

TEST_F(Query, AnAnswerThatIsNoneIsAnError) {
  const Fd listener = *ListenAt(run_dir_ / agent::kControlSocket);
  std::thread watching([&] {
    Fd peer;
    while (!peer.valid()) peer = Fd(accept(listener.get(), nullptr, nullptr));
    (void)AwaitPacket(peer.get(), 60'000);
    (void)SendPacket(peer.get(), R"({"ranks":[{"ra)");
  });
  EXPECT_TRUE(absl::IsDataLoss(Ask(run_dir_.path(), {{"op", "status"}}).status()));
  watching.join();
}

// A journal on a disk that is full lacks what happened last, and here there is none.
TEST_F(Query, WhyIsToldByWhoWatchesRatherThanTheJournal) {
  control::State state;
  incident::Incident& incident = state.incidents.emplace_back();
  incident.id = 1;
  incident.findings.emplace_back();
  Poller poller;
  ControlSocket socket(poller, [&](const Json& request, const ControlSocket::Reply& reply) {
    reply(request["op"] == "why" ? AnswerWhy(state, request, Nanos{}) : Json());
  });
  ASSERT_TRUE(socket.Listen(run_dir_.path()).ok());
  std::jthread watching([&] { poller.Run(Seconds{60}, [] {}); });
  const auto known = QueryWhy(run_dir_.path(), 1), unknown = QueryWhy(run_dir_.path(), 2);
  poller.Stop();
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_EQ((*known)["incident"], 1);
  EXPECT_THAT(Message(unknown.status()), HasSubstr("there is no incident 2"));
}

// At the limit of open files it lets nobody in; to go on without it would end the one that is there.
TEST_F(Query, AWatcherThatHangsUpIsThereForAsLongAsItHasItsLock) {
  const Fd listener = *ListenAt(run_dir_ / agent::kControlSocket);
  std::jthread watching([&] {
    for (int i = 0; i < 2; ++i) {
      Fd peer;
      while (!peer.valid()) peer = Fd(accept(listener.get(), nullptr, nullptr));
    }
  });
  {
    const auto lock = store::WriterLock::Take(run_dir_ / agent::kWatcherLock);
    ASSERT_TRUE(lock.ok()) << lock.status();
    const absl::Status asked = AskStop(run_dir_.path());
    EXPECT_TRUE(absl::IsResourceExhausted(asked)) << asked;
    EXPECT_THAT(Message(asked), HasSubstr("hung up, and is still there"));
    EXPECT_THAT(Message(asked), Not(HasSubstr("--resume")));
  }
  EXPECT_THAT(Message(AskStop(run_dir_.path())),
              HasSubstr("nobody watches this run; go on with `lockstep run --resume"));
}

}  // namespace
}  // namespace lockstep::node
