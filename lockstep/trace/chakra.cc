#include "lockstep/trace/chakra.h"

#include <fcntl.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <regex>
#include <unordered_set>

#include "lockstep/base/file.h"
#include "lockstep/trace/byte_source.h"
#include "lockstep/trace/kineto_name.h"

namespace lockstep::trace {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// Numbers of the fields of Node and AttributeProto in et_def.proto.
enum NodeField { kId = 1, kName = 2, kType = 3, kControlDeps = 4, kDataDeps = 5, kDuration = 7, kAttribute = 10 };
enum AttributeField {
  kAttributeName = 1,
  kInt32 = 7,
  kInt64 = 9,
  kUint32 = 11,
  kUint64 = 13,
  kBool = 27,
  kString = 29
};
enum NodeType { kCommSend = 5, kCommRecv = 6, kCommCollective = 7, kTypes = 8 };
constexpr std::array kCollectives = {
    "allreduce", "reduce",        "allgather",          "gather", "scatter", "broadcast",
    "alltoall",  "reducescatter", "reducescatterblock", "barrier"};
constexpr double kSecondsPerMicro = 1e-6;
constexpr int kLargestMessage = 64 << 20;

// An attribute of interest; numbers and texts alike.
struct Attributes {
  int64_t comm_type = -1, source = -1, destination = -1, tag = 0;
  std::string group;
};

bool ReadString(CodedInputStream& in, std::string& text) {
  uint32_t size = 0;
  return in.ReadVarint32(&size) && in.ReadString(&text, static_cast<int>(size));
}

// Calls `field` for each field of a message that stands behind its length; it returns false if it can't read it.
template <typename Field>
bool ReadMessage(CodedInputStream& in, const Field& field) {
  uint32_t size = 0;
  if (!in.ReadVarint32(&size) || size > kLargestMessage) return false;
  const auto limit = in.PushLimit(static_cast<int>(size));
  while (const uint32_t tag = in.ReadTag())
    if (!field(tag)) return false;
  const bool whole = in.ConsumedEntireMessage() && in.BytesUntilLimit() == 0;
  in.PopLimit(limit);
  return whole;
}

bool ReadAttribute(CodedInputStream& in, Attributes& attributes) {
  std::string name, text;
  uint64_t number = 0;
  const bool whole = ReadMessage(in, [&](uint32_t tag) {
    switch (WireFormatLite::GetTagFieldNumber(tag)) {
      case kAttributeName:
        return ReadString(in, name);
      case kString:
        return ReadString(in, text);
      case kInt32:
      case kInt64:
      case kUint32:
      case kUint64:
      case kBool:
        return in.ReadVarint64(&number);
      default:
        return WireFormatLite::SkipField(&in, tag);
    }
  });
  const auto value = static_cast<int64_t>(number);
  if (name == "comm_type") attributes.comm_type = value;
  if (name == "comm_src") attributes.source = value;
  if (name == "comm_dst") attributes.destination = value;
  if (name == "comm_tag") attributes.tag = value;
  if (name == "pg_name" || name == "comm_group") attributes.group = text.empty() ? std::to_string(value) : text;
  return whole;
}

// Repeated numbers, packed or one by one.
bool ReadNumbers(CodedInputStream& in, uint32_t tag, std::vector<uint64_t>& numbers) {
  uint64_t number = 0;
  if (WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_VARINT) {
    if (!in.ReadVarint64(&number)) return false;
    numbers.push_back(number);
    return true;
  }
  uint32_t size = 0;
  if (!in.ReadVarint32(&size) || size > kLargestMessage) return false;
  const auto limit = in.PushLimit(static_cast<int>(size));
  while (in.BytesUntilLimit() > 0) {
    if (!in.ReadVarint64(&number)) return false;
    numbers.push_back(number);
  }
  in.PopLimit(limit);
  return true;
}

bool ReadNode(CodedInputStream& in, ChakraNode& node, std::vector<uint64_t>& control) {
  uint32_t type = 0;
  uint64_t micros = 0;
  Attributes attributes;
  const bool whole = ReadMessage(in, [&](uint32_t tag) {
    switch (WireFormatLite::GetTagFieldNumber(tag)) {
      case kId:
        return in.ReadVarint64(&node.id);
      case kName:
        return ReadString(in, node.name);
      case kType:
        return in.ReadVarint32(&type) && type < kTypes;
      case kControlDeps:
        return ReadNumbers(in, tag, control);
      case kDataDeps:
        return ReadNumbers(in, tag, node.waits_for);
      case kDuration:
        return in.ReadVarint64(&micros);
      case kAttribute:
        return ReadAttribute(in, attributes);
      default:
        return WireFormatLite::SkipField(&in, tag);
    }
  });
  node.duration_s = static_cast<double>(micros) * kSecondsPerMicro;
  if (type == kCommSend || type == kCommRecv) {
    node.kind = "p2p";
    node.meets = fmt::format("{} to {}, tag {}", attributes.source, attributes.destination, attributes.tag);
  } else if (type == kCommCollective && attributes.comm_type >= 0) {  // without, it is the host that issues it
    const auto kind = static_cast<size_t>(attributes.comm_type);
    node.kind = kind < kCollectives.size() ? kCollectives[kind] : fmt::format("collective {}", kind);
    node.meets = "group " + attributes.group;
  }
  return whole;
}

std::optional<int> RankOf(const std::string& path) {
  static const std::regex numbered("\\.([0-9]{1,8})\\.et$");
  std::smatch match;
  if (std::regex_search(path, match, numbered)) return std::stoi(match[1].str());
  return ParseKinetoName(path).rank;
}

}  // namespace

