// Tar shards in the manner of WebDataset: neighbouring members that share a name up to its first dot are one sample,
// its image is the member .jpg, .jpeg, .png or .webp, its label the number in its member .cls. Two of one name are an
// error, as there; hidden members, whose name begins with a dot, are none of a sample. Plain, pax and GNU
// archives (long names, sizes beyond 8 GiB), not compressed.
#pragma once

#include "lockstep/prepare/data_file.h"
#include "lockstep/prepare/source.h"

namespace lockstep::prepare {

inline constexpr uint64_t kMaxShort = 32;
struct TarMember {
  std::string name;
  uint64_t offset = 0, bytes = 0;  // of the content
  std::string text;                // the content, of one of at most kMaxShort bytes: it lies beside the header
};
// The regular files of an archive, in its order. A header whose sum is wrong is an error, as are an archive that ends
// within a member, anything but the zeros of a record behind its end, and a sparse member. `others`, unless it is null:
// how many members are neither that nor folders, such as links.
absl::StatusOr<std::vector<TarMember>> ListTar(NearReader& file, uint64_t* others = nullptr);

// Archives, in this order. `what` names them all; `beside` is how much lies there that is none, to be counted.
absl::StatusOr<std::unique_ptr<Source>> OpenTar(Files& files, const std::string& what,
                                                const std::vector<std::string>& paths, uint64_t beside = 0);

}  // namespace lockstep::prepare
