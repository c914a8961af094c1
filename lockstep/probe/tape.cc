#include "lockstep/probe/tape.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lockstep::probe {
namespace {

constexpr float kEpsilon = 1e-5F;

// The probabilities of one head: softmax of q k^T / sqrt(width) over what is not later.
Matrix HeadProbabilities(const Matrix& q, const Matrix& k, int begin, int width) {
  const float scale = 1 / std::sqrt(static_cast<float>(width));
  Matrix p(q.rows, k.rows);
  for (int i = 0; i < q.rows; ++i) {
    float most = -1e30F, sum = 0;
    for (int j = 0; j <= i; ++j) {
      float dot = 0;
      for (int c = begin; c < begin + width; ++c) dot += q.Row(i)[c] * k.Row(j)[c];
      p.Row(i)[j] = dot * scale;
      most = std::max(most, p.Row(i)[j]);
    }
    for (int j = 0; j <= i; ++j) sum += p.Row(i)[j] = Exponential(p.Row(i)[j] - most);
    for (int j = 0; j <= i; ++j) p.Row(i)[j] /= sum;
  }
  return p;
}

struct AttentionGradients {
  Matrix &q, &k, &v;
};

// o = p v, s = q k^T scale, p = softmax(s): ds = p (dp - sum dp p).
void HeadBackward(const Matrix& p, const Matrix& q, const Matrix& k, const Matrix& v, const Matrix& out, int begin,
                  int width, AttentionGradients into) {
  const float scale = 1 / std::sqrt(static_cast<float>(width));
  for (int i = 0; i < q.rows; ++i) {
    std::vector<float> dp(static_cast<size_t>(i) + 1);
    float weighted = 0;
    for (int j = 0; j <= i; ++j) {
      float& dot = dp[static_cast<size_t>(j)];
      for (int c = begin; c < begin + width; ++c) {
        dot += out.Row(i)[c] * v.Row(j)[c];
        into.v.Row(j)[c] += p.Row(i)[j] * out.Row(i)[c];
      }
      weighted += dot * p.Row(i)[j];
    }
    for (int j = 0; j <= i; ++j) {
      const float ds = p.Row(i)[j] * (dp[static_cast<size_t>(j)] - weighted) * scale;
      for (int c = begin; c < begin + width; ++c) {
        into.q.Row(i)[c] += ds * k.Row(j)[c];
        into.k.Row(j)[c] += ds * q.Row(i)[c];
      }
    }
  }
}

float InverseRootMeanSquare(const float* row, int columns) {
  float sum = 0;
  for (int c = 0; c < columns; ++c) sum += row[c] * row[c];
  return 1 / std::sqrt(sum / static_cast<float>(columns) + kEpsilon);
}

float Sigmoid(float x) { return 1 / (1 + Exponential(-x)); }

}  // namespace

void Tape::Round(Matrix& values) const {
  if (precision_ == Precision::kSingle) return;
  for (float& value : values.values) value = ToBfloat16(value);
}

int Tape::Add(std::string_view operation, Matrix value, std::function<void(const Matrix& gradient)> back) {
  if (tamper_) tamper_(operation, value.values);
  Round(value);
  Matrix gradient(value.rows, value.columns);
  nodes_.push_back({std::move(value), std::move(gradient), std::move(back)});
  return static_cast<int>(nodes_.size()) - 1;
}

int Tape::Leaf(Matrix value) { return Add("leaf", std::move(value), nullptr); }

int Tape::Multiply(int x, int weight) {
  return Add("multiply", Product(Value(x), Value(weight)), [this, x, weight](const Matrix& gradient) {
    AddTo(GradientOf(x), Product(gradient, Transposed(Value(weight))));
    AddTo(GradientOf(weight), Product(Transposed(Value(x)), gradient));
  });
}

int Tape::Sum(std::vector<int> parts) {
  Matrix sum = Value(parts.front());
  for (size_t i = 1; i < parts.size(); ++i) AddTo(sum, Value(parts[i]));
  return Add("sum", std::move(sum), [this, parts = std::move(parts)](const Matrix& gradient) {
    for (const int part : parts) AddTo(GradientOf(part), gradient);
  });
}

