#include "lockstep/reshape/torch_file.h"

#include <gmock/gmock.h>

#include "lockstep/reshape/test_files.h"

namespace lockstep::reshape {
namespace {

using namespace lockstep::reshape::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::StatusOr<TorchFile> Read(const std::string& content) {
  checkpoint::MemoryDisk disk;
  Put(disk, "/x.pt", content);
  return ReadTorchFile(WholeFile(disk, "/x.pt").value(), "x.pt", "");
}
std::string ErrorOf(const std::string& content) { return Message(Read(content).status()); }
std::string ErrorOfPickle(const std::string& value, const std::vector<std::string>& storages = {}) {
  return ErrorOf(Archive(Pickle(value), storages));
}
std::string Ones(const std::string& key, int64_t elements) { return Storage("FloatStorage", key, elements); }
// The same bytes with one place written over.
std::string Bent(std::string content, size_t at, const std::string& with) {
  return content.replace(at, with.size(), with);
}

TEST(TorchFile, NamesTensorsAndValuesByTheWayToThem) {
  const std::string state =
      Dict({Text("w"), Tensor(Ones("0", 6), 0, {2, 3}, {3, 1}), Text("t"), Tensor(Ones("0", 6), 1, {3}, {1})});
  const std::string groups =
      List({Dict({Text("lr"), "G\x3f\xb9\x99\x99\x99\x99\x99\x9a", Text("params"), List({Int(0)})})});
  const std::string file = Archive(
      Pickle(Dict({Text("model"), state, Text("optim"), Dict({Text("param_groups"), groups}), Text("step"), Int(4)})),
      {Storing<float>({0, 1, 2, 3, 4, 5})});
  const absl::StatusOr<TorchFile> saved = Read(file);
  ASSERT_TRUE(saved.ok()) << saved.status();
  ASSERT_EQ(saved->tensors.size(), 2U);
  const SavedTensor& weight = saved->tensors[0];
  EXPECT_EQ(weight.name, "model.w");
  EXPECT_EQ(weight.dtype, "float32");
  EXPECT_THAT(weight.shape, ElementsAre(2, 3));
  EXPECT_THAT(weight.shards.front().strides, ElementsAre(3, 1));
  EXPECT_EQ(file.substr(weight.shards.front().at, 24), Storing<float>({0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(saved->tensors[1].shards.front().at, weight.shards.front().at + 4);
  ASSERT_EQ(saved->values.size(), 2U);
  EXPECT_EQ(saved->values[0].name, "optim.param_groups");
  EXPECT_EQ(saved->values[0].json, R"([{"lr":0.1,"params":[0]}])");
  EXPECT_EQ(saved->values[1].json, "4");
  EXPECT_THAT(saved->passed_over, IsEmpty());
}

// {0: {(torch.bfloat16, torch.float32): {"param": tensor}}}, as Megatron's distrib_optim.pt has it.
TEST(TorchFile, KeysMayBeNumbersAndTuplesOfDtypes) {
  const std::string key = Tuple({Class("torch", "bfloat16"), Class("torch", "float32")});
  const std::string buffer = Dict({key, Dict({Text("param"), Tensor(Ones("0", 2), 0, {2}, {1})})});
  const absl::StatusOr<TorchFile> saved = Read(Archive(Pickle(Dict({Int(0), buffer})), {Storing<float>({1, 2})}));
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->tensors.front().name, "0.(torch.bfloat16, torch.float32).param");
}

TEST(TorchFile, RefusesWhatWouldRunCode) {
  EXPECT_EQ(ErrorOfPickle(Call(Class("os", "system"), Tuple({Text("id")}))),
            "/x.pt: data.pkl: byte 2: GLOBAL os system is refused: it makes objects by running code; expected tensors "
            "and plain values");
  EXPECT_THAT(ErrorOfPickle(Call(Class("builtins", "getattr"), ")")), HasSubstr("GLOBAL builtins getattr is refused"));
}

TEST(TorchFile, SaysWhatIsNeitherTensorNorPlain) {
  const auto saved = Read(Archive(Pickle(Dict({Text("nan"), "G\x7f\xf8" + std::string(6, '\0'), Text("odd"),
                                               Call(Class("torch", "FloatStorage"), ")")})),
                                  {}));
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_THAT(saved->passed_over,
              ElementsAre("/x.pt: nan is not known here, neither a tensor nor a plain value",
                          "/x.pt: odd is of torch.FloatStorage, neither a tensor nor a plain value"));
}

// A script's device or dtype is not taken for a list or a text.
TEST(TorchFile, ASizeIsAListAndADeviceOrDtypeIsSaid) {
  const auto saved = Read(Archive(Pickle(Dict({Text("size"), Size({1, 2}), Text("device"),
                                               Call(Class("torch", "device"), Tuple({Text("cuda"), Int(1)})),
                                               Text("dtype"), Class("torch", "bfloat16")})),
                                  {}));
  ASSERT_TRUE(saved.ok()) << saved.status();
  ASSERT_EQ(saved->values.size(), 1U);
  EXPECT_EQ(saved->values[0].json, "[1,2]");
  EXPECT_THAT(saved->passed_over, ElementsAre("/x.pt: device is of torch.device, neither a tensor nor a plain value",
                                              "/x.pt: dtype is torch.bfloat16, neither a tensor nor a plain value"));
}

TEST(TorchFile, KeysThatAreNoTextAreNamedAsPythonShowsThem) {
  const auto saved =
      Read(Archive(Pickle(Dict({"N", Int(1), "\x88", Int(2), "G\x3f\xf8" + std::string(6, '\0'), Int(3)})), {}));
  ASSERT_TRUE(saved.ok()) << saved.status();
  ASSERT_EQ(saved->values.size(), 3U);
  EXPECT_EQ(saved->values[0].name, "None");
  EXPECT_EQ(saved->values[1].name, "True");
  EXPECT_EQ(saved->values[2].name, "1.5");
}

// Of dtypes that have no storage of their own, torch names the dtype and counts bytes.
TEST(TorchFile, KnowsDtypesThatOnlyTorch2Has) {
  for (const auto& [dtype, bytes] : {std::pair("complex32", 4),
                                     {"uint16", 2},
                                     {"float8_e4m3fn", 1},
                                     {"float8_e4m3fnuz", 1},
                                     {"float8_e5m2fnuz", 1},
                                     {"float8_e8m0fnu", 1}}) {
    const std::string storage =
        Tuple({Text("storage"), Class("torch.storage", "UntypedStorage"), Text("0"), Text("cpu"), Int(6 * bytes)}) +
        "Q";
    const std::string hooks = Call(Class("collections", "OrderedDict"), ")");
    const std::string tensor =
        Call(Class("torch._utils", "_rebuild_tensor_v3"),
             Tuple({storage, Int(2), Sizes({2, 2}), Sizes({2, 1}), "\x89", hooks, Class("torch", dtype)}));
    const auto saved =
        Read(Archive(Pickle(Dict({Text("w"), tensor})), {std::string(static_cast<size_t>(6 * bytes), 'x')}));
    ASSERT_TRUE(saved.ok()) << dtype << ": " << saved.status();
    EXPECT_EQ(saved->tensors.front().dtype, dtype);
    const Shard& shard = saved->tensors.front().shards.front();
    EXPECT_EQ(shard.at - shard.storage_at, static_cast<uint64_t>(2 * bytes)) << dtype;
  }
}

TEST(TorchFile, RefusesSizesThatAreWrong) {
  const std::vector<std::string> storage = {Storing<float>({0, 1, 2, 3})};
  const auto error = [&](const std::string& tensor) { return ErrorOfPickle(Dict({Text("w"), tensor}), storage); };
  EXPECT_THAT(error(Tensor(Ones("0", 5), 0, {4}, {1})), HasSubstr("w: its storage data/0 has 16 bytes, expected 5"));
  EXPECT_THAT(error(Tensor(Ones("1", 4), 0, {4}, {1})), HasSubstr("its storage data/1 is missing"));
  EXPECT_THAT(error(Tensor(Ones("0", 4), 1, {4}, {1})), HasSubstr("it reaches beyond the 4 elements"));
  EXPECT_THAT(error(Tensor(Ones("0", 4), 0, {2, 2}, {1, INT64_MAX})), HasSubstr("it reaches beyond"));
  EXPECT_THAT(error(Tensor(Ones("0", 4), 0, {INT64_MAX, 4}, {0, 0})), HasSubstr("larger than any memory"));
  EXPECT_THAT(error(Tensor(Ones("0", 4), -1, {4}, {1})), HasSubstr("its sizes are damaged"));
  EXPECT_THAT(error(Tensor(Ones("0", 4), 0, {4}, {})), HasSubstr("its sizes are damaged"));
  EXPECT_THAT(ErrorOfPickle(Dict({Text("a.b"), Int(1), Text("a"), Dict({Text("b"), Int(2)})})),
              HasSubstr("two things are named a.b"));
}

// The storage of x.conj() is that of x.
TEST(TorchFile, RefusesViewsThatTorchComputesAnew) {
  const auto view = [](const std::string& version, const std::string& bits) {
    std::vector<std::string> args = {
        Storage("ComplexFloatStorage", "0", 2),        Int(0), Sizes({2}), Sizes({1}), "\x89",
        Call(Class("collections", "OrderedDict"), ")")};
    if (version == "3") args.push_back(Class("torch", "complex64"));
    args.push_back(bits);
    return Archive(Pickle(Dict({Text("w"), Call(Class("torch._utils", "_rebuild_tensor_v" + version), Tuple(args))})),
                   {Storing<float>({1, 2, 3, 4})});
  };
  for (const char* version : {"2", "3"}) {
    EXPECT_THAT(ErrorOf(view(version, Dict({Text("conj"), "\x88"}))),
                HasSubstr("w: it is a view with the bit \"conj\""));
    EXPECT_THAT(ErrorOf(view(version, Dict({Text("neg"), "\x88"}))), HasSubstr("with the bit \"neg\""));
    EXPECT_TRUE(Read(view(version, "}")).ok());
    EXPECT_TRUE(Read(view(version, "N")).ok());
  }
}

// The number 7 of a pickle becomes 71.
TEST(TorchFile, ThePickleHasTheSumThatTheArchiveSays) {
  const std::string good = Archive(Pickle("K\x07"), {});
  const absl::Status status = Read(Bent(good, good.find("K\x07"), "K\x47")).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("their archive says"));
}

// In a file that was saved without, all of them are 0; one alone is damaged.
TEST(TorchFile, AnArchiveWithoutSumsIsReadAndSaid) {
  const std::string good = Archive(Pickle("K\x07"), {Storing<float>({1, 2})});
  const std::string without = WithoutSums(good);
  const auto saved = Read(Bent(without, without.find("K\x07"), "K\x47"));
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_FALSE(saved->has_sums);
  EXPECT_TRUE(Read(good)->has_sums);
  EXPECT_TRUE(absl::IsDataLoss(Read(Bent(good, good.find("PK\x01\x02") + 16, std::string(4, '\0'))).status()));
}

TEST(TorchFile, WhatBeginsAsAPickleIsOfBefore) {
  const absl::Status status = Read("\x80\x02\x8a\nl\xfc\x9c").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(Message(status), HasSubstr("the format of before torch 1.6, or no file of torch.save"));
  for (const char* other : {"\x80\x46zzz", "\x80\xff", "\x80"}) EXPECT_TRUE(absl::IsDataLoss(Read(other).status()));
}

// numpy's numbers, sets, integers of any size: what is beside them is read.
TEST(TorchFile, WhatCanNotBeReadIsSaidWhereItStands) {
  const std::string scalar = Call(Class("numpy.core.multiarray", "scalar"),
                                  Tuple({Made(Call(Class("numpy", "dtype"), Tuple({Text("f8")})), Tuple({Int(3)})),
                                         Call(Class("_codecs", "encode"), Tuple({Text("x"), Text("latin1")}))}));
  const std::string large = "\x8a\x0a" + std::string(10, '\1');
  const auto saved = Read(Archive(
      Pickle(Dict({Text("w"), Tensor(Ones("0", 2), 0, {2}, {1}), Text("best"), scalar, Text("seen"),
                   Call(Class("__builtin__", "set"), Tuple({List({Int(1)})})), Text("new"), "\x8f(" + Int(1) + "\x90",
                   Text("frozen"), "(" + Int(1) + "\x91", Text("list"), List({Int(1), large, Text("t")}), Text("code"),
                   Call(Call(Class("functools", "partial"), ")"), ")")})),
      {Storing<float>({1, 2})}));
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->tensors.front().name, "w");
  ASSERT_EQ(saved->values.size(), 2U);
  EXPECT_EQ(saved->values[0].name, "list.0");
  EXPECT_EQ(saved->values[1].json, "\"t\"");
  EXPECT_THAT(saved->passed_over,
              ElementsAre("/x.pt: best is of numpy.core.multiarray.scalar, neither a tensor nor a plain value",
                          "/x.pt: seen is of __builtin__.set, neither a tensor nor a plain value",
                          "/x.pt: new is a set, neither a tensor nor a plain value",
                          "/x.pt: frozen is a frozenset, neither a tensor nor a plain value",
                          "/x.pt: list.1 is an integer of more than 64 bits, neither a tensor nor a plain value",
                          "/x.pt: code is made by running code, neither a tensor nor a plain value"));
}

// What is lost would be a tensor of the model.
TEST(TorchFile, RefusesClassesThatHoldTensors) {
  const std::string sparse =
      Call(Class("torch._utils", "_rebuild_sparse_tensor"), Tuple({List({Tensor(Ones("0", 2), 0, {2}, {1})})}));
  const std::string model = Made(Class("mine", "Model"), Dict({Text("w"), Tensor(Ones("0", 2), 0, {2}, {1})}));
  const std::vector<std::string> storage = {Storing<float>({1, 2})};
  for (const std::string& value : {sparse, model, "\x8f(" + sparse + "\x90"}) {
    const absl::Status status = Read(Archive(Pickle(Dict({Text("n"), Int(1), Text("v"), value})), storage)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(Message(status), HasSubstr("has tensors in it"));
  }
}

TEST(TorchFile, RefusesArchivesThatAreWrong) {
  const std::string good = Floats({2}, {1, 2});
  const size_t directory = good.find("PK\x01\x02"), end = good.find("PK\x05\x06");
  ASSERT_TRUE(Read(good).ok());
  EXPECT_THAT(ErrorOf("no zip"), HasSubstr("expected a file of torch.save of torch 1.6 or newer"));
  EXPECT_THAT(ErrorOf(good.substr(0, good.size() - 1)), HasSubstr("it has no directory at its end"));
  EXPECT_THAT(ErrorOf(Bent(good, directory + 10, Bytes(uint16_t{8}))), HasSubstr("is compressed"));
  EXPECT_THAT(ErrorOf(Bent(good, directory + 8, Bytes(uint16_t{1}))), HasSubstr("is encrypted"));
  EXPECT_THAT(ErrorOf(Bent(good, directory + 20, Bytes(uint64_t{0x7000000070000000}))),
              HasSubstr("of 1879048192 bytes at 0 lies outside"));
  EXPECT_THAT(ErrorOf(Bent(good, directory + 42, Bytes(uint32_t{1}))), HasSubstr("has no header"));
  EXPECT_THAT(ErrorOf(Bent(good, end + 16, Bytes(uint32_t{0x70000000}))), HasSubstr("its directory lies outside"));
  EXPECT_THAT(ErrorOf(Bent(good, directory, "xx")), HasSubstr("its directory is damaged"));
  EXPECT_THAT(ErrorOf(Zip({{"a/data.pkl", Pickle(Int(1))}, {"a/byteorder", "big"}})), HasSubstr("big endian"));
  EXPECT_THAT(ErrorOf(Zip({{"a/other", "x"}})), HasSubstr("it is not of torch.save"));
}

}  // namespace
}  // namespace lockstep::reshape
