/* Copies memory that its owner may unmap at any moment: that is an answer then, not the end of the process. Tensors are
 * copied while the script runs, and what it calls may free them: share_memory_(), storage().resize_().
 *
 * The kernel copies as carefully (process_vm_readv, pwrite), at a third of the rate: 4.2 beside 11.8 GB/s (measured on
 * CPU). So ls_fault_catch() takes SIGSEGV and SIGBUS. What is not a fault at an address that is being copied, in the
 * thread that copies, is another's: at the first of these the signal goes back to whoever had it before, the same
 * instruction runs again or the same signal is sent again, and it is as if we had never been there. Whoever takes the
 * signals after us has them; then memory that is unmapped ends the process.
 *
 * Threads: one copies at a time. Cost: 20 ns for each copy.
 */
#ifndef LOCKSTEP_CLIENT_FAULT_H_
#define LOCKSTEP_CLIENT_FAULT_H_

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Once for the process; later calls do nothing. The signals must not be blocked in the thread that copies. */
void ls_fault_catch(void);
/* As ls_copy_crc32c(). False: not all of `from` is mapped, and what is at `to` means nothing. */
bool ls_fault_copy(void* to, const void* from, uint64_t bytes, uint32_t* crc);

#ifdef __cplusplus
}
#endif
#endif
