/* Functions that libstdc++.a wants of later glibcs, for a library that is linked with it to run on an
 * older one: the option glibc_stubs of the build, which no other build compiles this for. */
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#define PRNN_HIDDEN __attribute__((visibility("hidden")))

/* 0: the process may have several threads. */
PRNN_HIDDEN char __libc_single_threaded = 0;

PRNN_HIDDEN uint32_t arc4random(void) {
  uint32_t value;
  if (getentropy(&value, sizeof value) != 0) abort();
  return value;
}

/* Which fstat is a macro for, with the version 1 of struct stat on x86-64, up to glibc 2.32. */
int __fxstat64(int version, int file, void* status);
PRNN_HIDDEN int fstat64(int file, void* status) { return __fxstat64(1, file, status); }
