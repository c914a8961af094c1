#include "lockstep/keep/wire.h"

#include <algorithm>
#include <cstring>

namespace lockstep::keep {
namespace {

constexpr uint32_t kMostSlots = 4096;       // ranks of a node
constexpr uint32_t kMostChunks = 64 << 20;  // 64 TiB of a node
constexpr uint32_t kMostText = 4096;

struct WireSlot {
  uint64_t bytes = 0, meta_bytes = 0;
  uint32_t crc32c = 0, proof = 0;
};

}  // namespace

std::array<char, 64> TokenField(const std::string& token) {
  std::array<char, 64> field{};
  std::copy_n(token.begin(), std::min(token.size(), field.size()), field.begin());
  return field;
}

absl::Status WriteOutline(Connection& connection, const Outline& outline) {
  const Head head{outline.point.epoch.value(),
                  outline.point.step.value(),
                  outline.node,
                  outline.world_size,
                  static_cast<uint32_t>(outline.slots.size()),
                  static_cast<uint32_t>(outline.chunks.size())};
  LS_RETURN_IF_ERROR(connection.Write(head));
  for (const SlotHeader& slot : outline.slots)
    LS_RETURN_IF_ERROR(connection.Write(WireSlot{slot.bytes, slot.meta_bytes, slot.crc32c, slot.proof}));
  return connection.Write(std::as_bytes(std::span(outline.chunks)));
}

absl::StatusOr<Outline> ReadOutline(Connection& connection) {
  Head head;
  LS_RETURN_IF_ERROR(connection.Read(head));
  return ReadOutline(connection, head);
}

absl::StatusOr<Outline> ReadOutline(Connection& connection, const Head& head) {
  if (head.slots > kMostSlots || head.chunks > kMostChunks)
    return InvalidArgument("{} slots in {} chunks; at most {} in {}", head.slots, head.chunks, kMostSlots, kMostChunks);
  Outline outline{head.node, {EpochId(head.epoch), StepId(head.step)}, head.world_size, {}, {}};
  for (uint32_t i = 0; i < head.slots; ++i) {
    WireSlot slot;
    LS_RETURN_IF_ERROR(connection.Read(slot));
    outline.slots.push_back({slot.bytes, slot.meta_bytes, slot.crc32c, slot.proof});
  }
  // By and by: who announces many must send many.
  constexpr size_t kAtOnce = 4096;
  while (outline.chunks.size() < head.chunks) {
    const size_t before = outline.chunks.size();
    outline.chunks.resize(std::min<size_t>(head.chunks, before + kAtOnce));
    LS_RETURN_IF_ERROR(connection.Read(std::as_writable_bytes(std::span(outline.chunks).subspan(before))));
  }
  return outline;
}

absl::Status WriteAnswer(Connection& connection, const absl::Status& status) {
  const std::string text = status.ok() ? "" : Message(status).substr(0, kMostText);
  const uint32_t no = status.ok() ? 0 : absl::IsAborted(status) ? 2 : 1;
  LS_RETURN_IF_ERROR(connection.Write(Answer{no, static_cast<uint32_t>(text.size())}));
  return connection.Write(std::as_bytes(std::span(text)));
}

absl::Status ReadAnswer(Connection& connection) {
  Answer answer;
  LS_RETURN_IF_ERROR(connection.Read(answer));
  if (answer.text_bytes > kMostText) return InvalidArgument("an answer of {} bytes", answer.text_bytes);
  std::string text(answer.text_bytes, '\0');
  LS_RETURN_IF_ERROR(connection.Read(std::as_writable_bytes(std::span(text))));
  if (answer.no == 0) return absl::OkStatus();
  const auto code = answer.no == 2 ? absl::StatusCode::kAborted : absl::StatusCode::kFailedPrecondition;
  return MakeError(code, text.empty() ? "the other node said no, and not why" : text);
}

absl::Status WriteWanted(Connection& connection, size_t chunks, const std::vector<size_t>& wanted) {
  std::vector<uint8_t> bits((chunks + 7) / 8);
  for (const size_t chunk : wanted) bits[chunk / 8] = static_cast<uint8_t>(bits[chunk / 8] | 1u << chunk % 8);
  return connection.Write(std::as_bytes(std::span(bits)));
}

absl::StatusOr<std::vector<size_t>> ReadWanted(Connection& connection, size_t chunks) {
  std::vector<uint8_t> bits((chunks + 7) / 8);
  LS_RETURN_IF_ERROR(connection.Read(std::as_writable_bytes(std::span(bits))));
  std::vector<size_t> wanted;
  for (size_t chunk = 0; chunk < chunks; ++chunk)
    if ((bits[chunk / 8] >> chunk % 8 & 1) != 0) wanted.push_back(chunk);
  return wanted;
}

}  // namespace lockstep::keep
