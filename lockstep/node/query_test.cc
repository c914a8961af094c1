#include "lockstep/node/query.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/agent/spec.h"
#include "lockstep/base/packets.h"

namespace lockstep::node {
namespace {

class Query : public testing::Test {
 protected:
  Query() : run_dir_(testing::TempDir() + "query-XXXXXX") { run_dir_ = mkdtemp(run_dir_.data()); }
  ~Query() override { std::filesystem::remove_all(run_dir_); }
  std::string run_dir_;
};

TEST_F(Query, AnAnswerOfSeveralMegabytesComesWhole) {
  Json ranks = Json::array();
  for (int rank = 0; rank < 500; ++rank) ranks.push_back({{"rank", rank}, {"said", std::string(8192, 'x')}});
  Poller poller;
  ControlSocket socket(poller, [&](const Json&, const ControlSocket::Reply& reply) { reply({{"ranks", ranks}}); });
  ASSERT_TRUE(socket.Listen(run_dir_).ok());
  std::thread watching([&] { poller.Run(Seconds{60}, [] {}); });
  const auto answer = Ask(run_dir_, {{"op", "status"}});
  poller.Stop();
  watching.join();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ((*answer)["ranks"], ranks);
}

TEST_F(Query, AnAnswerThatIsNoneIsAnError) {
  const Fd listener = *ListenAt(run_dir_ + "/" + agent::kControlSocket);
  std::thread watching([&] {
    Fd peer;
    while (!peer.valid()) peer = Fd(accept(listener.get(), nullptr, nullptr));
    (void)AwaitPacket(peer.get(), 60'000);
    (void)SendPacket(peer.get(), R"({"ranks":[{"ra)");
  });
  EXPECT_TRUE(absl::IsDataLoss(Ask(run_dir_, {{"op", "status"}}).status()));
  watching.join();
}

}  // namespace
}  // namespace lockstep::node
