// Forward and backward of a small network, in exact arithmetic (exact.h): each operation computes its value at once and
// notes how gradients go back. Everything happens in one fixed order, so the same calls give the same bits everywhere.
// Values, and gradients before they go back, are rounded to bfloat16 if so wished; what is summed, is summed in single
// precision. Thread-compatible. Memory: all values and gradients until the end.
//
//   Tape tape(Precision::kSingle);
//   const int y = tape.Multiply(tape.Leaf(x), w = tape.Leaf(weights));
//   tape.Backward({...});  tape.Gradient(w);
#pragma once

#include <deque>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/probe/exact.h"

namespace lockstep::probe {

enum class Precision : uint8_t { kSingle, kBfloat16 };

// For tests: what a fault does to the values that an operation ("leaf", "multiply", ...) has just computed.
using TamperValues = std::function<void(std::string_view operation, std::span<float> values)>;

class Tape {
 public:
  explicit Tape(Precision precision, const TamperValues& tamper = {}) : precision_(precision), tamper_(tamper) {}

  int Leaf(Matrix value);
  int Multiply(int x, int weight);
  // In the order given: as ranks would sum what each of them has of it.
  int Sum(std::vector<int> parts);
  // Each row by its root mean square, times a gain.
  int Normalise(int x, int gain);
  // Causal attention of heads that lie side by side in the columns.
  int Attend(int q, int k, int v, int heads);
  int Silu(int x);
  // The rows of a table.
  int Pick(int table, std::vector<int> rows);
  // Mean cross entropy of softmax over columns that lie in `shards` side by side; the seed of Backward().
  double CrossEntropy(const std::vector<int>& shards, const std::vector<int>& targets);
  void Backward();

  const Matrix& Value(int node) const { return nodes_[Index(node)].value; }
  const Matrix& Gradient(int node) const { return nodes_[Index(node)].gradient; }

 private:
  struct Node {
    Matrix value, gradient;
    std::function<void(const Matrix& gradient)> back;
  };
  static size_t Index(int node) { return static_cast<size_t>(node); }
  int Add(std::string_view operation, Matrix value, std::function<void(const Matrix& gradient)> back);
  void Round(Matrix& values) const;
  Matrix& GradientOf(int node) { return nodes_[Index(node)].gradient; }

  const Precision precision_;
  const TamperValues tamper_;
  std::deque<Node> nodes_;
};

}  // namespace lockstep::probe
