// What nodes measured, side by side: the range that healthy ones keep, and who is outside. Pure: the same reports in
// any order give the same judgement.
//
// Rates are compared among nodes of one type, with `history`, earlier reports of healthy ones, as further peers: of
// each node one value, the median of its own, for its own differ less than those of others.
//   n nodes, m the median of their values (of an even number the better of the two); named is who is worse than m by
//   more than the tolerance t m, where
//   n < 30:  t = 6 * 5 % = 30 % (disks: 6 * 8.5 % = 51 %): the spread of so few can't be learnt, and is assumed
//   n >= 30: t = 5 (1 + 4.5 / sqrt n) s / m, s = 1.4826 times the lower median distance from m, the factor an upper
//            bound of what s may be; at least 10 %, at most 40 % (disks: 60 %)
// Nobody is named where fewer than 3 values are known, or more than half of the nodes are outside (without earlier
// values: half): that is said instead. Bits are compared by majority among nodes of one instruction set; a tie names
// both sides as ambiguous. What is wrong without any peer (`ok` false) is named as it is; of a bad link both ends are
// ambiguous, unless one has two bad ones.
//
// Confidence of a rate: 1 - 1 / (1 + k^2), k the distance in standard deviations as assumed or learnt: what Cantelli's
// inequality leaves for a healthy node, whatever the distribution; at most 0.9 where the spread is assumed.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/probe/measurement.h"

namespace lockstep::probe {

struct Range {
  std::string test{}, type{}, unit{};
  int nodes = 0, history = 0;        // values it was learnt from
  double median = 0, tolerance = 0;  // the latter relative
  double deviation = 0;              // relative, assumed or learnt
  bool learnt = false;
};

struct Finding {
  std::vector<std::string> suspects;  // sorted; more than one: one of them, or they are not alike
  std::string test;
  double confidence = 0;
  std::string evidence;
  bool ambiguous() const { return suspects.size() > 1; }
};

struct Judgement {
  std::vector<Range> ranges;      // by test, type
  std::vector<Finding> findings;  // by test, suspects
  std::vector<std::string> unknown;
};

// Node names must differ.
Judgement JudgePeers(std::span<const NodeReport> nodes, std::span<const NodeReport> history = {});

// The range of some values of `test`, none of them NaN, of so many nodes.
Range RangeOf(std::vector<double> values, size_t nodes, const std::string& test, const std::string& unit);

// {healthy (null: nobody is named, and something is unknown), nodes, findings [{suspects, ambiguous, test, confidence,
// evidence}], ranges [...], unknown [...]}
Json JudgementJson(const Judgement& judgement, std::span<const NodeReport> nodes);

}  // namespace lockstep::probe
