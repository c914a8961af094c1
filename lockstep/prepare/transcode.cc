#include "lockstep/prepare/transcode.h"

#include <cstdlib>
#include <cstring>

#include "lockstep/prepare/jpeg_guard.h"

namespace lockstep::prepare {
namespace {

constexpr int kWanted = 4, kWidest = 8;
constexpr int kMostTiles = 16'000;  // three bytes of length each must fit into one marker
constexpr size_t kMostMarker = 65'533;
constexpr int kMaxScans = 200;

// Coefficients from one JPEG into another. Holds C objects only, so libjpeg may leave it by longjmp.
struct Transcoder {
  JpegGuard guard;
  jpeg_decompress_struct in{};
  jpeg_compress_struct out{};
  jpeg_progress_mgr progress{};
  Bytes jpeg;
  int interval = 0;
  unsigned char* written = nullptr;
  unsigned long bytes = 0;

  Transcoder() {
    in.err = out.err = guard.manager();
    jpeg_create_decompress(&in);
    jpeg_create_compress(&out);
    progress.progress_monitor = OnProgress;
    in.progress = &progress;
    in.client_data = this;
  }
  ~Transcoder() {
    jpeg_destroy_compress(&out);
    jpeg_destroy_decompress(&in);
    std::free(written);
  }

  static void OnProgress(j_common_ptr common) {
    auto& self = *static_cast<Transcoder*>(common->client_data);
    if (self.in.input_scan_number > kMaxScans) self.guard.Fail("it has more than 200 scans");
  }
  static void Run(void* self) { static_cast<Transcoder*>(self)->Copy(); }
  void Copy();
  void CopyMarkers();
};

bool IsOurs(jpeg_saved_marker_ptr marker) {
  return marker->marker == kTileMarker && IsTileMarker({marker->data, marker->data_length});
}

// libjpeg writes JFIF and Adobe markers by itself.
bool IsWritten(const jpeg_compress_struct& out, jpeg_saved_marker_ptr marker) {
  const auto begins = [&](const char* text) {
    return marker->data_length >= 5 && std::memcmp(marker->data, text, 5) == 0;
  };
  return (out.write_JFIF_header && marker->marker == JPEG_APP0 && begins("JFIF")) ||
         (out.write_Adobe_marker && marker->marker == JPEG_APP0 + 14 && begins("Adobe"));
}

void Transcoder::CopyMarkers() {
  for (jpeg_saved_marker_ptr marker = in.marker_list; marker != nullptr; marker = marker->next)
    if (!IsOurs(marker) && !IsWritten(out, marker))
      jpeg_write_marker(&out, marker->marker, marker->data, marker->data_length);
}

void Transcoder::Copy() {
  jpeg_mem_src(&in, jpeg.data(), jpeg.size());
  jpeg_save_markers(&in, JPEG_COM, 0xFFFF);
  for (int i = 0; i < 16; ++i) jpeg_save_markers(&in, JPEG_APP0 + i, 0xFFFF);
  jpeg_read_header(&in, TRUE);
  jvirt_barray_ptr* coefficients = jpeg_read_coefficients(&in);
  jpeg_copy_critical_parameters(&in, &out);
  out.optimize_coding = TRUE;
  out.restart_interval = static_cast<unsigned>(interval);
  out.restart_in_rows = 0;
  jpeg_mem_dest(&out, &written, &bytes);
  jpeg_write_coefficients(&out, coefficients);
  CopyMarkers();
  jpeg_finish_compress(&out);
  jpeg_finish_decompress(&in);
}

// Lengths of the intervals, each with the marker behind it. Within entropy-coded data 0xFF is followed by 0, or is a
// marker.
std::vector<uint32_t> FindTiles(Bytes jpeg, size_t begin) {
  std::vector<uint32_t> lengths;
  for (size_t at = begin; at + 1 < jpeg.size();) {
    const void* found = std::memchr(jpeg.data() + at, 0xFF, jpeg.size() - at - 1);
    if (found == nullptr) break;
    at = static_cast<size_t>(static_cast<const uint8_t*>(found) - jpeg.data()) + 2;
    const uint8_t marker = jpeg[at - 1];
    if (marker == 0) continue;
    lengths.push_back(static_cast<uint32_t>(at - begin));
    begin = at;
    if (marker == 0xD9) break;
  }
  return lengths;
}

// The index goes right before the scan.
absl::Status Insert(Bytes jpeg, const JpegHead& head, const std::string& index, Buffer& out) {
  const size_t length = index.size() + 2;
  if (index.size() > kMostMarker) return MakeError(absl::StatusCode::kUnimplemented, "its tile index is too large");
  out.Resize(jpeg.size() + length + 2);
  uint8_t* at = out.data();
  std::memcpy(at, jpeg.data(), head.scan_at);
  at += head.scan_at;
  *at++ = 0xFF;
  *at++ = kTileMarker;
  *at++ = static_cast<uint8_t>(length >> 8);
  *at++ = static_cast<uint8_t>(length);
  std::memcpy(at, index.data(), index.size());
  at += index.size();
  std::memcpy(at, jpeg.data() + head.scan_at, jpeg.size() - head.scan_at);
  return absl::OkStatus();
}

}  // namespace

int TileWidth(const Size& mcus) {
  int best = 1;
  for (int width = 2; width <= kWidest; ++width)
    if (mcus.width % width == 0 && (best == 1 || std::abs(width - kWanted) < std::abs(best - kWanted))) best = width;
  while (best<mcus.width&& static_cast<int64_t>(mcus.width / best) * mcus.height> kMostTiles) {
    do ++best;
    while (mcus.width % best != 0);
  }
  return best;
}

absl::Status AddTileIndex(Bytes jpeg, const JpegHead& head, Buffer& out) {
  if (head.size.height > kMostTiles)
    return MakeError(absl::StatusCode::kUnimplemented, "it is too high for a tile index");
  Transcoder work;
  work.jpeg = jpeg;
  work.interval = TileWidth(head.mcus());
  if (!work.guard.Run(Transcoder::Run, &work)) return work.guard.Error();
  if (work.guard.damaged()) return DataLoss("its data is damaged: it stays as it is");
  const Bytes written(work.written, work.bytes);
  LS_ASSIGN_OR_RETURN(const JpegHead plain, ReadJpegHead(written));
  const Size mcus = plain.mcus();
  const std::vector<uint32_t> lengths = FindTiles(written, plain.entropy_at);
  const int across = mcus.width / work.interval;
  if (plain.progressive || plain.mcu != head.mcu ||
      lengths.size() != static_cast<size_t>(across) * static_cast<size_t>(mcus.height))
    return MakeError(absl::StatusCode::kUnimplemented, "its layout of components has no tile index");
  return Insert(written, plain, RenderTileIndex(across, mcus.height, work.interval, lengths), out);
}

}  // namespace lockstep::prepare
