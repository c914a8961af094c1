#include "lockstep/trace/chakra_writer.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>

#include <cmath>

#include "lockstep/base/file.h"

namespace lockstep::trace {
namespace {

using google::protobuf::internal::WireFormatLite;

// Numbers of the fields of et_def.proto.
enum MetadataField { kVersion = 1 };
enum NodeField { kId = 1, kName = 2, kType = 3, kDataDeps = 5, kDuration = 7, kAttribute = 10 };
enum AttributeField { kAttributeName = 1, kInt64 = 9, kBool = 27, kString = 29 };
constexpr const char* kSchema = "0.0.4";

// The bytes of one message.
class MessageWriter {
 public:
  void Number(int field, uint64_t value) {
    out_.WriteTag(WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_VARINT));
    out_.WriteVarint64(value);
  }
  void Text(int field, const std::string& text) {
    out_.WriteTag(WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
    out_.WriteVarint32(static_cast<uint32_t>(text.size()));
    out_.WriteString(text);
  }
  std::string Bytes() && {
    out_.Trim();
    return std::move(bytes_);
  }

 private:
  std::string bytes_;
  google::protobuf::io::StringOutputStream stream_{&bytes_};
  google::protobuf::io::CodedOutputStream out_{&stream_};
};

void AddNumber(MessageWriter& node, const char* name, int field, int64_t value) {
  MessageWriter attribute;
  attribute.Text(kAttributeName, name);
  attribute.Number(field, static_cast<uint64_t>(value));
  node.Text(kAttribute, std::move(attribute).Bytes());
}

void AddText(MessageWriter& node, const char* name, const std::string& text) {
  MessageWriter attribute;
  attribute.Text(kAttributeName, name);
  attribute.Text(kString, text);
  node.Text(kAttribute, std::move(attribute).Bytes());
}

std::string NodeBytes(const ChakraOp& op) {
  MessageWriter node;
  node.Number(kId, op.id);
  node.Text(kName, op.name);
  node.Number(kType, static_cast<uint64_t>(op.type));
  for (const uint64_t id : op.waits_for) node.Number(kDataDeps, id);
  node.Number(kDuration, static_cast<uint64_t>(std::llround(op.duration_s * 1e6)));
  AddNumber(node, "is_cpu_op", kBool, 0);
  if (op.type != ChakraOp::Type::kCompute) AddNumber(node, "comm_size", kInt64, op.bytes);
  if (op.type == ChakraOp::Type::kCollective) {
    AddNumber(node, "comm_type", kInt64, op.collective);
    AddText(node, "pg_name", op.group);
  } else if (op.type != ChakraOp::Type::kCompute) {
    AddNumber(node, "comm_src", kInt64, op.source);
    AddNumber(node, "comm_dst", kInt64, op.destination);
    AddNumber(node, "comm_tag", kInt64, op.tag);
  }
  return std::move(node).Bytes();
}

std::string Delimited(const std::string& message) {
  std::string text;
  {
    google::protobuf::io::StringOutputStream stream(&text);
    google::protobuf::io::CodedOutputStream out(&stream);
    out.WriteVarint32(static_cast<uint32_t>(message.size()));
    out.WriteString(message);
  }
  return text;
}

}  // namespace

absl::Status WriteChakra(const std::string& path, std::span<const ChakraOp> ops) {
  MessageWriter metadata;
  metadata.Text(kVersion, kSchema);
  std::string text = Delimited(std::move(metadata).Bytes());
  for (const ChakraOp& op : ops) text += Delimited(NodeBytes(op));
  return WriteFileAtomically(path, text, kForReaders);
}

}  // namespace lockstep::trace
