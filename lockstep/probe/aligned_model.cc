#include "lockstep/probe/aligned_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/client/client.h"

namespace lockstep::probe {
namespace {

constexpr int kLayers = 2, kHidden = 64, kHeads = 4, kMlp = 256, kWords = 128, kTokens = 32;
constexpr float kRate = 1e-2F, kMomentum = 0.9F, kVariance = 0.95F, kAdamEpsilon = 1e-8F;

struct Parameter {
  std::string name;
  Matrix weight, gradient;
};

// A matrix that is the same for every split, and the part of it that one rank holds.
enum class Split : uint8_t { kNone, kColumns, kRows };

Matrix FixedPart(const std::string& name, int rows, int columns, Split split, int rank, int ranks) {
  const float scale = split == Split::kNone && rows == 1 ? 0.1F : 1 / std::sqrt(static_cast<float>(rows));
  const std::vector<float> all = FixedValues(name, static_cast<size_t>(rows) * static_cast<size_t>(columns), scale);
  const int part_rows = split == Split::kRows ? rows / ranks : rows;
  const int part_columns = split == Split::kColumns ? columns / ranks : columns;
  const int row0 = split == Split::kRows ? rank * part_rows : 0;
  const int column0 = split == Split::kColumns ? rank * part_columns : 0;
  Matrix part(part_rows, part_columns);
  for (int i = 0; i < part_rows; ++i) {
    const float* const from = all.data() + static_cast<ptrdiff_t>(row0 + i) * columns + column0;
    std::copy_n(from, part_columns, part.Row(i));
  }
  return part;
}

struct Shard {
  size_t q, k, v, out, up, down;
};
struct Layer {
  size_t attention_gain, mlp_gain;
  std::vector<Shard> shards;
};

class Model {
 public:
  Model(const AlignedShape& shape, Precision precision, const TamperValues& tamper)
      : shape_(shape), precision_(precision), tamper_(tamper) {
    embedding_ = Whole("stage 0 embedding", "embedding", kWords, kHidden);
    for (int layer = 0; layer < kLayers; ++layer) layers_.push_back(MakeLayer(layer));
    final_gain_ = Gain(fmt::format("stage {} final", shape.pp - 1), "final gain");
    for (int rank = 0; rank < shape.tp; ++rank) {
      head_.push_back(
          Part(fmt::format("stage {} tp {} head", shape.pp - 1, rank), "head", kHidden, kWords, Split::kColumns, rank));
    }
  }

  AlignedBits Step() {
    AlignedBits bits;
    for (int replica = 0; replica < shape_.dp; ++replica) bits.loss += Replica(replica) / shape_.dp;
    for (Parameter& parameter : parameters_) {
      bits.tensors.push_back({parameter.name, Update(parameter)});
      const TensorBits& tensor = bits.tensors.back();
      bits.crc = ls_crc32c(bits.crc, tensor.name.data(), tensor.name.size());
      bits.crc = ls_crc32c(bits.crc, &tensor.crc, sizeof tensor.crc);
    }
    return bits;
  }

 private:
  size_t Keep(std::string name, Matrix weight) {
    Matrix gradient(weight.rows, weight.columns);
    parameters_.push_back({std::move(name), std::move(weight), std::move(gradient)});
    return parameters_.size() - 1;
  }
  size_t Whole(std::string name, const std::string& seed, int rows, int columns) {
    return Keep(std::move(name), FixedPart(seed, rows, columns, Split::kNone, 0, 1));
  }
  size_t Part(std::string name, const std::string& seed, int rows, int columns, Split split, int rank) {
    return Keep(std::move(name), FixedPart(seed, rows, columns, split, rank, shape_.tp));
  }
  size_t Gain(std::string name, const std::string& seed) {
    const size_t gain = Whole(std::move(name), seed, 1, kHidden);
    for (float& value : parameters_[gain].weight.values) value += 1;
    return gain;
  }

  Layer MakeLayer(int layer) {
    const std::string seed = fmt::format("layer {} ", layer);
    const std::string place = fmt::format("stage {} {}", layer * shape_.pp / kLayers, seed);
    Layer made{
        Gain(place + "attention gain", seed + "attention gain"), Gain(place + "mlp gain", seed + "mlp gain"), {}};
    for (int rank = 0; rank < shape_.tp; ++rank) {
      const auto part = [&](const char* name, int rows, int columns, Split split) {
        return Part(fmt::format("{}tp {} {}", place, rank, name), seed + name, rows, columns, split, rank);
      };
      made.shards.push_back({part("q", kHidden, kHidden, Split::kColumns), part("k", kHidden, kHidden, Split::kColumns),
                             part("v", kHidden, kHidden, Split::kColumns), part("out", kHidden, kHidden, Split::kRows),
                             part("up", kHidden, kMlp, Split::kColumns), part("down", kMlp, kHidden, Split::kRows)});
    }
    return made;
  }

