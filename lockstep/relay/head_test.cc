#include "lockstep/relay/head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace lockstep::relay {
namespace {

using testing::HasSubstr;

constexpr feed::RingShape kShape{4, 10, 16};
constexpr int64_t kMs = 1'000'000;

std::string HeadOf(const ls_feed_batch& batch) {
  std::string head(HeadBytes(kShape), '\0');
  std::memcpy(head.data(), &batch, sizeof batch);
  return head;
}

TEST(Head, IsReadAndChecked) {
  ls_feed_batch batch{};
  batch.ticket = 7;
  batch.items = 8;
  batch.skipped = 2;
  const auto read = ReadHead(HeadOf(batch), kShape, 7);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->items, 8U);
  const auto refusal = [](std::string_view head, uint64_t ticket) {
    return Message(ReadHead(head, kShape, ticket).status());
  };
  EXPECT_THAT(refusal(HeadOf(batch), 8), HasSubstr("batch 7 came, expected 8"));
  EXPECT_THAT(refusal(HeadOf(batch).substr(1), 7), HasSubstr("a batch's head of 671 bytes, expected 672"));
  batch.skipped = 3;
  EXPECT_THAT(refusal(HeadOf(batch), 7), HasSubstr("8 items and 3 skipped ones, expected at most 10"));
  batch.skipped = UINT32_MAX;
  EXPECT_FALSE(ReadHead(HeadOf(batch), kShape, 7).ok());
  batch.skipped = 2;
  batch.why_bytes = 1;
  EXPECT_THAT(refusal(HeadOf(batch), 7), HasSubstr("8 items with 1 bytes about what it lost"));
  batch.items = 0;
  EXPECT_TRUE(ReadHead(HeadOf(batch), kShape, 7).ok());
  batch.why_bytes = LS_FEED_ALIGN + 1;
  EXPECT_FALSE(ReadHead(HeadOf(batch), kShape, 7).ok());
  batch.why_bytes = batch.skipped = 0;
  std::memset(batch.state, 'x', sizeof batch.state);
  EXPECT_THAT(refusal(HeadOf(batch), 7), HasSubstr("no end"));
}

ls_feed_batch Made(int64_t read_ms, int64_t decode_ms) {
  ls_feed_batch batch{};
  batch.began_ns = 900'000 * kMs;  // the other machine's clock
  batch.filled_ns = batch.began_ns + 100 * kMs;
  batch.threads = 2;
  batch.read_ns = static_cast<uint64_t>(read_ms * kMs);
  batch.decode_ns = static_cast<uint64_t>(decode_ms * kMs);
  batch.busy_ns = batch.read_ns + batch.decode_ns;
  return batch;
}

TEST(Head, ABatchThatWasWaitedForTakesTheTimeItTook) {
  ls_feed_batch batch = Made(40, 160);
  TellTimesHere(batch, {.asked = {1000 * kMs}, .head_came = {1200 * kMs}, .arrived = {1200 * kMs}});
  EXPECT_EQ(batch.relayed, 1U);
  EXPECT_EQ(batch.filled_ns, 1200 * kMs);
  EXPECT_EQ(batch.began_ns, 1100 * kMs);
  EXPECT_EQ(batch.read_ns, 40U * kMs);
  EXPECT_EQ(batch.decode_ns, 160U * kMs);
}

TEST(Head, ABatchThatWasThereOnlyTakesItsWay) {
  ls_feed_batch batch = Made(40, 160);
  TellTimesHere(batch, {.asked = {1000 * kMs}, .head_came = {1000 * kMs}, .arrived = {1030 * kMs}});
  EXPECT_EQ(batch.began_ns, 1000 * kMs);
  EXPECT_EQ(batch.filled_ns, 1030 * kMs);
  EXPECT_EQ(batch.read_ns, 2U * 30 * kMs);  // of two threads, as if both had carried it
  EXPECT_EQ(batch.decode_ns, 0U);
  EXPECT_EQ(batch.busy_ns, 2U * 30 * kMs);
}

TEST(Head, HalfOfItWasWaitedFor) {
  ls_feed_batch batch = Made(40, 160);
  TellTimesHere(batch, {.asked = {1000 * kMs}, .head_came = {1050 * kMs}, .arrived = {1100 * kMs}});
  EXPECT_EQ(batch.began_ns, 1000 * kMs);
  EXPECT_EQ(batch.read_ns, (20U + 100U) * kMs);
  EXPECT_EQ(batch.decode_ns, 80U * kMs);
}

}  // namespace
}  // namespace lockstep::relay
