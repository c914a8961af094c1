// Any bytes as a tar archive, an LMDB, and as the heads of .npy and safetensors files.
#include <string_view>

#include "lockstep/base/check.h"
#include "lockstep/prepare/lmdb.h"
#include "lockstep/prepare/records.h"
#include "lockstep/prepare/tar.h"
#include "tests/fuzz/fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep::prepare;
  const auto within = [&](const absl::StatusOr<RecordLayout>& layout, uint64_t file_bytes) {
    if (!layout.ok()) return;
    LS_CHECK(layout->count > 0 && layout->format.bytes > 0, "{}", layout->count);
    LS_CHECK(layout->offset + (layout->count - 1) * layout->stride + layout->format.bytes <= file_bytes, "{}",
             layout->offset);
  };
  within(ParseNpy({data, size}, size), size);
  const uint64_t with_data = 8 + size + 1000;
  within(ParseSafetensors({reinterpret_cast<const char*>(data), size}, "", with_data), with_data);
  const std::string path = lockstep::FuzzFile(data, size);
  Files files;
  const absl::StatusOr<DataFile> file = files.Open(path);
  LS_CHECK(file.ok(), "{}", path);
  NearReader near(*file);
  if (const auto list = ListTar(near); list.ok())
    for (const TarMember& member : list->members) LS_CHECK(member.offset + member.bytes <= size, "{}", member.name);
  if (const auto entries = ListLmdb(*file); entries.ok())
    for (const LmdbEntry& entry : *entries) LS_CHECK(entry.offset + entry.bytes <= size, "{}", entry.key);
  return 0;
}
