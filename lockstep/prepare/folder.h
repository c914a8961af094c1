// A directory of images, one folder per class, as torchvision's ImageFolder orders them: classes by name, then files by
// folder and name. Without folders: the images that lie in it, of no class.
#pragma once

#include "lockstep/prepare/source.h"

namespace lockstep::prepare {

absl::StatusOr<std::unique_ptr<Source>> OpenFolder(const std::string& path);
// .jpg, .jpeg, .png or .webp, in any case.
bool IsImageName(const std::string& name);

}  // namespace lockstep::prepare
