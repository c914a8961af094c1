#include "lockstep/cli/torchrun_words.h"

namespace lockstep::cli {
namespace {

bool TakesValue(const CLI::App& run, const std::string& name) {
  const CLI::Option* option = run.get_option_no_throw(name);
  return option != nullptr && option->get_items_expected_max() > 0;
}

// "-r" of -r3 and -r=3; empty: it is no such word.
std::string Letter(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && word[1] != '-' ? word.substr(0, 2) : "";
}

bool IsOption(const std::string& word) { return word.size() > 1 && word[0] == '-' && word != "--"; }

void TakeAwayMark(std::vector<std::string>& words, size_t at) {
  if (at < words.size() && words[at] == "--") words.erase(words.begin() + static_cast<std::ptrdiff_t>(at));
}

}  // namespace

std::vector<std::string> AsTorchrunReads(const CLI::App& run, std::vector<std::string> words) {
  size_t script = 0;
  for (; script < words.size() && IsOption(words[script]); ++script) {
    std::string& word = words[script];
    const std::string letter = Letter(word);
    if (letter.empty() || word == letter) {
      if (TakesValue(run, word)) ++script;  // not of --name=value, which is no name
    } else if (word.size() > 3 && word[2] == '=' && TakesValue(run, letter)) {
      word.erase(2, 1);
    }
  }
  TakeAwayMark(words, script);
  TakeAwayMark(words, script + 1);
  return words;
}

}  // namespace lockstep::cli
