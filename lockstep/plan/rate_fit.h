// The solver behind calibrate.h: rates and habits as sums of unknowns, found by Levenberg-Marquardt. Cost: about a
// second for a thousand runs.
#pragma once

#include <vector>

#include "lockstep/plan/calibrate.h"

namespace lockstep::plan {

class RateFit {
 public:
  // `runs` and `known` must outlive it. `base`: what figures are pulled towards; null: what is usual.
  RateFit(const Runs& runs, const Known& known, const Calibration* base);
  void Solve();
  Calibration Result() const;

 private:
  // What a figure of one hardware or stack is the sum of: what all have, what its kind has, its own.
  struct Terms {
    size_t count = 0;
    size_t index[3] = {};
  };
  // Runs on the same hardware by the same stack.
  struct Group {
    size_t hardware = 0, stack = 0;
    std::vector<size_t> runs;
  };
  struct Normal {  // matrix x step = right
    std::vector<double> matrix, right;
  };

  void Place();
  void TakeBase(const Calibration& base);
  Terms TermsOf(size_t field, size_t hardware, size_t stack) const;
  double Sum(const std::vector<double>& at, size_t field, size_t hardware, size_t stack) const;
  Rates RatesOf(const std::vector<double>& at, size_t hardware, size_t stack) const;
  std::vector<double> Residuals(const std::vector<double>& at) const;
  double Cost(const std::vector<double>& at, const std::vector<double>& residuals) const;
  Normal Linearized(const std::vector<double>& residuals) const;
  Normal ByField(const Group& group, const std::vector<double>& residuals) const;
  void TakeUnsure(const std::vector<double>& covariance, size_t hardware, size_t stack, Scope scope,
                  Rates& rates) const;
  void AddGroup(const Group& group, const std::vector<double>& residuals, Normal& normal) const;

  const Runs& runs_;
  const Known& known_;
  std::vector<std::string> hardware_, kinds_;
  std::vector<size_t> kind_of_;  // of each stack
  std::vector<size_t> first_;    // unknown of each field
  std::vector<double> pull_;     // of each unknown, towards where it begins: 1 / variance
  std::vector<double> usual_;    // where each unknown is pulled to
  std::vector<double> weights_;  // of each run
  std::vector<Group> groups_;
  std::vector<std::vector<double>> offset_;  // of each field, by hardware or stack: the base's distance to the usual
  std::vector<double> at_;
};

}  // namespace lockstep::plan
