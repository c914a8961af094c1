#include "lockstep/sampling/rest.h"

#include <cstring>

#include "lockstep/sampling/random.h"

namespace lockstep::sampling {
namespace {

constexpr std::string_view kMark = "lockstep-rest-1\n";

struct Header {
  uint64_t identity = 0, epoch = 0, lap = 0, size = 0, checksum = 0;
};

uint64_t Checksum(const Header& header, std::string_view bits) {
  uint64_t hash = Hash(Hash(header.identity, header.lap), header.epoch, header.size);
  for (const char byte : bits) hash = Mix((hash ^ static_cast<uint8_t>(byte)) + kGoldenGamma);
  return hash;
}

}  // namespace

bool IsRest(std::string_view state) { return state.starts_with(kMark); }

std::string SaveRest(const Rest& rest) {
  std::string bits((rest.left.size() + 7) / 8, '\0');
  for (size_t i = 0; i < rest.left.size(); ++i) {
    if (rest.left[i]) bits[i / 8] = static_cast<char>(static_cast<uint8_t>(bits[i / 8]) | 1U << (i % 8));
  }
  Header header{.identity = rest.identity, .epoch = rest.epoch, .lap = rest.lap, .size = rest.left.size()};
  header.checksum = Checksum(header, bits);
  std::string text(kMark);
  text.append(reinterpret_cast<const char*>(&header), sizeof header);
  return text + bits;
}

absl::StatusOr<Rest> LoadRest(std::string_view state, uint64_t identity, uint64_t size) {
  Header header;
  if (!IsRest(state) || state.size() < kMark.size() + sizeof header)
    return InvalidArgument("state of a job: cut short, or none at all");
  state.remove_prefix(kMark.size());
  std::memcpy(&header, state.data(), sizeof header);
  state.remove_prefix(sizeof header);
  if (header.identity != identity)
    return FailedPrecondition("state of a job: of another seed, data set or set of items than this job's");
  if (header.size != size || state.size() != (size + 7) / 8 || header.checksum != Checksum(header, state))
    return InvalidArgument("state of a job: damaged, its length or its checksum is another");
  Rest rest{.identity = header.identity, .epoch = header.epoch, .lap = header.lap, .left = std::vector<bool>(size)};
  for (size_t i = 0; i < size; ++i) rest.left[i] = (static_cast<uint8_t>(state[i / 8]) >> (i % 8) & 1U) != 0;
  return rest;
}

}  // namespace lockstep::sampling
