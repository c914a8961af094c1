// How fast a checkpoint is copied: memcpy, non-temporal copy, and non-temporal copy with CRC32C, over 100 MB of warm
// memory in interleaved rounds, so that all three see the same machine. Prints one JSON document: medians and spread in
// GB/s, and the ratio that matters, copy+CRC to non-temporal copy.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "lockstep/client/client.h"
#include "lockstep/client/copy.h"

namespace {

constexpr size_t kBytes = 100'000'000;
constexpr int kRounds = 21;

template <typename Copy>
double GigabytesPerSecond(Copy&& copy) {
  const auto begin = std::chrono::steady_clock::now();
  copy();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(kBytes) / elapsed.count() * 1e-9;
}

struct Rates {
  std::vector<double> samples;
  double At(double quantile) {
    std::sort(samples.begin(), samples.end());
    return samples[static_cast<size_t>(quantile * static_cast<double>(samples.size() - 1))];
  }
  void Print(const char* name) {
    std::printf("  \"%s\": {\"median\": %.2f, \"p10\": %.2f, \"p90\": %.2f},\n", name, At(0.5), At(0.1), At(0.9));
  }
};

}  // namespace

int main() {
  std::vector<uint8_t> from(kBytes, 1), to(kBytes + 64, 2);
  uint8_t* aligned = to.data() + (64 - reinterpret_cast<uintptr_t>(to.data()) % 64) % 64;
  Rates memcpy_rate, plain, with_crc;
  uint32_t crc = 0;
  for (int round = 0; round < kRounds; ++round) {
    memcpy_rate.samples.push_back(GigabytesPerSecond([&] { std::memcpy(aligned, from.data(), kBytes); }));
    plain.samples.push_back(GigabytesPerSecond([&] { ls_copy_nontemporal(aligned, from.data(), kBytes); }));
    with_crc.samples.push_back(GigabytesPerSecond([&] { crc = ls_copy_crc32c(crc, aligned, from.data(), kBytes); }));
  }
  std::printf("{\n  \"bytes\": %zu,\n  \"rounds\": %d,\n  \"unit\": \"GB/s\",\n  \"crc32c\": %u,\n", kBytes, kRounds,
              crc);
  memcpy_rate.Print("memcpy");
  plain.Print("nontemporal");
  with_crc.Print("nontemporal_crc32c");
  std::printf("  \"crc_to_nontemporal\": %.3f\n}\n", with_crc.At(0.5) / plain.At(0.5));
}
