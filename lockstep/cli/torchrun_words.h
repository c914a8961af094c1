// The words behind `run` as torchrun reads them, where CLI11 reads them otherwise: `--` before the script or right
// behind it is no argument (argparse takes it away there, and leaves others to the script), and `-r=3` is `-r 3`.
//
//   words = AsTorchrunReads(*app.get_subcommand("run"), words);   // -r=3 -- train.py -- x: -r3 train.py x
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace lockstep::cli {

std::vector<std::string> AsTorchrunReads(const CLI::App& run, std::vector<std::string> words);

}  // namespace lockstep::cli
