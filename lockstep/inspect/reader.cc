#include "lockstep/inspect/reader.h"

#include "lockstep/inspect/disk.h"
#include "lockstep/inspect/gpu.h"
#include "lockstep/inspect/kernel_log_reader.h"
#include "lockstep/inspect/memory.h"
#include "lockstep/inspect/mount.h"
#include "lockstep/inspect/nic.h"

namespace lockstep::inspect {

// In the order of Source.
Readers::Readers(const Settings& settings, const Where& where) {
  readers_.push_back(NicReader(settings, where));
  readers_.push_back(DiskReader(settings, where));
  readers_.push_back(MountReader(settings, where));
  readers_.push_back(MemoryReader(settings, where));
  readers_.push_back(KernelLogReader(settings, where));
  readers_.push_back(GpuReader(settings));
}

}  // namespace lockstep::inspect
