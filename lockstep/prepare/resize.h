// Scales pixels as PIL's resize(BILINEAR) does: antialiased, first across, then down, a byte per channel in between.
// Weights have 14 bits where PIL's have 22: results differ from PIL's by 1 at most, rarely. The same bytes on every
// processor. One per thread. It keeps few rows: those that one row of the result is made of, and as many again.
//
//   resizer.Plan({.source = {300, 200}, .scaled = {224, 224}, .kept = {0, 0, 224, 224}});
//   resizer.Run(view.Crop(resizer.needed()), out);
//   resizer.Into(out); decoder.Decode(bytes, head, resizer.needed(), resizer);   // the same, while it is decoded
#pragma once

#include "lockstep/prepare/resize_kernels.h"
#include "lockstep/prepare/scaling.h"

namespace lockstep::prepare {

class Resizer final : public RowTaker {
 public:
  explicit Resizer(const ResizeKernels& kernels = *AvailableKernels()[0]) : kernels_(kernels) {}

  void Plan(const Scaling& scaling);
  // The part of the source that is looked at.
  Region needed() const { return {across_.begin, down_.begin, across_.size, down_.size}; }
  // Where what is kept goes: width * height * 3 bytes.
  void Into(uint8_t* out) { out_ = out; }
  // Rows of that part.
  void Begin() override;
  void Take(const ImageView& rows) override;
  // That part, whole.
  void Run(const ImageView& view, uint8_t* out);
  const char* kernels() const { return kernels_.name; }

 private:
  // Writes the rows of the result that can be made of what has come.
  void Write();
  // Makes room behind the last row of between_, in place of those that nothing will look at any more.
  void DropRows();

  const ResizeKernels& kernels_;
  AxisMaker maker_;
  Axis across_, down_;
  uint8_t* out_ = nullptr;
  int written_ = 0;  // rows of the result
  Buffer between_;   // rows first_ to first_ + rows_, scaled across
  int first_ = 0, rows_ = 0, room_ = 0;
};

}  // namespace lockstep::prepare
