// Tar shards in the manner of WebDataset: neighbouring members that share a name up to its first dot are one sample,
// its image is the member .jpg, .jpeg, .png or .webp, its label the number in its member .cls. Plain, pax and GNU
// archives (long names, sizes beyond 8 GiB), not compressed.
#pragma once

#include "lockstep/prepare/source.h"

namespace lockstep::prepare {

struct TarMember {
  std::string name;
  uint64_t offset = 0, bytes = 0;  // of the content
};
// The regular files of an archive, in its order. A header whose sum is wrong is an error, as is an archive that ends
// within a member.
absl::StatusOr<std::vector<TarMember>> ListTar(const std::string& path);

// An archive, or a directory: those in it, by name.
absl::StatusOr<std::unique_ptr<Source>> OpenTar(const std::string& path);

}  // namespace lockstep::prepare
