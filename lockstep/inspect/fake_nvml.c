/* Stands in for libnvidia-ml.so.1 in gpu_test.cc: two GPUs whose state the test sets. */
#include <stddef.h>

enum { kNotFound = 6, kGpuIsLost = 15 };

static struct {
  unsigned count, celsius[2], pending[2], failed[2];
  unsigned long long errors[2];
  int lost[2];
} fake = {.count = 2, .celsius = {40, 41}};

void fake_nvml_set(unsigned count, unsigned gpu, unsigned celsius, unsigned long long errors, unsigned pending,
                   unsigned failed, int lost) {
  fake.count = count;
  fake.celsius[gpu] = celsius;
  fake.errors[gpu] = errors;
  fake.pending[gpu] = pending;
  fake.failed[gpu] = failed;
  fake.lost[gpu] = lost;
}

static size_t Index(void* device) { return (size_t)device - 1; }
static int Lost(void* device) { return fake.lost[Index(device)] ? kGpuIsLost : 0; }

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char* nvmlErrorString(int error) { return error == kGpuIsLost ? "GPU is lost" : "another error"; }
int nvmlDeviceGetCount_v2(unsigned* count) { return *count = fake.count, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (index >= fake.count) return kNotFound;
  return *device = (void*)(size_t)(index + 1), 0;
}
int nvmlDeviceGetTemperature(void* device, unsigned sensor, unsigned* celsius) {
  if (sensor != 0) return kNotFound;
  return *celsius = fake.celsius[Index(device)], Lost(device);
}
int nvmlDeviceGetTemperatureThreshold(void* device, unsigned which, unsigned* celsius) {
  (void)device;
  return *celsius = which == 1 ? 87 : 0, which == 1 ? 0 : kNotFound;
}
int nvmlDeviceGetRemappedRows(void* device, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                              unsigned* failed) {
  *corrected = *uncorrected = 0;
  *pending = fake.pending[Index(device)];
  return *failed = fake.failed[Index(device)], Lost(device);
}
int nvmlDeviceGetTotalEccErrors(void* device, unsigned kind, unsigned counter, unsigned long long* errors) {
  if (kind != 1 || counter != 0) return kNotFound;
  return *errors = fake.errors[Index(device)], Lost(device);
}
