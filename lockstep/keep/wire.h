// What goes over a connection to a keeper: docs/formats/keep.md has the bytes. Little endian, as every machine here is.
// Whatever comes from outside is checked before it is believed or memory is taken for it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/keep/connection.h"
#include "lockstep/keep/outline.h"

namespace lockstep::keep {

inline constexpr uint64_t kMagic = 0x31305045454b534cULL;  // "LSKEEP01" in memory
enum class Purpose : uint32_t { kPut = 1, kGet = 2 };

// Opens every connection. The token is the run's: whoever does not know it is none of ours.
struct Greeting {
  uint64_t magic = kMagic;
  Purpose purpose = Purpose::kPut;
  uint32_t reserved = 0;
  std::array<char, 64> token{};
};
std::array<char, 64> TokenField(const std::string& token);

// Of a put: announces an outline, whose slots and hashes follow. Of a get: asks for one slot's content, or, with slot
// kOutlineOnly, for the outline.
inline constexpr uint32_t kOutlineOnly = 0xffffffff;
struct Head {
  uint64_t epoch = 0;
  int64_t step = 0;
  int32_t node = 0;
  uint32_t world_size = 0;
  uint32_t slots = 0;  // of a get: which one
  uint32_t chunks = 0;
};

// Yes, or no and a sentence of so many bytes.
struct Answer {
  uint32_t no = 0;  // 1: it is not had, or not given; 2: it was spoilt on its way, and another time it may not be
  uint32_t text_bytes = 0;
};

absl::Status WriteOutline(Connection& connection, const Outline& outline);
// Not validated yet, but no larger than kMostSlots and kMostChunks.
absl::StatusOr<Outline> ReadOutline(Connection& connection);
absl::StatusOr<Outline> ReadOutline(Connection& connection, const Head& head);

absl::Status WriteAnswer(Connection& connection, const absl::Status& status);
// The other side's no becomes FailedPrecondition with its sentence, or Aborted if it is of what was spoilt; a broken
// connection stays Unavailable.
absl::Status ReadAnswer(Connection& connection);

// Which of so many chunks are wanted.
absl::Status WriteWanted(Connection& connection, size_t chunks, const std::vector<size_t>& wanted);
absl::StatusOr<std::vector<size_t>> ReadWanted(Connection& connection, size_t chunks);

}  // namespace lockstep::keep
