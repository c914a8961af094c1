// How fast a checkpoint is copied: memcpy, non-temporal copy, and non-temporal copy with CRC32C, over 100 MB of warm
// memory in interleaved rounds, so that all three see the same machine. Prints one JSON document: medians and spread in
// GB/s, and the ratio that matters, copy+CRC to non-temporal copy.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#include "lockstep/client/client.h"
#include "lockstep/client/copy.h"

namespace {

constexpr size_t kBytes = 100'000'000;
constexpr size_t kPage = 4096;
constexpr size_t kRounds = 24;

template <typename Copy>
double GigabytesPerSecond(const Copy& copy) {
  const auto begin = std::chrono::steady_clock::now();
  copy();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(kBytes) / elapsed.count() * 1e-9;
}

struct Rates {
  std::vector<double> samples;
  template <typename Copy>
  void Add(const Copy& copy) {
    samples.push_back(GigabytesPerSecond(copy));
  }
  double At(double quantile) {
    std::sort(samples.begin(), samples.end());
    return samples[static_cast<size_t>(quantile * static_cast<double>(samples.size() - 1))];
  }
  void Print(const char* name) {
    std::printf("  \"%s\": {\"median\": %.2f, \"p10\": %.2f, \"p90\": %.2f},\n", name, At(0.5), At(0.1), At(0.9));
  }
};

// A load that lies 4096 bytes behind a store in flight waits for it: two addresses by chance would decide the figure.
uint8_t* ToPage(uint8_t* address) { return address + (kPage - reinterpret_cast<uintptr_t>(address) % kPage) % kPage; }

}  // namespace

int main() {
  std::vector<uint8_t> from_memory(kBytes + kPage, 1), to_memory(kBytes + kPage, 2);
  uint8_t* from = ToPage(from_memory.data());
  uint8_t* to = ToPage(to_memory.data());
  Rates memcpy_rate, plain, with_crc;
  uint32_t crc = 0;
  const std::array<std::function<void()>, 3> measure = {
      [&] { memcpy_rate.Add([&] { std::memcpy(to, from, kBytes); }); },
      [&] { plain.Add([&] { ls_copy_nontemporal(to, from, kBytes); }); },
      [&] { with_crc.Add([&] { crc = ls_copy_crc32c(crc, to, from, kBytes); }); },
  };
  // Each by turns after each other: what one leaves in the caches the next has to write back.
  for (size_t round = 0; round < kRounds; ++round) {
    for (size_t k = 0; k < 3; ++k) measure[(round + (round % 2 == 0 ? k : 3 - k)) % 3]();
  }
  std::printf("{\n  \"bytes\": %zu,\n  \"rounds\": %zu,\n  \"unit\": \"GB/s\",\n  \"crc32c\": %u,\n", kBytes, kRounds,
              crc);
  memcpy_rate.Print("memcpy");
  plain.Print("nontemporal");
  with_crc.Print("nontemporal_crc32c");
  std::printf("  \"crc_to_nontemporal\": %.3f\n}\n", with_crc.At(0.5) / plain.At(0.5));
}
