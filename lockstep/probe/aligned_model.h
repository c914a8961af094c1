// Bit-wise alignment: one step of a small fixed model of the job's own layout, which every machine computes alone, and
// whose bits are the same on every healthy machine (ByteRobust, 4.2, calls it MiniGPT).
//
// A decoder of 2 layers (hidden 64, 4 heads, MLP 256, 128 words, 32 tokens per data-parallel replica), weights, input
// and moments from integers, in exact arithmetic (exact.h), so no instruction set changes a bit. The layout's tp, pp
// and dp, each at most 2, split it as Megatron does: heads, MLP and output columns over tp, whose partial sums are
// added in the order of the ranks; layers over pp; a sequence for each replica of dp, whose gradients are added in
// order. cp and ep split nothing here. Forward, backward, one step of Adam that is under way.
// Cost: 10 to 20 ms for a replica, 4 MB.
//
//   RunAlignedModel({.tp = 2, .pp = 2, .dp = 2}, Precision::kSingle).crc
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cluster/layout.h"
#include "lockstep/probe/tape.h"

namespace lockstep::probe {

struct AlignedShape {
  int tp = 1, pp = 1, dp = 1;  // 1 or 2
  std::string Text() const;    // "tp2,pp2,dp2"
  bool operator==(const AlignedShape&) const = default;
};
AlignedShape CappedShape(const cluster::Layout& layout);

struct TensorBits {
  std::string name;  // "stage 1 layer 1 tp 0 up"
  uint32_t crc = 0;  // of gradient, moments and weight after the step
  bool operator==(const TensorBits&) const = default;
};

struct AlignedBits {
  std::vector<TensorBits> tensors;
  uint32_t crc = 0;  // of all names and checksums
  double loss = 0;   // before the step, to be read only
};

AlignedBits RunAlignedModel(const AlignedShape& shape, Precision precision, const TamperValues& tamper = {});

// What a healthy machine computes.
uint32_t ExpectedAlignedCrc(const AlignedShape& shape, Precision precision);

}  // namespace lockstep::probe
