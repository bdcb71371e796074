// Forks beside threads that make and destroy objects of every kind. Prints how many children did the same, each of
// which is given a minute, for the machine may be busy.
#include <persistent_rnn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

namespace {

constexpr int kChildren = 400, kThreads = 3;
volatile bool is_over = false;

template <class Object>
bool make(prnnStatus_t (*create)(Object*), prnnStatus_t (*destroy)(Object)) {
  Object object;
  return create(&object) == PRNN_STATUS_SUCCESS && destroy(object) == PRNN_STATUS_SUCCESS;
}

bool make_all() {
  return make(prnnCreateCPU, prnnDestroy) && make(prnnCreateRNNDescriptor, prnnDestroyRNNDescriptor) &&
         make(prnnCreateTensorDescriptor, prnnDestroyTensorDescriptor) &&
         make(prnnCreateFilterDescriptor, prnnDestroyFilterDescriptor) &&
         make(prnnCreateDropoutDescriptor, prnnDestroyDropoutDescriptor);
}

void* make_until_the_end(void*) {
  while (!is_over) make_all();
  return nullptr;
}

}  // namespace

int main() {
  pthread_t threads[kThreads];
  for (pthread_t& thread : threads) pthread_create(&thread, nullptr, make_until_the_end, nullptr);
  int done = 0;
  for (int i = 0; i < kChildren; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      _exit(make_all() ? 0 : 1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    if (status == 0) ++done;
    if (i - done > 3) break;
  }
  is_over = true;
  for (pthread_t thread : threads) pthread_join(thread, nullptr);
  std::printf("%d\n", done);
}
