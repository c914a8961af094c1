#include "lockstep/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "lockstep/checkpoint/test_slot.h"

namespace lockstep::checkpoint {
namespace {

using testing::HasSubstr;

std::span<const std::byte> MetaOf(const TestSlot& slot) {
  return std::span<const std::byte>(slot.content).first(slot.meta_bytes);
}

std::string HeadText(const TestSlot& slot) {
  const auto table = ReadTable(MetaOf(slot), slot.content.size());
  return RenderHead(FileOrder(table.value()), MetaOf(slot)).value();
}

absl::StatusOr<Head> Parse(const std::string& text, uint64_t data_bytes) {
  return ParseHead(std::as_bytes(std::span<const char>(text)), text.size() + data_bytes);
}

uint64_t DataBytes(const TestSlot& slot) {
  uint64_t bytes = 0;
  const std::vector<Tensor> table = ReadTable(MetaOf(slot), slot.content.size()).value();
  for (const Tensor& tensor : table) bytes += tensor.bytes;
  return bytes;
}

TEST(Safetensors, TheHeadIsWhatTheFormatSays) {
  const TestSlot slot = MakeTestSlot(1);
  const std::string text = HeadText(slot);
  EXPECT_EQ(text.size() % 8, 0u);
  EXPECT_EQ(text[8], '{');
  const Head head = Parse(text, DataBytes(slot)).value();
  EXPECT_EQ(std::vector<std::byte>(MetaOf(slot).begin(), MetaOf(slot).end()), head.meta);
  for (const Tensor& tensor : head.tensors)
    EXPECT_EQ(tensor.file_offset % ElementBytes(tensor.dtype), 0u) << tensor.name;
  EXPECT_THAT(text, HasSubstr(R"("weight":{"dtype":"F32","shape":[4,6],"data_offsets":[8,104]})"));
  EXPECT_THAT(text,
              HasSubstr(R"("lockstep.torch":"{\"odd\":{\"dtype\":\"complex128\",\"shape\":[3],\"strides\":null}}")"));
}

TEST(Safetensors, ASlotWithoutTensorsHasAFileToo) {
  const TestSlot slot = MakeSlotOf({}, 1);
  EXPECT_TRUE(Parse(HeadText(slot), 0)->tensors.empty());
}

TEST(Safetensors, RefusesHoles) {
  const TestSlot slot = MakeTestSlot(1);
  EXPECT_THAT(Message(Parse(HeadText(slot), DataBytes(slot) + 1).status()), HasSubstr("bytes, the file has"));
  EXPECT_FALSE(Parse(HeadText(slot), DataBytes(slot) - 1).ok());
  std::string moved = HeadText(slot);
  moved.replace(moved.find("[8,104]"), 7, "[9,105]");
  EXPECT_THAT(Message(Parse(moved, DataBytes(slot)).status()), HasSubstr("weight"));
}

TEST(Safetensors, RefusesAStateThatIsTooLargeForAHead) {
  const TestSlot slot = MakeTestSlot(1);
  const std::vector<std::byte> meta(kMaxHead / 4 * 3 + 100);
  EXPECT_THAT(Message(RenderHead({}, meta).status()), HasSubstr("keep long histories in tensors"));
}

TEST(Safetensors, NoBytesMakeTheReaderFail) {
  const TestSlot slot = MakeTestSlot(1);
  const std::string good = HeadText(slot);
  std::mt19937 random(3);
  for (int i = 0; i < 3000; ++i) {
    std::string bad = good;
    for (int flips = 0; flips < 3; ++flips) bad[random() % bad.size()] = static_cast<char>(random());
    const auto bytes = std::as_bytes(std::span<const char>(bad));
    const auto size = HeadBytes(bytes.first(8), bad.size());
    if (size.ok()) (void)ParseHead(bytes.first(*size), bad.size());
  }
}

TEST(Table, SaysWhatIsWrong) {
  const auto error = [](const Tensor& tensor, const auto& change) {
    TestSlot slot = MakeSlotOf({tensor}, 1);
    std::string text(reinterpret_cast<const char*>(slot.content.data()), slot.content.size());
    change(text, slot);
    return Message(ReadTable(std::as_bytes(std::span<const char>(text)).first(slot.meta_bytes), text.size()).status());
  };
  const auto deep = [](std::string& text, TestSlot& slot) {
    text = R"([{"torch":)" + std::string(200'000, '[');
    const uint64_t length = text.size();
    text.insert(0, reinterpret_cast<const char*>(&length), sizeof(length));
    slot.meta_bytes = text.size();
  };
  EXPECT_EQ(error(MakeTensor("w", "F32", {4}), deep), "the table of tensors: nested more than 128 deep");
  const Tensor tensor = MakeTensor("w", "F32", {4});
  const auto swap = [](const char* from, const char* to) {
    return [=](std::string& text, TestSlot&) { text.replace(text.find(from), std::string(from).size(), to); };
  };
  EXPECT_EQ(error(tensor, swap("F32", "F31")), "tensor w has the unknown dtype F31");
  EXPECT_EQ(error(tensor, swap("[4]", "[5]")), "tensor w has 16 bytes, its dtype and shape make 20");
  EXPECT_THAT(error(tensor, swap(R"("offset":0)", R"("offset":9)")), HasSubstr("tensor w lies at"));
  EXPECT_THAT(error(tensor, swap("\"w\"", "\"w ")), HasSubstr("the table of tensors: byte "));
  EXPECT_THAT(error(tensor, [](std::string& text, TestSlot&) { text += "x"; }), HasSubstr("the table ends at"));
  EXPECT_THAT(error(tensor, [](std::string&, TestSlot& slot) { slot.meta_bytes = 7; }),
              HasSubstr("another client wrote it"));
}

}  // namespace
}  // namespace lockstep::checkpoint
