// The manifest of a checkpoint on disk, manifest.json: what belongs to it, and the sums that prove it whole.
// docs/formats/checkpoint.md. Pure.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/checkpoint/restore.h"

namespace lockstep::checkpoint {

inline constexpr int kManifestVersion = 1;
inline constexpr char kManifestFile[] = "manifest.json";

struct ManifestFile {
  std::string name;
  uint64_t bytes = 0;
  uint32_t crc32c = 0;
  // The slot that the file was made from.
  uint64_t slot_bytes = 0, slot_meta_bytes = 0;
  uint32_t slot_crc32c = 0, slot_proof = 0;  // of freshness (client/proof.h); 0: none is known
  std::string tensors{};                     // 128 bits of XXH3 over the rank's tensors, in hex; empty: not known
  bool replica = false;                      // the script says that any rank's state is right for any other
  bool cut = false;                          // or that it cuts its state anew for a world of another size
};

struct Manifest {
  Point point;
  std::string job;
  std::string written;              // UTC, for people
  std::string layout;               // of the world that wrote it: JSON, as the job file has it; empty: not known
  std::vector<ManifestFile> files;  // by rank: as many as the world is large
};

// Any rank's state is right for any other, by the script's word or because their tensors are one and the same: a world
// of another size can take it.
bool AreReplicas(const Manifest& manifest);

// The script has said of all ranks that it cuts them anew.
bool AreCutAnew(const Manifest& manifest);

// "step_000000000123_epoch_2"; its order by (epoch, step) is that of its checkpoint.
std::string DirectoryName(const Point& point);
// Nothing for any other name.
std::optional<Point> PointOf(const std::string& directory_name);
// "rank_00003.safetensors"
std::string RankFileName(size_t rank);

// The files of a part, as text, and back.
std::string FilesText(const std::vector<ManifestFile>& files);
absl::StatusOr<std::vector<ManifestFile>> FilesFromText(const std::string& text);

Json ToJson(const Manifest& manifest);
absl::StatusOr<Manifest> ManifestFromJson(const std::string& text);

}  // namespace lockstep::checkpoint
