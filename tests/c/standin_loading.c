/* Reports which files answer for two functions of cuDNN: reached as a program that is linked to cuDNN reaches them
 * ("-"), or through dlopen of each argument in turn, with RTLD_NOW or as "lazy:NAME", "global:NAME" or "deepbind:NAME"
 * says, and dlsym or dlvsym. Calls the first of them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef int Forward(void*, void*, int, const void*, void*, const void*, void*, void*, void*, const void*, void*, void*,
                    const void*, void*, size_t, const void*, size_t, void*, size_t, void*);
Forward cudnnRNNForward;
size_t cudnnGetVersion(void);
int fakeCalls(int which);

static const char* file_of(void* function) {
  Dl_info info;
  return function != NULL && dladdr(function, &info) != 0 ? info.dli_fname : "none";
}

static void* open_as(const char* argument) {
  const char* const names[] = {"lazy:", "global:", "deepbind:"};
  const int flags[] = {RTLD_LAZY, RTLD_NOW | RTLD_GLOBAL, RTLD_NOW | RTLD_DEEPBIND};
  int i;
  for (i = 0; i < 3; ++i) {
    const size_t length = strlen(names[i]);
    if (strncmp(argument, names[i], length) == 0) return dlopen(argument + length, flags[i]);
  }
  return dlopen(argument, RTLD_NOW | RTLD_LOCAL);
}

static int report(void* forward, void* version) {
  int before = fakeCalls(1);
  Forward* call;
  if (forward == NULL) return 1;
  memcpy(&call, &forward, sizeof call);
  call(NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, 0, NULL, 0, NULL);
  printf("%s %s %d\n", file_of(forward), file_of(version), fakeCalls(1) - before);
  return 0;
}

int main(int argc, char** argv) {
  int i;
  for (i = 1; i < argc; ++i) {
    void *library = NULL, *functions[2];
    if (strcmp(argv[i], "-") == 0) {
      Forward* const forward = cudnnRNNForward;
      size_t (*const version)(void) = cudnnGetVersion;
      memcpy(&functions[0], &forward, sizeof forward);
      memcpy(&functions[1], &version, sizeof version);
    } else {
      library = open_as(argv[i]);
      if (library == NULL) {
        printf("%s\n", dlerror());
        return 1;
      }
      functions[0] = dlsym(library, "cudnnRNNForward");
      functions[1] = dlsym(library, "cudnnGetVersion");
      if (functions[0] != dlvsym(library, "cudnnRNNForward", "libcudnn.so.9")) return 1;
    }
    if (report(functions[0], functions[1]) != 0) return 1;
  }
  return 0;
}
