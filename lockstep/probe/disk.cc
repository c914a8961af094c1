#include "lockstep/probe/disk.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>

#include "lockstep/base/file.h"
#include "lockstep/probe/pattern.h"

namespace lockstep::probe {
namespace {

constexpr size_t kBlock = 1 << 20, kAlignment = 4096, kWords = kBlock / sizeof(uint64_t);
constexpr uint64_t kSeed = 0x6469736b;

class File {
 public:
  absl::Status Make(const std::string& directory) {
    path_ = directory + "/.lockstep-probe-XXXXXX";
    fd_ = Fd(mkostemp(path_.data(), O_CLOEXEC));
    if (!fd_.valid()) return Errno(errno, "making a file in {}", directory);
    if (unlink(path_.c_str()) != 0) return Errno(errno, "removing {}", path_);
    direct_ = fcntl(fd_.get(), F_SETFL, O_DIRECT) == 0;
    return absl::OkStatus();
  }

  absl::Status Write(const void* block, uint64_t offset) {
    const std::span bytes(static_cast<const std::byte*>(block), kBlock);
    return WriteAt(fd_.get(), bytes, offset) == kBlock ? absl::OkStatus() : Errno(errno, "writing");
  }

  absl::Status Read(void* block, uint64_t offset) {
    const size_t done = ReadAt(fd_.get(), std::span(static_cast<std::byte*>(block), kBlock), offset);
    if (done == kBlock) return absl::OkStatus();
    return errno != 0 ? Errno(errno, "reading") : DataLoss("reading: the file ends at byte {}", offset + done);
  }

  absl::Status Sync() {
    if (fdatasync(fd_.get()) != 0) return Errno(errno, "syncing");
    posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
    return absl::OkStatus();
  }

  bool direct() const { return direct_; }

 private:
  std::string path_;
  Fd fd_;
  bool direct_ = false;
};

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

class DiskTest {
 public:
  DiskTest(const Budget& budget, const DiskOptions& options)
      : budget_(budget),
        options_(options),
        block_(static_cast<uint64_t*>(std::aligned_alloc(kAlignment, kBlock))),
        words_(block_.get(), block_ ? kWords : 0) {}

  std::vector<Measurement> Run() {
    if (!block_) return {Bits(FailedPrecondition("no memory for a block of 1 MiB"))};
    if (const absl::Status made = file_.Make(options_.directory); !made.ok()) return {Bits(made)};
    const absl::Status wrote = WriteAll();
    const absl::Status read = ReadAll();  // what could be written is looked at even if the disk is full now
    std::vector<Measurement> measured{Bits(wrote.ok() ? read : wrote)};
    if (wrote.ok()) measured.push_back(Rate("disk.write", write_seconds_));
    if (read.ok() && written_ > 0) measured.push_back(Rate("disk.read", read_seconds_));
    return measured;
  }

 private:
  absl::Status WriteAll() {
    const Budget half = budget_.Of({budget_.Left().value / 2});
    const Nanos begin = budget_.Now();
    double filling = 0;
    for (uint64_t offset = 0; offset < options_.bytes.value && (offset == 0 || !half.Over()); offset += kBlock) {
      const Nanos before = budget_.Now();
      FillPattern(kSeed, offset / sizeof(uint64_t), words_);
      filling += ToSeconds(budget_.Now() - before).value;
      LS_RETURN_IF_ERROR(file_.Write(block_.get(), offset));
      written_ += kBlock;
    }
    LS_RETURN_IF_ERROR(file_.Sync());
    write_seconds_ = ToSeconds(budget_.Now() - begin).value - filling;
    return absl::OkStatus();
  }

  absl::Status ReadAll() {
    for (; read_ < written_ && (read_ == 0 || !budget_.Over()); read_ += kBlock) {
      const Nanos before = budget_.Now();
      LS_RETURN_IF_ERROR(file_.Read(block_.get(), read_));
      read_seconds_ += ToSeconds(budget_.Now() - before).value;
      if (options_.tamper) options_.tamper(read_, words_);
      difference_.Add(CompareWithPattern(kSeed, read_ / sizeof(uint64_t), words_));
    }
    return absl::OkStatus();
  }

  Measurement Bits(const absl::Status& status) const {
    Measurement bits{.name = "disk.bits", .value = static_cast<double>(difference_.words), .unit = "errors"};
    bits.ok = status.ok() && difference_.words == 0;
    bits.text = fmt::format("{} of {} MiB written, {} read back, in {}", written_ >> 20, options_.bytes.value >> 20,
                            read_ >> 20, options_.directory);
    if (difference_.words > 0) {
      bits.text +=
          fmt::format("; {} words came back wrong, first at byte {}: {:016x}, expected {:016x}", difference_.words,
                      difference_.position * sizeof(uint64_t), difference_.found, difference_.expected);
    }
    if (!status.ok()) bits.text = Message(status) + "; " + bits.text;
    return bits;
  }

  Measurement Rate(const char* name, double seconds) const {
    return {.name = name,
            .value = static_cast<double>(name == std::string_view("disk.read") ? read_ : written_) / seconds * 1e-9,
            .unit = "GB/s",
            .text = file_.direct() ? "O_DIRECT" : "through the page cache: no O_DIRECT here"};
  }

  const Budget& budget_;
  const DiskOptions& options_;
  const std::unique_ptr<uint64_t, Free> block_;
  const std::span<uint64_t> words_;
  File file_;
  uint64_t written_ = 0, read_ = 0;
  double write_seconds_ = 0, read_seconds_ = 0;
  Difference difference_;
};

}  // namespace

std::vector<Measurement> MeasureDisk(const Budget& budget, const DiskOptions& options) {
  return DiskTest(budget, options).Run();
}

}  // namespace lockstep::probe