int Tape::Normalise(int x, int gain) {
  const Matrix &in = Value(x), &scale = Value(gain);
  Matrix out(in.rows, in.columns);
  for (int i = 0; i < in.rows; ++i) {
    const float inverse = InverseRootMeanSquare(in.Row(i), in.columns);
    for (int c = 0; c < in.columns; ++c) out.Row(i)[c] = in.Row(i)[c] * inverse * scale.Row(0)[c];
  }
  return Add("normalise", std::move(out), [this, x, gain](const Matrix& gradient) {
    const Matrix &values = Value(x), &gains = Value(gain);
    for (int i = 0; i < values.rows; ++i) {
      const float* const row = values.Row(i);
      const float inverse = InverseRootMeanSquare(row, values.columns);
      float along = 0;  // of the gradient and the row: what the norm itself takes back
      for (int c = 0; c < values.columns; ++c) along += gains.Row(0)[c] * gradient.Row(i)[c] * row[c];
      along *= inverse * inverse * inverse / static_cast<float>(values.columns);
      for (int c = 0; c < values.columns; ++c) {
        GradientOf(x).Row(i)[c] += inverse * gains.Row(0)[c] * gradient.Row(i)[c] - row[c] * along;
        GradientOf(gain).Row(0)[c] += gradient.Row(i)[c] * row[c] * inverse;
      }
    }
  });
}

int Tape::Attend(int q, int k, int v, int heads) {
  const int width = Value(q).columns / heads;
  std::vector<Matrix> probabilities;
  Matrix out(Value(q).rows, Value(q).columns);
  for (int head = 0; head < heads; ++head) {
    probabilities.push_back(HeadProbabilities(Value(q), Value(k), head * width, width));
    for (int i = 0; i < out.rows; ++i) {
      for (int j = 0; j <= i; ++j) {
        const float p = probabilities.back().Row(i)[j];
        for (int c = head * width; c < (head + 1) * width; ++c) out.Row(i)[c] += p * Value(v).Row(j)[c];
      }
    }
  }
  return Add("attend", std::move(out),
             [this, q, k, v, width, probabilities = std::move(probabilities)](const Matrix& gradient) {
               const AttentionGradients into{GradientOf(q), GradientOf(k), GradientOf(v)};
               for (size_t head = 0; head < probabilities.size(); ++head) {
                 HeadBackward(probabilities[head], Value(q), Value(k), Value(v), gradient,
                              static_cast<int>(head) * width, width, into);
               }
             });
}

int Tape::Silu(int x) {
  Matrix out = Value(x);
  for (float& value : out.values) value *= Sigmoid(value);
  return Add("silu", std::move(out), [this, x](const Matrix& gradient) {
    for (size_t i = 0; i < gradient.values.size(); ++i) {
      const float value = Value(x).values[i], sigmoid = Sigmoid(value);
      GradientOf(x).values[i] += gradient.values[i] * (sigmoid * (1 + value * (1 - sigmoid)));
    }
  });
}

int Tape::Pick(int table, std::vector<int> rows) {
  const Matrix& from = Value(table);
  Matrix out(static_cast<int>(rows.size()), from.columns);
  for (size_t i = 0; i < rows.size(); ++i) std::copy_n(from.Row(rows[i]), from.columns, out.Row(static_cast<int>(i)));
  return Add("pick", std::move(out), [this, table, rows = std::move(rows)](const Matrix& gradient) {
    for (size_t i = 0; i < rows.size(); ++i) {
      float* const into = GradientOf(table).Row(rows[i]);
      for (int c = 0; c < gradient.columns; ++c) into[c] += gradient.Row(static_cast<int>(i))[c];
    }
  });
}

double Tape::CrossEntropy(const std::vector<int>& shards, const std::vector<int>& targets) {
  const int width = Value(shards[0]).columns, tokens = Value(shards[0]).rows;
  double loss = 0;  // to be read, and no part of any checksum: the logarithm is the library's
  for (int i = 0; i < tokens; ++i) {
    float most = -1e30F, sum = 0;
    for (const int shard : shards) {
      for (int c = 0; c < width; ++c) most = std::max(most, Value(shard).Row(i)[c]);
    }
    for (const int shard : shards) {
      float part = 0;
      for (int c = 0; c < width; ++c) part += GradientOf(shard).Row(i)[c] = Exponential(Value(shard).Row(i)[c] - most);
      sum += part;
    }
    const int target = targets[static_cast<size_t>(i)];
    const int holder = shards[static_cast<size_t>(target / width)];
    loss += (std::log(double{sum}) - (Value(holder).Row(i)[target % width] - most)) / tokens;
    for (const int shard : shards) {
      for (int c = 0; c < width; ++c) GradientOf(shard).Row(i)[c] /= sum * static_cast<float>(tokens);
    }
    GradientOf(holder).Row(i)[target % width] -= 1.0F / static_cast<float>(tokens);
  }
  return loss;
}

void Tape::Backward() {
  for (size_t i = nodes_.size(); i-- > 0;) {
    if (!nodes_[i].back) continue;
    Round(nodes_[i].gradient);
    nodes_[i].back(nodes_[i].gradient);
  }
}

}  // namespace lockstep::probe
