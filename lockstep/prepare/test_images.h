// Images that tests make up: smooth with some noise, so that every coefficient and every edge of a crop matters.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "lockstep/prepare/image.h"
#include "lockstep/prepare/jpeg_guard.h"

namespace lockstep::prepare {

struct JpegShape {
  int width = 64, height = 48;
  int across = 2, down = 2;  // chroma subsampling
  J_COLOR_SPACE color = JCS_RGB;
  bool progressive = false;
  int quality = 90;
};

// Samples of any number of channels.
inline std::vector<uint8_t> TestPixels(int width, int height, int channels) {
  std::mt19937 random(static_cast<unsigned>(width * 1000 + height));
  std::vector<uint8_t> pixels;
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < channels; ++c)
        pixels.push_back(
            static_cast<uint8_t>((x * (3 + c) + y * (5 - c) + static_cast<int>(random() % 60)) / (1 + c % 2)));
  return pixels;
}

inline std::string MakeJpeg(const JpegShape& shape) {
  const int channels = shape.color == JCS_GRAYSCALE ? 1 : shape.color == JCS_CMYK ? 4 : 3;
  const std::vector<uint8_t> pixels = TestPixels(shape.width, shape.height, channels);
  jpeg_compress_struct info{};
  jpeg_error_mgr errors;  // the default: prints and exits
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* data = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &data, &size);
  info.image_width = static_cast<JDIMENSION>(shape.width);
  info.image_height = static_cast<JDIMENSION>(shape.height);
  info.input_components = channels;
  info.in_color_space = shape.color;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, shape.quality, TRUE);
  if (channels == 3) {
    info.comp_info[0].h_samp_factor = shape.across;
    info.comp_info[0].v_samp_factor = shape.down;
  }
  if (shape.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  for (int y = 0; y < shape.height; ++y) {
    JSAMPROW row = const_cast<uint8_t*>(pixels.data()) + static_cast<ptrdiff_t>(y) * shape.width * channels;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::string text(reinterpret_cast<char*>(data), size);
  std::free(data);
  return text;
}

inline Bytes BytesOf(const std::string& text) { return {reinterpret_cast<const uint8_t*>(text.data()), text.size()}; }

// Row by row, without what lies between.
inline std::vector<uint8_t> PixelsOf(const ImageView& view) {
  std::vector<uint8_t> pixels;
  for (int y = 0; y < view.size.height; ++y)
    pixels.insert(pixels.end(), view.Row(y), view.Row(y) + static_cast<ptrdiff_t>(view.size.width) * 3);
  return pixels;
}

// Puts the rows of an image together again.
class Gatherer final : public RowTaker {
 public:
  void Begin() override { pixels.clear(); }
  void Take(const ImageView& rows) override {
    most_rows = std::max(most_rows, rows.size.height);
    const std::vector<uint8_t> more = PixelsOf(rows);
    pixels.insert(pixels.end(), more.begin(), more.end());
  }

  std::vector<uint8_t> pixels;
  int most_rows = 0;  // of one Take
};

}  // namespace lockstep::prepare
