#include "core/cuda/cudnn_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "core/status.h"

namespace prnn {
namespace {

class Loaded {
 public:
  CudnnLibrary functions{};
  std::string failure;  // empty: all functions are there

  Loaded() {
    const char* const named = std::getenv("PRNN_CUDNN_LIBRARY");
    if (named != nullptr && named[0] != '\0') {
      load(named);
      return;
    }
    for (const char* name : {"libcudnn.so.9", "libcudnn.so.8"}) {
      if (load(name)) return;
    }
  }

 private:
  bool load(const char* name) {
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      add_failure(dlerror());
      return false;
    }
    // A library in front of cuDNN has cuDNN's name and hands out its functions: what is called here is cuDNN itself.
    Dl_info info;
    void* const version = dlsym(library, "cudnnGetVersion");
    if (version != nullptr && dladdr(version, &info) != 0) {
      void* const itself = dlopen(info.dli_fname, RTLD_NOW | RTLD_LOCAL);
      if (itself != nullptr) library = itself;
    }
    CudnnLibrary& f = functions;
    const bool complete = find(library, "cudnnGetVersion", f.get_version) && find(library, "cudnnCreate", f.create) &&
                          find(library, "cudnnDestroy", f.destroy) && find(library, "cudnnSetStream", f.set_stream) &&
                          find(library, "cudnnCreateTensorDescriptor", f.create_tensor) &&
                          find(library, "cudnnDestroyTensorDescriptor", f.destroy_tensor) &&
                          find(library, "cudnnSetTensorNdDescriptor", f.set_tensor) &&
                          find(library, "cudnnCreateDropoutDescriptor", f.create_dropout) &&
                          find(library, "cudnnDestroyDropoutDescriptor", f.destroy_dropout) &&
                          find(library, "cudnnSetDropoutDescriptor", f.set_dropout) &&
                          find(library, "cudnnRestoreDropoutDescriptor", f.restore_dropout) &&
                          find(library, "cudnnDropoutGetStatesSize", f.get_dropout_states_size) &&
                          find(library, "cudnnCreateRNNDescriptor", f.create_rnn) &&
                          find(library, "cudnnDestroyRNNDescriptor", f.destroy_rnn) &&
                          find(library, "cudnnSetRNNDescriptor_v8", f.set_rnn) &&
                          find(library, "cudnnCreateRNNDataDescriptor", f.create_data) &&
                          find(library, "cudnnDestroyRNNDataDescriptor", f.destroy_data) &&
                          find(library, "cudnnSetRNNDataDescriptor", f.set_data) &&
                          find(library, "cudnnGetRNNTempSpaceSizes", f.get_temporary_sizes) &&
                          find(library, "cudnnGetRNNWeightSpaceSize", f.get_weights_size) &&
                          find(library, "cudnnGetRNNWeightParams", f.get_weights) &&
                          find(library, "cudnnRNNForward", f.forward) &&
                          find(library, "cudnnRNNBackwardData_v8", f.backward_data) &&
                          find(library, "cudnnRNNBackwardWeights_v8", f.backward_weights);
    if (!complete) {
      add_failure(std::string(name) + " lacks a function (" + dlerror() + ")");
      return false;
    }
    if (f.get_version() < kOldestCudnn) {
      add_failure(std::string(name) + " is version " + std::to_string(f.get_version()) + ", older than " +
                  std::to_string(kOldestCudnn));
      return false;
    }
    failure.clear();
    return true;
  }

  template <class Function>
  static bool find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
  }

  void add_failure(const std::string& text) { failure += (failure.empty() ? "" : "; ") + text; }
};

}  // namespace

const CudnnLibrary& require_cudnn_library() {
  static const Loaded loaded;
  if (!loaded.failure.empty()) {
    fail(PRNN_STATUS_NOT_SUPPORTED, "cuDNN could not be loaded (PRNN_CUDNN_LIBRARY names its file): %s",
         loaded.failure.c_str());
  }
  return loaded.functions;
}

}  // namespace prnn
