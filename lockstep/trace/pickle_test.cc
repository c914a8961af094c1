#include "lockstep/trace/pickle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/base/json_text.h"

namespace lockstep::trace {
namespace {

using testing::HasSubstr;
using namespace std::string_literals;

Json Read(const std::string& bytes) {
  const absl::StatusOr<Json> value = ReadPickle(bytes);
  EXPECT_TRUE(value.ok()) << value.status();
  return value.value_or(Json());
}
std::string ErrorOf(const std::string& bytes) { return Message(ReadPickle(bytes).status()); }

// Protocol 2, as torch's own pickler writes it: {"version": "2.9", "entries": [{"id": 7, "ok": True}]}.
TEST(Pickle, ReadsWhatTorchWrites) {
  const std::string bytes =
      "\x80\x02}q\0(X\x07\0\0\0versionq\x01X\x03\0\0\0"s
      "2.9q\x02X\x07\0\0\0entriesq\x03]q\x04}q\x05(X\x02\0\0\0idq\x06K\x07X\x02\0\0\0okq\x07\x88uau."s;
  EXPECT_EQ(Read(bytes), ParseJson(R"({"version": "2.9", "entries": [{"id": 7, "ok": true}]})"));
}

TEST(Pickle, ReadsNumbersOfAllSizes) {
  EXPECT_EQ(Read("\x80\x02(K\xffM\xff\xffJ\xff\xff\xff\xff\x8a\x08\x01\0\0\0\0\0\0\x80\x8a\0\x8a\x01\xfet."s),
            ParseJson("[255, 65535, -1, -9223372036854775807, 0, -2]"));
  EXPECT_EQ(Read("G\x3f\xf8\0\0\0\0\0\0."s), Json(1.5));
  EXPECT_EQ(Read("(I42\nI01\nL-7L\nF2.5\nNl."s), ParseJson("[42, true, -7, 2.5, null]"));
  EXPECT_THAT(ErrorOf("\x8a\x09\0\0\0\0\0\0\0\0\x01."s), HasSubstr("more than 64 bits"));
}

TEST(Pickle, OfManyKeysNoneIsLookedForAmongAllBefore) {
  constexpr uint32_t kKeys = 100'000;
  std::string bytes = "\x80\x02}("s;
  for (uint32_t key = 0; key < kKeys; ++key) {
    bytes += "J";
    for (uint32_t byte = 0; byte < 4; ++byte) bytes += static_cast<char>(key >> 8 * byte);
    bytes += "K\x01"s;
  }
  EXPECT_EQ(Read(bytes + "u.").size(), kKeys);
  EXPECT_EQ(Read("\x80\x02}(K\x01K\x02K\x05K\x06K\x01K\x03u."s), ParseJson(R"({"1": 3, "5": 6})"));
}

TEST(Pickle, TextIsKeptAndRepeated) {
  EXPECT_EQ(Read("\x80\x04\x95\x10\0\0\0\0\0\0\0]\x94(\x8c\x04ring\x94h\x01h\x01\x65."s),
            ParseJson(R"(["ring", "ring", "ring"])"));
  EXPECT_EQ(Read("(K\x01K\x02tq\0h\0\x86."s), ParseJson("[[1, 2], [1, 2]]"));
  EXPECT_THAT(ErrorOf("]q\0h\0a."s), HasSubstr("nested more than 64 deep"));  // a list that holds itself
  EXPECT_THAT(ErrorOf("h\x05."s), HasSubstr("was not kept"));
}

// A text of 1 MB, said once and meant 300,000 times, would be 300 GB.
TEST(Pickle, TextIsRepeatedWithinMeasure) {
  const auto repeated = [](int times) {
    std::string bytes = "\x80\x02(X\0\0\x10\0"s + std::string(1 << 20, 'a') + "q\0"s;
    for (int i = 1; i < times; ++i) bytes += "h\0"s;
    return bytes + "l.";
  };
  EXPECT_EQ(Read(repeated(20)).size(), 20u);
  EXPECT_THAT(ErrorOf(repeated(300'000)), HasSubstr("repeats itself beyond all measure"));
}

TEST(Pickle, RefusesWhatWouldRunCode) {
  EXPECT_THAT(ErrorOf("cos\nsystem\n(X\x02\0\0\0idtR."s), HasSubstr("byte 0: GLOBAL os system is refused"));
  EXPECT_THAT(ErrorOf("\x80\x04\x8c\x02os\x8c\x06system\x93."s), HasSubstr("STACK_GLOBAL os system is refused"));
  EXPECT_THAT(ErrorOf("NR."s), HasSubstr("byte 1: REDUCE is refused"));
  EXPECT_THAT(ErrorOf("Nb."s), HasSubstr("BUILD is refused"));
}

TEST(Pickle, SaysWhatIsDamaged) {
  EXPECT_EQ(ErrorOf(""), "cut off after 0 bytes");
  EXPECT_EQ(ErrorOf("\x80\x02}q"s), "cut off after 4 bytes");
  EXPECT_EQ(ErrorOf("X\xff\xff\xff\x7f"s), "cut off after 5 bytes");
  EXPECT_THAT(ErrorOf("}K\x01s."s), HasSubstr("sets a member of what is no dict"));
  EXPECT_THAT(ErrorOf("(K\x01."s), HasSubstr("expected one value"));
  EXPECT_THAT(ErrorOf("K\x01\x61."s), HasSubstr("adds to what is no list"));
  EXPECT_THAT(ErrorOf("a."s), HasSubstr("fewer values than it takes"));
  EXPECT_THAT(ErrorOf("\xff"s), HasSubstr("opcode 0xff"));
  EXPECT_THAT(ErrorOf(std::string(100, ']') + std::string(99, 'a') + "."), HasSubstr("nested more than 64 deep"));
}

// Of objects: torch.Size((4, 8)) with a dict built into it, named and not made.
TEST(Pickle, AGraphNamesWhatItsReaderAllows) {
  constexpr std::string_view kSize[] = {"torch.Size", "torch.float32"};
  const std::string bytes =
      "\x80\x02"
      "ctorch\nSize\nK\x04K\x08\x86\x85R}X\x01\0\0\0dctorch\nfloat32\nsb."s;
  const absl::StatusOr<PickleGraph> graph = ReadPickleGraph(bytes, {.classes = kSize});
  ASSERT_TRUE(graph.ok()) << graph.status();
  const PickleValue& object = graph->At(graph->root);
  EXPECT_EQ(object.kind, PickleKind::kObject);
  EXPECT_EQ(object.text, "torch.Size");
  uint64_t left = 10;
  EXPECT_EQ(PlainValue(*graph, object.args, left).value(), ParseJson("[[4, 8]]"));
  const PickleValue& state = graph->At(object.state);
  EXPECT_EQ(graph->At(state.parts[1]).text, "torch.float32");
  EXPECT_EQ(left, 6U);
  EXPECT_EQ(Message(PlainValue(*graph, object.state, left).status()), "torch.float32 is no plain value");
  EXPECT_EQ(Message(ReadPickleGraph("cos\nsystem\n.", {.classes = kSize, .expected = "tensors"}).status()),
            "byte 0: GLOBAL os system is refused: it makes objects by running code; expected tensors");
  EXPECT_THAT(Message(ReadPickleGraph("K\x01)R."s, {.classes = kSize}).status()), HasSubstr("REDUCE is refused"));
  EXPECT_THAT(Message(ReadPickleGraph("K\x01Q."s, {.classes = kSize}).status()), HasSubstr("BINPERSID is refused"));
  EXPECT_EQ(ReadPickleGraph("K\x01Q."s, {.persistent = true})->values.back().kind, PickleKind::kPersistent);
}

// The root must be what its reader allows; of what lies below it a name is enough.
TEST(Pickle, AGraphMayNameWhatItsReaderDoesNotAllow) {
  constexpr std::string_view kSize[] = {"torch.Size"};
  const PickleNames names{.classes = kSize, .foreign = true, .expected = "tensors"};
  const auto graph = ReadPickleGraph("](cos\nsystem\n(X\x02\0\0\0idtRL99999999999999999999L\ne."s, names);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const std::vector<PickleId>& parts = graph->At(graph->root).parts;
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(graph->At(parts[0]).kind, PickleKind::kObject);
  EXPECT_EQ(graph->At(parts[0]).text, "os.system");
  EXPECT_EQ(graph->At(parts[1]).kind, PickleKind::kUnreadable);
  EXPECT_EQ(graph->At(parts[1]).text, "an integer of more than 64 bits");
  EXPECT_EQ(Message(ReadPickleGraph("cos\nsystem\n)R."s, names).status()),
            "byte 0: GLOBAL os system is refused: it makes objects by running code; expected tensors");
  EXPECT_THAT(Message(ReadPickleGraph("\x8f."s, names).status()), HasSubstr("EMPTY_SET is refused"));
  EXPECT_THAT(ErrorOf("L99999999999999999999L\n."s), HasSubstr("more than 64 bits"));
}

// A list of ten numbers, kept as a tuple, ten of it, ten of that, and so on: small to write, large to hold.
TEST(Pickle, GrowsNoMoreThanItsFile) {
  std::string bytes = "K\x01q\0"s;
  for (char level = 0; level < 60; ++level) {
    bytes += "0(";
    for (int i = 0; i < 10; ++i) bytes += std::string("h") + level;
    bytes += std::string("tq") + static_cast<char>(level + 1);
  }
  EXPECT_THAT(ErrorOf(bytes + "."), HasSubstr("repeats itself beyond all measure"));
}

}  // namespace
}  // namespace lockstep::trace
