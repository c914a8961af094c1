// A directory of images, or else of sounds, one folder per class, as torchvision's ImageFolder orders them: classes by
// name, then files by folder and name. Without folders: those that lie in it, of no class. Or the same as a list has
// it, such as of files behind HTTP, where nobody says what is there: classes are the folders beside the list.
#pragma once

#include <optional>

#include "lockstep/prepare/source.h"

namespace lockstep::prepare {

absl::StatusOr<std::unique_ptr<Source>> OpenFolder(const std::string& path);
// `paths`: of the list that lies at `list` (shard_list.h).
absl::StatusOr<std::unique_ptr<Source>> OpenListed(const std::string& list, const std::vector<std::string>& paths);
// By its extension, in any case: .jpg, .jpeg, .png or .webp; .flac or .wav. Nothing: neither.
std::optional<ItemKind> KindOfName(const std::string& name);

}  // namespace lockstep::prepare
