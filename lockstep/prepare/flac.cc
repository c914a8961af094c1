// By libFLAC, from memory. It finds the part that is asked for by the seek table, or by trying.
#include <FLAC/stream_decoder.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>

#include "lockstep/prepare/sound.h"

namespace lockstep::prepare {
namespace {

// A frame of FLAC has at most 65,535 samples per channel, and 11 bytes at least.
constexpr uint64_t kMaxSamplesPerByte = 65'535 / 11 + 1;

class Flac {
 public:
  explicit Flac(Bytes file) : file_(file), decoder_(FLAC__stream_decoder_new()) {}

  absl::StatusOr<SoundHead> Head();
  absl::Status Decode(const SoundHead& head, uint64_t begin, uint64_t count, std::span<float> out);

 private:
  struct Delete {
    void operator()(FLAC__StreamDecoder* decoder) const { FLAC__stream_decoder_delete(decoder); }
  };

  bool Begin();
  void Collect();
  bool Take(const FLAC__Frame& frame, const FLAC__int32* const channels[]);

  static Flac& Of(void* self) { return *static_cast<Flac*>(self); }
  static FLAC__StreamDecoderReadStatus Read(const FLAC__StreamDecoder*, FLAC__byte buffer[], size_t* bytes, void* self);
  static FLAC__StreamDecoderWriteStatus Write(const FLAC__StreamDecoder*, const FLAC__Frame* frame,
                                              const FLAC__int32* const buffer[], void* self) {
    return Of(self).Take(*frame, buffer) ? FLAC__STREAM_DECODER_WRITE_STATUS_CONTINUE
                                         : FLAC__STREAM_DECODER_WRITE_STATUS_ABORT;
  }
  static FLAC__StreamDecoderSeekStatus Seek(const FLAC__StreamDecoder*, FLAC__uint64 offset, void* self) {
    if (offset > Of(self).file_.size()) return FLAC__STREAM_DECODER_SEEK_STATUS_ERROR;
    Of(self).at_ = offset;
    return FLAC__STREAM_DECODER_SEEK_STATUS_OK;
  }
  static FLAC__StreamDecoderTellStatus Tell(const FLAC__StreamDecoder*, FLAC__uint64* offset, void* self) {
    *offset = Of(self).at_;
    return FLAC__STREAM_DECODER_TELL_STATUS_OK;
  }
  static FLAC__StreamDecoderLengthStatus Length(const FLAC__StreamDecoder*, FLAC__uint64* length, void* self) {
    *length = Of(self).file_.size();
    return FLAC__STREAM_DECODER_LENGTH_STATUS_OK;
  }
  static FLAC__bool IsAtEnd(const FLAC__StreamDecoder*, void* self) { return Of(self).at_ >= Of(self).file_.size(); }
  static void Meta(const FLAC__StreamDecoder*, const FLAC__StreamMetadata* meta, void* self) {
    if (meta->type == FLAC__METADATA_TYPE_STREAMINFO) Of(self).info_ = meta->data.stream_info;
  }
  static void Error(const FLAC__StreamDecoder*, FLAC__StreamDecoderErrorStatus, void* self) {
    Of(self).damaged_ = true;
  }

  const Bytes file_;
  std::unique_ptr<FLAC__StreamDecoder, Delete> decoder_;
  size_t at_ = 0;
  std::optional<FLAC__StreamMetadata_StreamInfo> info_;
  bool damaged_ = false;
  // What is being decoded.
  SoundHead head_;
  uint64_t begin_ = 0, count_ = 0, next_ = 0;  // frames [begin, begin + count); the next of them that is missing
  std::span<float> out_;
};

FLAC__StreamDecoderReadStatus Flac::Read(const FLAC__StreamDecoder*, FLAC__byte buffer[], size_t* bytes, void* self) {
  Flac& flac = Of(self);
  *bytes = std::min(*bytes, flac.file_.size() - flac.at_);
  std::copy_n(flac.file_.data() + flac.at_, *bytes, buffer);
  flac.at_ += *bytes;
  return *bytes == 0 ? FLAC__STREAM_DECODER_READ_STATUS_END_OF_STREAM : FLAC__STREAM_DECODER_READ_STATUS_CONTINUE;
}

bool Flac::Begin() {
  return decoder_ != nullptr &&
         FLAC__stream_decoder_init_stream(decoder_.get(), Read, Seek, Tell, Length, IsAtEnd, Write, Meta, Error,
                                          this) == FLAC__STREAM_DECODER_INIT_STATUS_OK &&
         FLAC__stream_decoder_process_until_end_of_metadata(decoder_.get()) != 0;
}

absl::StatusOr<SoundHead> Flac::Head() {
  if (!Begin() || !info_ || damaged_) return DataLoss("FLAC: a damaged header, or it is truncated");
  SoundHead head;
  head.rate = info_->sample_rate;
  head.channels = info_->channels;
  head.bits = info_->bits_per_sample;
  head.frames = info_->total_samples;
  if (head.frames > file_.size() * kMaxSamplesPerByte)
    return DataLoss("FLAC: {} samples in {} bytes: it is truncated, or the header is damaged", head.frames,
                    file_.size());
  return head;
}

// False: it isn't what the header says.
bool Flac::Take(const FLAC__Frame& frame, const FLAC__int32* const channels[]) {
  if (frame.header.channels != head_.channels || frame.header.bits_per_sample != head_.bits) return false;
  const uint64_t first = frame.header.number.sample_number, end = first + frame.header.blocksize;
  if (first > next_ || end <= next_) return first <= next_;  // a gap; or what comes before
  const uint64_t last = std::min(end, begin_ + count_);
  const float scale = std::ldexp(1.0F, 1 - static_cast<int>(head_.bits));
  for (size_t channel = 0; channel < head_.channels; ++channel) {
    float* to = out_.data() + channel * count_ + (next_ - begin_);
    const FLAC__int32* from = channels[channel] + (next_ - first);
    for (uint64_t i = next_; i < last; ++i) *to++ = static_cast<float>(*from++) * scale;
  }
  next_ = std::max(next_, last);
  return true;
}

// Decodes until the part is there, or nothing more comes.
void Flac::Collect() {
  while (next_ < begin_ + count_ && !damaged_) {
    if (FLAC__stream_decoder_process_single(decoder_.get()) == 0) return;
    if (FLAC__stream_decoder_get_state(decoder_.get()) == FLAC__STREAM_DECODER_END_OF_STREAM) return;
  }
}

absl::Status Flac::Decode(const SoundHead& head, uint64_t begin, uint64_t count, std::span<float> out) {
  head_ = head;
  begin_ = next_ = begin;
  count_ = count;
  out_ = out;
  if (!Begin()) return DataLoss("FLAC: a damaged header, or it is truncated");
  // Where it can't be found, it is decoded from the start.
  if (begin != 0 && FLAC__stream_decoder_seek_absolute(decoder_.get(), begin) == 0) {
    next_ = begin;
    damaged_ = false;
    if (FLAC__stream_decoder_reset(decoder_.get()) == 0) return DataLoss("FLAC: it can't be read twice");
  }
  Collect();
  if (next_ == begin_ + count_ && !damaged_) return absl::OkStatus();
  return DataLoss("FLAC: damaged behind sample {} of {}, or truncated", next_, head.frames);
}

}  // namespace

absl::StatusOr<SoundHead> ReadFlacHead(Bytes file) { return Flac(file).Head(); }

absl::Status DecodeFlac(Bytes file, const SoundHead& head, uint64_t begin, uint64_t count, std::span<float> out) {
  return Flac(file).Decode(head, begin, count, out);
}

}  // namespace lockstep::prepare
