// A directory of images, or else of sounds, one folder per class, as torchvision's ImageFolder orders them: classes by
// name, then files by folder and name. Without folders: those that lie in it, of no class. Or the same as a list has
// it, such as of files behind HTTP, where nobody says what is there: classes are the folders beside the list.
#pragma once

#include <optional>

#include "lockstep/prepare/source.h"

namespace lockstep::prepare {

absl::StatusOr<std::unique_ptr<Source>> OpenFolder(const std::string& path);
// Classes are counted from `folder`, where the list lies (FolderOf, shard_list.h); a path that doesn't lead through it,
// over links or not, is of none.
absl::StatusOr<std::unique_ptr<Source>> OpenListed(const std::string& folder, const std::vector<std::string>& paths);
// By its extension, in any case: .jpg, .jpeg, .png or .webp; .flac or .wav. Nothing: neither.
std::optional<ItemKind> KindOfName(const std::string& name);

}  // namespace lockstep::prepare
