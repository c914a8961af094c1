// Summaries of samples, robust against a few that lie far off.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/base/median.h"

namespace lockstep::explain {

double Mean(const std::vector<double>& values);
double Deviation(const std::vector<double>& values);  // the standard deviation
// spread: the median distance from the median, times this: the standard deviation, if they are normal.
inline constexpr double kNormal = 1.4826;
struct Center {
  double median, spread;
};
Center CenterOf(std::vector<double> values);
double RobustSpread(std::vector<double> values);
// By those values alone that are not above `middle`: what lies far above does not matter.
double SpreadBelow(const std::vector<double>& values, double middle);
// Of so many values, every which one is enough for a summary: of up to a thousand each, else about a thousand.
size_t StrideFor(size_t count);
// Indices in the order of the values, largest first; equal ones stay as they stand.
std::vector<size_t> Descending(const std::vector<double>& values);
// RobustSpread over median.
double Variation(std::vector<double> values);
// Pearson's; 0 where one does not vary.
double Correlation(const std::vector<double>& a, const std::vector<double>& b);
// Spearman's, of ranks: a few that lie far off hardly change it. Of many values every so manyth (StrideFor).
double RankCorrelation(const std::vector<double>& a, const std::vector<double>& b);
// By the robust spreads of sum and difference (Gnanadesikan and Kettenring): a fifth may lie anywhere.
double RobustCorrelation(std::vector<double> a, std::vector<double> b);

}  // namespace lockstep::explain