absl::StatusOr<ChakraRank> ReadChakra(const std::string& path, std::optional<int> rank) {
  LS_RETURN_IF_ERROR(RefusePipe(path));
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return Errno(errno, "{}", path);
  ChakraRank read{path, RankOf(path).value_or(rank.value_or(-1)), {}, {}};
  if (read.rank < 0)
    return InvalidArgument("{}: the file's name does not tell the rank: name it rank-N.et, or say --rank N", path);
  google::protobuf::io::FileInputStream bytes(file.get());
  const auto at_end = [](CodedInputStream& in) {
    const void* data = nullptr;
    int size = 0;
    return !in.GetDirectBufferPointer(&data, &size);
  };
  {
    CodedInputStream in(&bytes);
    if (!ReadMessage(in, [&](uint32_t tag) { return WireFormatLite::SkipField(&in, tag); }))
      return InvalidArgument("{}: no Chakra execution trace: expected GlobalMetadata behind its length", path);
  }
  std::unordered_set<uint64_t> ids;
  std::vector<std::vector<uint64_t>> control;  // [node]
  while (true) {
    CodedInputStream in(&bytes);  // one for each node: a stream counts its bytes, up to 2 GB
    if (at_end(in)) break;
    ChakraNode node;
    if (!ReadNode(in, node, control.emplace_back()))
      return InvalidArgument("{}: node {} (\"{}\") can't be read: damaged, or the file ends too early", path,
                             read.nodes.size(), node.name);
    if (!ids.insert(node.id).second) return InvalidArgument("{}: two nodes have the id {}", path, node.id);
    read.nodes.push_back(std::move(node));
  }
  if (bytes.GetErrno() != 0) return Errno(bytes.GetErrno(), "{}", path);
  if (read.nodes.empty()) return InvalidArgument("{}: no nodes", path);
  // Of what was recorded, control dependencies say who called whom, often in circles; what an op waits for is in its
  // data dependencies. Generators of traces may have only the former.
  const bool recorded =
      std::any_of(read.nodes.begin(), read.nodes.end(), [](const ChakraNode& node) { return !node.waits_for.empty(); });
  for (size_t i = 0; i < control.size() && !recorded; ++i) read.nodes[i].waits_for = std::move(control[i]);
  return read;
}

}  // namespace lockstep::trace
