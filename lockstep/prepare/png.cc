#include "lockstep/prepare/png.h"

#include <png.h>

#include <array>
#include <csetjmp>
#include <cstring>

namespace lockstep::prepare {
namespace {

constexpr size_t kHeadBytes = 29;  // signature, length, name and data of the first chunk: width, height, five bytes
constexpr size_t kInterlaceAt = 28;
constexpr int kStrip = 16;  // rows
// Chunks that change no pixel here. Each may unpack to 8 MB, and a file may have a thousand.
constexpr png_byte kUnused[] = "eXIf\0hIST\0iCCP\0iTXt\0pCAL\0sCAL\0sPLT\0tEXt\0zTXt";

uint32_t Big32(Bytes bytes, size_t at) {
  return static_cast<uint32_t>(bytes[at]) << 24 | static_cast<uint32_t>(bytes[at + 1]) << 16 |
         static_cast<uint32_t>(bytes[at + 2]) << 8 | bytes[at + 3];
}

// As JpegGuard: libpng's errors end in a longjmp out of Run, which holds nothing that has a destructor.
struct Reading {
  Bytes left;
  Size size;
  uint8_t* out = nullptr;  // where all goes, unless there is a taker
  RowTaker* taker = nullptr;
  Region crop;
  Image* strip = nullptr;
  png_structp png = nullptr;
  png_infop info = nullptr;
  bool bad_sum = false;
  std::jmp_buf jump;
  std::array<char, 200> text{};

  bool Run();
  void Open();
  void ReadAll();
  void ReadStrips();
};

void OnError(png_structp png, png_const_charp message) {
  auto& reading = *static_cast<Reading*>(png_get_error_ptr(png));
  std::strncpy(reading.text.data(), message, reading.text.size() - 1);
  std::longjmp(reading.jump, 1);
}

void OnWarning(png_structp png, png_const_charp message) {
  for (const char* of_a_sum : {"IDAT: CRC error", "IDAT: incorrect data check", "incorrect data check"})
    if (std::strcmp(message, of_a_sum) == 0) static_cast<Reading*>(png_get_error_ptr(png))->bad_sum = true;
}

void OnRead(png_structp png, png_bytep out, size_t count) {
  auto& reading = *static_cast<Reading*>(png_get_io_ptr(png));
  if (count > reading.left.size()) png_error(png, "the file ends within the image: it is truncated");
  std::memcpy(out, reading.left.data(), count);
  reading.left = reading.left.subspan(count);
}

void Reading::Open() {
  png_set_read_fn(png, this, OnRead);
  png_set_user_limits(png, static_cast<png_uint_32>(size.width), static_cast<png_uint_32>(size.height));
  png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, kUnused, sizeof kUnused / 5);
  png_set_crc_action(png, PNG_CRC_ERROR_QUIT, PNG_CRC_WARN_DISCARD);
  png_read_info(png, info);
  png_set_crc_action(png, PNG_CRC_WARN_USE, PNG_CRC_WARN_DISCARD);  // as PIL does
  if (png_get_image_width(png, info) != static_cast<png_uint_32>(size.width) ||
      png_get_image_height(png, info) != static_cast<png_uint_32>(size.height))
    png_error(png, "it has several headers, of different sizes");
  png_set_expand(png);
  png_set_strip_16(png);
  png_set_gray_to_rgb(png);
  png_set_strip_alpha(png);
}

void Reading::ReadAll() {
  const int passes = png_set_interlace_handling(png);
  png_read_update_info(png, info);
  const size_t stride = static_cast<size_t>(size.width) * 3;
  if (png_get_rowbytes(png, info) != stride) png_error(png, "its rows have another length than they should");
  for (int pass = 0; pass < passes; ++pass)
    for (int y = 0; y < size.height; ++y) png_read_row(png, out + static_cast<size_t>(y) * stride, nullptr);
}

void Reading::ReadStrips() {
  png_read_update_info(png, info);
  const size_t stride = static_cast<size_t>(size.width) * 3;
  if (png_get_rowbytes(png, info) != stride) png_error(png, "its rows have another length than they should");
  int rows = 0;
  for (int y = 0; y < size.height; ++y) {
    png_read_row(png, strip->buffer.data() + static_cast<size_t>(rows) * stride, nullptr);
    if (y < crop.y || y >= crop.y + crop.height) continue;
    if (++rows < kStrip && y + 1 < crop.y + crop.height) continue;
    taker->Take({strip->buffer.data() + static_cast<size_t>(crop.x) * 3, {crop.width, rows}, stride});
    rows = 0;
  }
}

bool Reading::Run() {
  if (setjmp(jump) != 0) return false;
  png = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, OnError, OnWarning);
  if (png != nullptr) info = png_create_info_struct(png);
  if (info == nullptr) {
    std::strncpy(text.data(), "out of memory", text.size() - 1);
    return false;
  }
  Open();
  taker == nullptr ? ReadAll() : ReadStrips();
  return true;
}

absl::StatusOr<bool> Done(Reading& reading) {
  const bool done = reading.Run();
  png_destroy_read_struct(&reading.png, &reading.info, nullptr);
  if (!done) return DataLoss("{}", reading.text.data());
  return reading.bad_sum;
}

}  // namespace

absl::StatusOr<Size> ReadPngSize(Bytes png) {
  if (png.size() < kHeadBytes || std::memcmp(png.data() + 12, "IHDR", 4) != 0)
    return DataLoss("the PNG ends before its header, or has none");
  const uint32_t width = Big32(png, 16), height = Big32(png, 20);
  constexpr uint32_t kMost = 1'000'000;  // libpng's own
  if (width == 0 || height == 0 || width > kMost || height > kMost)
    return DataLoss("the image is {} x {} pixels: expected 1 to {} each", width, height, kMost);
  return Size{static_cast<int>(width), static_cast<int>(height)};
}

bool IsInterlaced(Bytes png) { return png.size() > kInterlaceAt && png[kInterlaceAt] != 0; }

absl::StatusOr<bool> DecodePng(Bytes png, const Size& size, Image& image) {
  image.buffer.Resize(size.pixels() * 3);
  Reading reading;
  reading.left = png;
  reading.size = size;
  reading.out = image.buffer.data();
  image.view = {image.buffer.data(), size, static_cast<size_t>(size.width) * 3};
  return Done(reading);
}

absl::StatusOr<bool> DecodePng(Bytes png, const Size& size, const Region& crop, Image& strip, RowTaker& taker) {
  strip.buffer.Resize(static_cast<size_t>(size.width) * 3 * kStrip);
  Reading reading;
  reading.left = png;
  reading.size = size;
  reading.crop = crop;
  reading.strip = &strip;
  reading.taker = &taker;
  taker.Begin();
  return Done(reading);
}

}  // namespace lockstep::prepare
