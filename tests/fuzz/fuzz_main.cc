// Runs a fuzz target without libFuzzer, as a test: over its seeds, their prefixes, and each seed with some of its bytes
// replaced. What it finds, it finds again: nothing is random.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr size_t kVariants = 1500;  // of each seed and kind

void Try(const std::string& text) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

TEST(Fuzz, Seeds) {
  size_t seeds = 0;
  for (const auto& entry : std::filesystem::directory_iterator(LOCKSTEP_FUZZ_SEEDS)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string seed{std::istreambuf_iterator<char>(file), {}};
    ++seeds;
    Try(seed);
    const size_t stride = seed.size() / kVariants + 1;
    for (size_t i = 0; i < seed.size(); i += stride) {
      Try(seed.substr(0, i));
      std::string bent = seed;
      constexpr char kBytes[] = {'\0', '\n', '"', '[', '=', '-', '9', '\xff', '{', ',', '.'};
      bent[i] = kBytes[i / stride % std::size(kBytes)];
      Try(bent);
      bent.erase(i, 1 + i % 7);
      Try(bent);
    }
  }
  EXPECT_GT(seeds, 0U) << "no seeds in " << LOCKSTEP_FUZZ_SEEDS;
}

}  // namespace
