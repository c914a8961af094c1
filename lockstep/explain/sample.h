// Summaries of samples, robust against a few that lie far off.
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep::explain {

double Mean(const std::vector<double>& values);
double Median(std::vector<double> values);
// spread: 1.4826 times the median distance from the median: the standard deviation, if they are normal.
struct Center {
  double median, spread;
};
Center CenterOf(std::vector<double> values);
double RobustSpread(std::vector<double> values);
// Indices in the order of the values, largest first; equal ones stay as they stand.
std::vector<size_t> Descending(const std::vector<double>& values);
// RobustSpread over median.
double Variation(std::vector<double> values);
// Pearson's; 0 where one does not vary.
double Correlation(const std::vector<double>& a, const std::vector<double>& b);
// Spearman's, of ranks: a few that lie far off hardly change it. Of many values a thousand, evenly picked.
double RankCorrelation(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace lockstep::explain
