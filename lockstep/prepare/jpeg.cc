#include "lockstep/prepare/jpeg.h"

#include <algorithm>
#include <array>

#include "lockstep/base/check.h"
#include "lockstep/prepare/cmyk.h"
#include "lockstep/prepare/entropy.h"
#include "lockstep/prepare/jpeg_guard.h"

namespace lockstep::prepare {
namespace {

constexpr int kMargin = 2;         // pixels that fancy upsampling may look at, beside the crop
constexpr size_t kKept = 1 << 18;  // bytes of a buffer, between images
constexpr int kStrip = 16;         // rows, of one or two rows of units
constexpr int kMaxScans = 200;  // of a progressive file; encoders write about ten, and each costs a pass over the image

JDIMENSION Dimension(int value) { return static_cast<JDIMENSION>(value); }

}  // namespace

struct JpegDecoder::Library {
  JpegGuard guard;
  Entropy entropy{guard};
  jpeg_decompress_struct info{};
  jpeg_progress_mgr progress{};
  // What the guarded functions work on.
  Bytes jpeg;
  Size size;
  Region crop;
  Target target;
  bool own_entropy = false;  // asked for, then: in use
  int left = 0;              // of what is decoded
  int width = 0;

  Library() {
    info.err = guard.manager();
    info.client_data = &entropy;
    jpeg_create_decompress(&info);
    progress.progress_monitor = OnProgress;
    info.progress = &progress;
  }
  ~Library() { jpeg_destroy_decompress(&info); }