  int Forward(Tape& tape, const Layer& layer, int x) const {
    std::vector<int> parts;
    int normal = tape.Normalise(x, Node(layer.attention_gain));
    for (const Shard& shard : layer.shards) {
      const int q = tape.Multiply(normal, Node(shard.q)), k = tape.Multiply(normal, Node(shard.k));
      const int v = tape.Multiply(normal, Node(shard.v));
      parts.push_back(tape.Multiply(tape.Attend(q, k, v, kHeads / shape_.tp), Node(shard.out)));
    }
    x = tape.Sum({x, tape.Sum(std::exchange(parts, {}))});
    normal = tape.Normalise(x, Node(layer.mlp_gain));
    for (const Shard& shard : layer.shards)
      parts.push_back(tape.Multiply(tape.Silu(tape.Multiply(normal, Node(shard.up))), Node(shard.down)));
    return tape.Sum({x, tape.Sum(parts)});
  }

  // Adds the replica's gradients; its loss.
  double Replica(int replica) {
    Tape tape(precision_, tamper_);
    for (const Parameter& parameter : parameters_) tape.Leaf(parameter.weight);
    std::vector<int> words;
    for (const float value : FixedValues(fmt::format("words {}", replica), kTokens + 1, kWords / 2.0F))
      words.push_back(static_cast<int>(std::floor(value)) + kWords / 2);
    int x = tape.Pick(Node(embedding_), {words.begin(), words.end() - 1});
    for (const Layer& layer : layers_) x = Forward(tape, layer, x);
    x = tape.Normalise(x, Node(final_gain_));
    std::vector<int> logits;
    for (const size_t head : head_) logits.push_back(tape.Multiply(x, Node(head)));
    const double loss = tape.CrossEntropy(logits, {words.begin() + 1, words.end()});
    tape.Backward();
    for (size_t i = 0; i < parameters_.size(); ++i) AddTo(parameters_[i].gradient, tape.Gradient(Node(i)));
    return loss;
  }

  // The leaves come first on the tape.
  static int Node(size_t parameter) { return static_cast<int>(parameter); }

  // Adam with moments as of earlier steps: with none, the update would be the gradient's sign alone.
  uint32_t Update(Parameter& parameter) const {
    const size_t count = parameter.weight.values.size();
    std::vector<float> first = FixedValues(parameter.name + " first", count, 1e-3F);
    std::vector<float> second = FixedValues(parameter.name + " second", count, 1e-3F);
    for (size_t i = 0; i < count; ++i) {
      float& gradient = parameter.gradient.values[i];
      gradient /= static_cast<float>(shape_.dp);
      first[i] = kMomentum * first[i] + (1 - kMomentum) * gradient;
      second[i] = kVariance * (second[i] * second[i]) + (1 - kVariance) * (gradient * gradient);
      parameter.weight.values[i] -= kRate * first[i] / (std::sqrt(second[i]) + kAdamEpsilon);
    }
    if (tamper_) tamper_("update", parameter.weight.values);
    uint32_t crc = 0;
    for (const std::vector<float>* values : {&parameter.gradient.values, &first, &second, &parameter.weight.values})
      crc = ls_crc32c(crc, values->data(), count * sizeof(float));
    return crc;
  }

  const AlignedShape shape_;
  const Precision precision_;
  const TamperValues& tamper_;
  std::vector<Parameter> parameters_;
  size_t embedding_ = 0, final_gain_ = 0;
  std::vector<Layer> layers_;
  std::vector<size_t> head_;
};

}  // namespace

std::string AlignedShape::Text() const { return fmt::format("tp{},pp{},dp{}", tp, pp, dp); }

AlignedShape CappedShape(const cluster::Layout& layout) {
  return {.tp = std::min(layout.tp, 2), .pp = std::min(layout.pp, 2), .dp = std::min(layout.dp, 2)};
}

AlignedBits RunAlignedModel(const AlignedShape& shape, Precision precision, const TamperValues& tamper) {
  return Model(shape, precision, tamper).Step();
}

uint32_t ExpectedAlignedCrc(const AlignedShape& shape, Precision precision) {
  // [precision][tp][pp][dp], as tests/e2e/aligned_reference.py finds them in another way.
  static constexpr std::array<uint32_t, 16> kExpected{
      0x0755ee75, 0xcc186696, 0x2fcb1f07, 0x1222c984, 0xfa981332, 0xe1a43c6d, 0x0e4e0858, 0xf94ab034,
      0xe78231f5, 0x6800e591, 0xb56d5710, 0x07ff7251, 0x95d1857d, 0x93e8a1a6, 0xcb969200, 0x0fdc64d3};
  const int index = (shape.tp - 1) * 4 + (shape.pp - 1) * 2 + (shape.dp - 1);
  return kExpected[static_cast<size_t>((precision == Precision::kSingle ? 0 : 8) + index)];
}

}  // namespace lockstep::probe
