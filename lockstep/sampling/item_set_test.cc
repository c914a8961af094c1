#include "lockstep/sampling/item_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::sampling {
namespace {

using testing::HasSubstr;

std::string ErrorOf(const std::string& text) { return Message(ParseItemSets(text, "jobs.txt").status()); }

ItemSet Set(const std::string& text) {
  const auto set = ParseItemSet(text, {.path = "jobs.txt"});
  EXPECT_TRUE(set.ok()) << set.status();
  return *set;
}

TEST(ItemSet, ReadsIdsAndRangesInAnyOrder) {
  const ItemSet set = Set("7, 0-3 ,5");
  EXPECT_EQ(set.ToString(), "0-3,5,7");
  EXPECT_EQ(set.size(), 6U);
  EXPECT_EQ(set.At(4), 5U);
  EXPECT_EQ(set.IndexOf(7), 5U);
  EXPECT_EQ(set.IndexOf(4), std::nullopt);
  EXPECT_EQ(Set("4,5-9,0-3").ToString(), "0-9");
}

TEST(ItemSet, KnowsIdsBeyondTwoToThe32) {
  const ItemSet set = Set("16777217,4294967296-4294967299,9223372036854775807");
  EXPECT_EQ(set.size(), 6U);
  EXPECT_EQ(set.At(1), 4294967296U);
  EXPECT_EQ(set.IndexOf(9223372036854775807U), 5U);
  EXPECT_EQ(ItemSet::Below(uint64_t{1} << 40).size(), uint64_t{1} << 40);
}

TEST(ItemSet, UnionJoins) {
  const ItemSet sets[] = {Set("0-5,20"), Set("4-9"), Set("10,30")};
  EXPECT_EQ(ItemSet::Union(sets).ToString(), "0-10,20,30");
}

TEST(ItemSets, OneALine) {
  const auto sets = ParseItemSets("0-3\r\n2-5\n", "jobs.txt");
  ASSERT_TRUE(sets.ok()) << sets.status();
  EXPECT_EQ(sets->size(), 2U);
  EXPECT_EQ((*sets)[1].ToString(), "2-5");
}

TEST(ItemSets, SaysWhereAndWhatIsWrong) {
  EXPECT_EQ(ErrorOf(""), "jobs.txt:1:1: an empty file; expected one line of item ids for each job");
  EXPECT_EQ(ErrorOf("0-3\n\n4"), "jobs.txt:2:1: an empty line; expected the items of a job, such as 0-3999,5000");
  EXPECT_EQ(ErrorOf("\n"), "jobs.txt:1:1: an empty line; expected the items of a job, such as 0-3999,5000");
  EXPECT_EQ(ErrorOf("0-3,9-7"), "jobs.txt:1:5: range 9-7 is reversed; write 7-9");
  EXPECT_EQ(ErrorOf("0-9,20,5"), "jobs.txt:1:8: item 5 is already in this set, at column 1");
  EXPECT_EQ(ErrorOf("5,0-9"), "jobs.txt:1:3: item 5 is already in this set, at column 1");
  EXPECT_EQ(ErrorOf("0\n1,-3"), "jobs.txt:2:3: a negative item id, -3: ids are 0 or more");
  EXPECT_EQ(ErrorOf("3--5"), "jobs.txt:1:3: a negative item id, -5: ids are 0 or more");
  EXPECT_EQ(ErrorOf("1,,2"), "jobs.txt:1:3: expected an item id or a range such as 0-3999, found \"\"");
  EXPECT_EQ(ErrorOf("1,2,"), "jobs.txt:1:5: expected an item id or a range such as 0-3999, found \"\"");
  EXPECT_EQ(ErrorOf("1;2"), "jobs.txt:1:2: expected a comma, found \";2\"");
  EXPECT_EQ(ErrorOf("cat"), "jobs.txt:1:1: expected an item id or a range such as 0-3999, found \"cat\"");
  EXPECT_THAT(ErrorOf("9223372036854775808"), HasSubstr("jobs.txt:1:1: item id 9223372036854775808 is too large"));
  EXPECT_THAT(ErrorOf("99999999999999999999999"), HasSubstr("is too large: ids are below 2^63"));
  EXPECT_THAT(Message(ReadItemSets("/nonexistent/jobs.txt").status()), HasSubstr("/nonexistent/jobs.txt"));
}

}  // namespace
}  // namespace lockstep::sampling
