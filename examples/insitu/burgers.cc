// The viscous Burgers equation in two dimensions, on a periodic grid of 64 x 64, which streams each step to a trainer
// (autoencoder.py) and asks the trainer's autoencoder how well it knows what the flow looks like by now.
//
//   du/dt + (u . grad) u = nu lap u      second-order differences, upwind advection, explicit Euler
//
// g++ -O2 -I PREFIX/include burgers.cc -L PREFIX/lib -llockstep-stage -o burgers
// usage: burgers STEPS [alone]           alone: the same numbers without a stream, to compare with
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "lockstep/stage/infer.h"
#include "lockstep/stage/stage.h"

namespace {

constexpr int kSide = 64, kPatch = 8, kPatches = kSide / kPatch;
constexpr float kDt = 2e-3F, kDx = 1.F / kSide, kNu = 2e-3F, kPi = 3.14159265F;
constexpr int kFirstQuestion = 60;  // by then the trainer has published: it has seen 44 steps at least
constexpr int kRefreshEvery = 10;
constexpr double kLimit = 60;  // seconds that the solver waits for the trainer, at most
using Field = std::array<float, kSide * kSide>;

void Check(int result) {
  if (result == LS_STAGE_OK) return;
  std::fprintf(stderr, "burgers: %s\n", ls_stage_last_error());
  std::exit(2);
}

int At(int y, int x) { return (y & (kSide - 1)) * kSide + (x & (kSide - 1)); }

class Flow {
 public:
  Flow() {
    for (int y = 0; y < kSide; ++y) {
      for (int x = 0; x < kSide; ++x) {
        const float a = 2 * kPi * kDx * static_cast<float>(x), b = 2 * kPi * kDx * static_cast<float>(y);
        u_[At(y, x)] = std::sin(a) * std::cos(b) + 0.3F * std::sin(3 * a + b);
        v_[At(y, x)] = -std::cos(a) * std::sin(b) + 0.3F * std::cos(2 * b - a);
      }
    }
  }
  void Step() {
    Field u, v;
    for (int y = 0; y < kSide; ++y) {
      for (int x = 0; x < kSide; ++x) {
        u[At(y, x)] = u_[At(y, x)] + kDt * Rate(u_, y, x);
        v[At(y, x)] = v_[At(y, x)] + kDt * Rate(v_, y, x);
      }
    }
    u_ = u;
    v_ = v;
  }
  void Write(float* to) const {
    std::memcpy(to, u_.data(), sizeof u_);
    std::memcpy(to + u_.size(), v_.data(), sizeof v_);
  }
  // Patches of 8 x 8 of both components, one behind the other.
  std::vector<float> Patches() const {
    std::vector<float> patches;
    for (const Field* field : {&u_, &v_}) {
      for (int patch = 0; patch < kPatches * kPatches; ++patch) {
        for (int y = 0; y < kPatch; ++y) {
          const int row = patch / kPatches * kPatch + y, column = patch % kPatches * kPatch;
          patches.insert(patches.end(), &(*field)[At(row, column)], &(*field)[At(row, column)] + kPatch);
        }
      }
    }
    return patches;
  }
  // FNV-1a over both fields: equal sums are equal bits.
  uint64_t Sum() const {
    uint64_t sum = 14695981039346656037ULL;
    for (const Field* field : {&u_, &v_}) {
      for (const float value : *field) {
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        sum = (sum ^ bits) * 1099511628211ULL;
      }
    }
    return sum;
  }

 private:
  float Rate(const Field& f, int y, int x) const {
    const float here = f[At(y, x)], u = u_[At(y, x)], v = v_[At(y, x)];
    const float east = f[At(y, x + 1)], west = f[At(y, x - 1)], north = f[At(y + 1, x)], south = f[At(y - 1, x)];
    const float along_x = u > 0 ? here - west : east - here, along_y = v > 0 ? here - south : north - here;
    return kNu * (east + west + north + south - 4 * here) / (kDx * kDx) - (u * along_x + v * along_y) / kDx;
  }
  Field u_, v_;
};

// The trainer's autoencoder: relative error of what it makes of the flow, |x - f(x)| / |x|.
class Model {
 public:
  void Open() { Check(ls_infer_open("burgers", kLimit, &model_)); }
  uint64_t Refresh() { return ls_infer_refresh(model_); }
  double Error(const std::vector<float>& patches) {
    std::vector<float> made(patches.size());
    Check(ls_infer(model_, patches.data(), static_cast<int>(patches.size()) / (kPatch * kPatch), made.data()));
    double off = 0, all = 0;
    for (size_t i = 0; i < patches.size(); ++i) {
      off += std::pow(patches[i] - made[i], 2);
      all += std::pow(patches[i], 2);
    }
    return std::sqrt(off / all);
  }
  void Close() { Check(ls_infer_close(model_)); }

 private:
  ls_model* model_ = nullptr;
};

void Alone(int steps) {
  Flow flow;
  for (int step = 0; step < steps; ++step) flow.Step();
  std::printf("{\"sum\": \"%016llx\"}\n", static_cast<unsigned long long>(flow.Sum()));
}

void Coupled(int steps) {
  const int64_t shape[] = {2, kSide, kSide};
  const ls_stage_options how = {
      .policy = LS_STAGE_LOSSLESS, .k = 16, .spare = 0, .readers = 1, .seed = 0, .spill = nullptr};
  ls_stage* stream = nullptr;
  Check(ls_stage_open("burgers", 0, 1, LS_STAGE_F32, 3, shape, &how, kLimit, &stream));
  Flow flow;
  Model first, current;
  uint64_t asked = 0, publication = 0;
  for (int step = 0; step < steps; ++step) {
    flow.Step();
    void* memory = nullptr;
    Check(ls_stage_reserve(stream, step, kLimit, &memory));
    flow.Write(static_cast<float*>(memory));
    Check(ls_stage_commit(stream));
    if (step == kFirstQuestion) {
      first.Open();
      current.Open();
    }
    if (step < kFirstQuestion || step % kRefreshEvery != 0) continue;
    const uint64_t newest = current.Refresh();
    if (newest == publication) continue;
    publication = newest;
    ++asked;
    std::fprintf(stderr, "step %d: publication %llu, error %.4f\n", step, static_cast<unsigned long long>(newest),
                 current.Error(flow.Patches()));
  }
  std::printf("{\"sum\": \"%016llx\", \"publications_asked\": %llu, \"error_first\": %.6f, \"error_last\": %.6f}\n",
              static_cast<unsigned long long>(flow.Sum()), static_cast<unsigned long long>(asked),
              first.Error(flow.Patches()), current.Error(flow.Patches()));
  first.Close();
  current.Close();
  Check(ls_stage_close(stream, kLimit));
}

}  // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 0;
  if (steps <= kFirstQuestion) {
    std::fprintf(stderr, "usage: burgers STEPS [alone]     with STEPS above %d\n", kFirstQuestion);
    return 2;
  }
  if (argc > 2 && std::strcmp(argv[2], "alone") == 0) {
    Alone(steps);
  } else {
    Coupled(steps);
  }
}
