// A keeper and whatever may come over its port.
#include "lockstep/keep/wire.h"

#include <gmock/gmock.h>

#include <random>

#include "lockstep/keep/fetch.h"
#include "lockstep/keep/keeper.h"
#include "lockstep/keep/test_part.h"

namespace lockstep::keep {
namespace {

constexpr char kToken[] = "0123456789abcdef";
constexpr Bytes kLimit{1 << 20};

class Wire : public testing::Test {
 protected:
  Wire() { EXPECT_TRUE(keeper_.Open(true).ok()); }
  Connection Greeted(Purpose purpose) {
    Connection connection = Connection::To({"127.0.0.1", keeper_.port()}, {}).value();
    Greeting greeting;
    greeting.purpose = purpose;
    greeting.token = TokenField(kToken);
    EXPECT_TRUE(connection.Write(greeting).ok());
    return connection;
  }
  Keeper keeper_{kToken, kLimit};
};

TEST_F(Wire, AHeadThatAnnouncesTooMuchEndsTheConversation) {
  for (const Head& head : {Head{1, 1, 0, 1, 5'000, 1}, Head{1, 1, 0, 1, 1, ~0u}}) {
    Connection connection = Greeted(Purpose::kPut);
    ASSERT_TRUE(connection.Write(head).ok());
    std::byte answer{};
    EXPECT_FALSE(connection.Read(answer).ok());
  }
}

TEST_F(Wire, SizesThatDoNotFitAreRefusedWithASentence) {
  Connection connection = Greeted(Purpose::kPut);
  Outline outline{0, {EpochId(1), StepId(1)}, 1, {{100, 10, 0}}, {Hash{}}};
  ASSERT_TRUE(WriteOutline(connection, outline).ok());
  EXPECT_THAT(Message(ReadAnswer(connection)), testing::HasSubstr("1 hashes for slots of 2 chunks"));
  outline.slots[0] = {uint64_t{1} << 30, 0, 0};
  outline.chunks.assign(1024, Hash{});
  for (uint64_t i = 0; i < 1024; ++i) outline.chunks[i].low = i;
  ASSERT_TRUE(WriteOutline(connection, outline).ok());
  EXPECT_THAT(Message(ReadAnswer(connection)), testing::HasSubstr("there is no room"));
}

TEST_F(Wire, NoiseNeitherStopsNorConfusesIt) {
  std::mt19937 random(1);
  for (int round = 0; round < 60; ++round) {  // fewer than it serves at once
    Connection connection = Greeted(round % 2 == 0 ? Purpose::kPut : Purpose::kGet);
    Content noise = RandomBytes(random() % 200, static_cast<uint32_t>(round));
    // Small counts get further than wild ones.
    for (size_t i = 24; i < std::min<size_t>(32, noise.size()); ++i)
      noise[i] &= i % 4 == 0 ? std::byte{3} : std::byte{0};
    (void)connection.Write(std::span<const std::byte>(noise));
  }
  const auto image = Fetch({"127.0.0.1", keeper_.port()}, kToken, 0, {EpochId(1), StepId(1)}, {},
                           [](size_t, const SlotHeader&) { return absl::StatusOr<std::span<std::byte>>(); });
  EXPECT_THAT(Message(image.status()), testing::HasSubstr("is not kept here"));
  EXPECT_EQ(0, keeper_.turned_away());
}

}  // namespace
}  // namespace lockstep::keep
