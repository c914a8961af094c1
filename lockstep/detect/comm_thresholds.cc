#include "lockstep/detect/comm_thresholds.h"

#include "lockstep/base/file.h"
#include "lockstep/cluster/table_reader.h"

namespace lockstep::detect {

absl::StatusOr<CommThresholds> ReadCommThresholds(const std::string& path) {
  using cluster::Sign;
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  LS_ASSIGN_OR_RETURN(const cluster::TomlValue root, cluster::ParseToml(text, path));
  CommThresholds thresholds;
  cluster::TableReader in(root, path);
  in.Number("hang_s", Sign::kPositive, thresholds.hang);
  in.Number("hang_of_usual", Sign::kPositive, thresholds.hang_of_usual);
  in.Number("hang_of_longest", Sign::kPositive, thresholds.hang_of_longest);
  in.Number("window_s", Sign::kPositive, thresholds.window);
  in.Integer("window_ops", {.least = 8, .most = 1'000'000}, thresholds.window_ops);
  in.Number("least_s", Sign::kPositive, thresholds.least);
  in.Number("slow_share", Sign::kPositive, thresholds.slow_share);
  in.Number("slow_deviation", Sign::kNotNegative, thresholds.slow_deviation);
  in.Number("link_share", Sign::kPositive, thresholds.link_share);
  in.Number("link_ratio", Sign::kPositive, thresholds.link_ratio);
  in.Number("link_deviation", Sign::kNotNegative, thresholds.link_deviation);
  in.Number("trend_ratio", Sign::kPositive, thresholds.trend_ratio);
  in.Integer("trend_steps", {.least = 3, .most = 1'000'000}, thresholds.trend_steps);
  in.Number("trend_deviation", Sign::kNotNegative, thresholds.trend_deviation);
  LS_RETURN_IF_ERROR(in.Finish());
  return thresholds;
}

}  // namespace lockstep::detect
