#include "lockstep/reshape/slice.h"

namespace lockstep::reshape {

absl::Status Slice::Read(uint64_t offset, std::span<std::byte> data) const {
  if (!Holds(offset, data.size()))
    return DataLoss("{}: {} bytes at {} of the {} that begin at {} leave them", path, data.size(), offset, bytes,
                    begin);
  return disk->Read(path, begin + offset, data);
}

absl::StatusOr<std::string> Slice::Text(uint64_t offset, uint64_t count) const {
  if (!Holds(offset, count)) return Read(offset, {static_cast<std::byte*>(nullptr), count});
  std::string text(count, '\0');
  LS_RETURN_IF_ERROR(Read(offset, std::as_writable_bytes(std::span(text))));
  return text;
}

absl::StatusOr<Slice> WholeFile(checkpoint::Disk& disk, const std::string& path) {
  LS_ASSIGN_OR_RETURN(const uint64_t bytes, disk.Size(path));
  return Slice{&disk, path, 0, bytes};
}

}  // namespace lockstep::reshape