  static void OnProgress(j_common_ptr common);
  static void Begin(void* library);
  static void Read(void* library);
  static void End(void* library) { jpeg_abort_decompress(&static_cast<Library*>(library)->info); }
  void BeginDecoding();
  void ReadRows();
  void ReadStrip(int count, size_t stride);  // into the image, from its top
};

void JpegDecoder::Library::OnProgress(j_common_ptr common) {
  if (reinterpret_cast<j_decompress_ptr>(common)->input_scan_number > kMaxScans)
    JpegGuard::Of(common).Fail("it has more than 200 scans");
}

void JpegDecoder::Library::Begin(void* library) { static_cast<Library*>(library)->BeginDecoding(); }
void JpegDecoder::Library::Read(void* library) { static_cast<Library*>(library)->ReadRows(); }

void JpegDecoder::Library::BeginDecoding() {
  jpeg_mem_src(&info, jpeg.data(), jpeg.size());
  jpeg_read_header(&info, TRUE);
  if (info.image_width != Dimension(size.width) || info.image_height != Dimension(size.height))
    guard.Fail("it has several frame headers, of different sizes");
  info.out_color_space = info.num_components == 4 ? JCS_CMYK : JCS_RGB;
  info.dct_method = JDCT_ISLOW;
  info.do_fancy_upsampling = TRUE;
  jpeg_start_decompress(&info);
  own_entropy = own_entropy && entropy.TakeOver(&info);
  JDIMENSION x = Dimension(std::max(crop.x - kMargin, 0));
  JDIMENSION columns = Dimension(std::min(crop.x + crop.width + kMargin, size.width)) - x;
  if (columns < info.output_width) jpeg_crop_scanline(&info, &x, &columns);  // moves x left, to a whole block
  left = static_cast<int>(x);
  width = static_cast<int>(columns);
}

// Nothing of the taker is on the stack when libjpeg gives up.
void JpegDecoder::Library::ReadRows() {
  const size_t stride = static_cast<size_t>(width) * static_cast<size_t>(info.output_components);
  if (crop.y > 0) jpeg_skip_scanlines(&info, Dimension(crop.y));
  for (int done = 0; done < crop.height; done += target.strip) {
    const int rows = std::min(target.strip, crop.height - done);
    ReadStrip(rows, stride);
    if (info.out_color_space == JCS_CMYK)
      CmykToRgb(target.image->buffer.data(), static_cast<size_t>(width) * static_cast<size_t>(rows));
    target.image->view = {target.image->buffer.data() + static_cast<size_t>(crop.x - left) * 3,
                          {crop.width, rows},
                          static_cast<size_t>(width) * 3};
    if (target.taker != nullptr) target.taker->Take(target.image->view);
  }
}

void JpegDecoder::Library::ReadStrip(int count, size_t stride) {
  uint8_t* row = target.image->buffer.data();
  for (int i = 0; i < count;) {
    std::array<JSAMPROW, 4> rows;
    const int want = std::min(count - i, static_cast<int>(rows.size()));
    for (int k = 0; k < want; ++k) rows[static_cast<size_t>(k)] = row + static_cast<size_t>(k) * stride;
    const auto got = static_cast<int>(jpeg_read_scanlines(&info, rows.data(), Dimension(want)));
    if (got == 0) guard.Fail("no row could be read");
    row += static_cast<size_t>(got) * stride;
    i += got;
  }
}

JpegDecoder::JpegDecoder() : library_(std::make_unique<Library>()) {}
JpegDecoder::~JpegDecoder() = default;

absl::Status JpegDecoder::Decode(Bytes jpeg, const JpegHead& head, const Region& crop, Image& image) {
  return DecodeTo({&image, nullptr, crop.height}, jpeg, head, crop);
}

absl::Status JpegDecoder::Decode(Bytes jpeg, const JpegHead& head, const Region& crop, RowTaker& taker) {
  const absl::Status status = DecodeTo({&strip_, &taker, std::min(kStrip, crop.height)}, jpeg, head, crop);
  strip_.buffer.Forget(kKept);
  return status;
}

absl::Status JpegDecoder::DecodeTo(const Target& target, Bytes jpeg, const JpegHead& head, const Region& crop) {
  LS_CHECK(Within(crop, head.size), "{} {} {} {}", crop.x, crop.y, crop.width, crop.height);
  traits_ = {};
  if (use_tiles_ && !head.tile_marker.empty()) {
    traits_.by_tiles = ParseTileIndex(jpeg, head, index_).ok();
    traits_.bad_index = !traits_.by_tiles;
  }
  if (!traits_.by_tiles) return DecodePlain(target, jpeg, head.size, crop);
  const TileCover cover = Cover(head, index_, crop);
  AssembleTiles(jpeg, head, index_, cover, assembled_);
  const Region inside{crop.x - cover.pixels.x, crop.y - cover.pixels.y, crop.width, crop.height};
  const absl::Status status =
      DecodePlain(target, assembled_.bytes(), {cover.pixels.width, cover.pixels.height}, inside);
  assembled_.Forget(kKept);
  return status;
}

absl::Status JpegDecoder::DecodePlain(const Target& target, Bytes jpeg, const Size& size, const Region& crop) {
  library_->entropy.Reset();
  absl::Status status = DecodeOnce(target, jpeg, size, crop, own_entropy_);
  if (library_->entropy.gave_up()) status = DecodeOnce(target, jpeg, size, crop, false);
  return status;
}

absl::Status JpegDecoder::DecodeOnce(const Target& target, Bytes jpeg, const Size& size, const Region& crop,
                                     bool own_entropy) {
  Library& work = *library_;
  work.jpeg = jpeg;
  work.size = size;
  work.crop = crop;
  work.target = target;
  work.own_entropy = own_entropy;
  bool done = work.guard.Run(Library::Begin, &work);
  traits_.damaged = work.guard.damaged();
  if (done) {
    const size_t stride = static_cast<size_t>(work.width) * static_cast<size_t>(work.info.output_components);
    target.image->buffer.Resize(stride * static_cast<size_t>(target.strip));
    if (target.taker != nullptr) target.taker->Begin();
    done = work.guard.Run(Library::Read, &work);
    traits_.damaged = traits_.damaged || work.guard.damaged();
  }
  traits_.own_entropy = work.own_entropy;
  const absl::Status status = done ? absl::OkStatus() : work.guard.Error();
  work.guard.Run(Library::End, &work);
  return status;
}

}  // namespace lockstep::prepare
