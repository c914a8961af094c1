// Tar shards in the manner of WebDataset: neighbouring members that share a name up to its first dot are one sample,
// its image is the member .jpg, .jpeg, .png or .webp, its label the number in its member .cls, in any case. Two of one
// name are an error, as there, and so is a sample that is not in one piece; hidden members, whose name begins with a
// dot, are none of a sample. Plain, pax and GNU archives (long names, sizes beyond 8 GiB), not compressed.
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
struct TarList {
  std::vector<TarMember> members;  // regular files, in the archive's order
  uint64_t others = 0;             // that are neither those nor folders, such as links
  bool has_end = false;            // without a block of zeros behind the last, members may be missing
};
// A header whose sum is wrong is an error, as are an archive that ends within a member or what pads it, anything but
// the zeros of a record behind its end, and a sparse member.
absl::StatusOr<TarList> ListTar(NearReader& file);

// Archives, in this order. `what` names them all; `beside` is how much lies there that is none, to be counted.
absl::StatusOr<std::unique_ptr<Source>> OpenTar(Files& files, const std::string& what,
                                                const std::vector<std::string>& paths, uint64_t beside = 0);

}  // namespace lockstep::prepare
