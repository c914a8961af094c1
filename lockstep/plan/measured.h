// Rows of a table of measured training runs, as workloads to predict. The columns: docs/formats/measured.md.
//
//   LS_ASSIGN_OR_RETURN(const Known known, ReadKnown(presets));
//   LS_ASSIGN_OR_RETURN(const MeasuredTable table, ReadMeasured("measured_train.csv", known));
//   for (const MeasuredRun& run : table.runs) PredictStep(run.workload, rates);   // and only then run.Measured()
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/plan/known.h"
#include "lockstep/plan/rates.h"
#include "lockstep/plan/step_parts.h"
#include "lockstep/plan/workload.h"

namespace lockstep::plan {

// What the table does not say, and is taken from elsewhere.
struct Guesses {
  bool sizes = false;  // of the model, by its name alone: the run can be predicted, but teaches nothing
  bool fit = false;    // what makes it fit: whether it would have says nothing
};

class MeasuredRun {
 public:
  struct Values {
    double step_s = 0;                   // 0: not measured
    std::optional<StepPart> part{};      // that step_s is of this part of the step alone
    std::optional<double> memory_gib{};  // of the rank that takes most
    bool counts_context = false;         // what the driver says is in use, not what a framework has allocated
    bool out_of_memory = false;
  };
  MeasuredRun(int row, std::string id, std::string family, Workload workload, Values values, Guesses guesses = {})
      : row_(row),
        id_(std::move(id)),
        family_(std::move(family)),
        workload_(std::move(workload)),
        values_(values),
        guesses_(guesses) {}

  int row() const { return row_; }  // its line
  const std::string& id() const { return id_; }
  const std::string& family() const { return family_; }
  const Workload& workload() const { return workload_; }
  const Values& Measured() const { return values_; }
  const Guesses& guesses() const { return guesses_; }

 private:
  int row_;
  std::string id_, family_;
  Workload workload_;
  Values values_;
  Guesses guesses_;
};

// Of what was measured of the run: the step, or a part of it. Always above 0.
double PredictedSeconds(const MeasuredRun& run, const Rates& rates);

struct SkippedRow {
  int row = 0;
  std::string why;
};

struct MeasuredTable {
  std::vector<MeasuredRun> runs;
  std::vector<SkippedRow> skipped;  // which can't be predicted, or have nothing to compare with
  std::vector<SkippedRow> assumed;  // which are predicted, but not as they say
};

// kInvalidArgument: it is no such table.
absl::StatusOr<MeasuredTable> ReadMeasured(const std::string& path, const Known& known);

}  // namespace lockstep::plan
