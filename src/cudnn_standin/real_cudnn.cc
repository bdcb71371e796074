#include "cudnn_standin/real_cudnn.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cudnn_standin/device.h"

extern "C" prnn_cudnn::Forward cudnnRNNForward;  // the stand-in's own

namespace prnn_cudnn {
namespace {

// Files of the process whose names are cuDNN's, in the order in which they were loaded.
std::vector<std::string> loaded_cudnn_files() {
  std::vector<std::string> files;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* found) {
        const char* const slash = std::strrchr(info->dlpi_name, '/');
        const char* const name = slash != nullptr ? slash + 1 : info->dlpi_name;
        const bool is_cudnn = std::strncmp(name, "libcudnn.so", 11) == 0;
        if (is_cudnn) static_cast<std::vector<std::string>*>(found)->push_back(info->dlpi_name);
        return 0;
      },
      &files);
  return files;
}

// The first of them that is not the stand-in, nor the library that puts the stand-in in front of cuDNN.
// dlsym(RTLD_NEXT) would not do: programs load cuDNN without making its symbols global.
void* open_real(std::string* path) {
  for (const std::string& file : loaded_cudnn_files()) {
    void* const library = dlopen(file.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) continue;
    void* const found = dlsym(library, "cudnnRNNForward");
    if (found != nullptr && found != reinterpret_cast<void*>(&cudnnRNNForward)) {
      *path = file;
      return library;  // never closed: the program may not unload what is in use here
    }
    dlclose(library);
  }
  return nullptr;
}

class Finder {
 public:
  explicit Finder(void* library) : library_(library) {}
  template <class Function>
  void find(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(library_, name));
    if (function == nullptr && missing.empty()) missing = name;
  }
  std::string missing;  // the first function that is not there

 private:
  void* library_;
};

// Why the environment keeps the stand-in from taking calls; empty if it does not. `is_wanted`: it was asked for.
std::string switched_off(bool* is_wanted) {
  const char* const value = std::getenv("PRNN_CUDNN");
  *is_wanted = false;
  if (value == nullptr || value[0] == '\0' || std::strcmp(value, "on") == 0) return "";
  *is_wanted = std::strcmp(value, "off") == 0;
  return *is_wanted ? "PRNN_CUDNN is off" : std::string("PRNN_CUDNN is \"") + value + "\", which is neither on nor off";
}

RealCudnn load() {
  RealCudnn real;
  void* const library = open_real(&real.path);
  bool is_wanted = false;
  if (library == nullptr) {
    real.forwards_all = "no libcudnn is loaded to which a call could be forwarded";
  } else {
    Finder finder(library);
    Cudnn& f = real.functions;
    finder.find("cudnnGetRNNTempSpaceSizes", f.get_temp_space_sizes);
    finder.find("cudnnRNNForward", f.forward);
    finder.find("cudnnRNNBackwardData_v8", f.backward_data);
    finder.find("cudnnRNNBackwardWeights_v8", f.backward_weights);
    finder.find("cudnnGetVersion", f.get_version);
    finder.find("cudnnGetStream", f.get_stream);
    finder.find("cudnnGetRNNDescriptor_v8", f.get_rnn);
    finder.find("cudnnRNNGetClip_v9", f.get_clip);
    finder.find("cudnnGetRNNDataDescriptor", f.get_data);
    finder.find("cudnnGetRNNWeightSpaceSize", f.get_weights_size);
    finder.find("cudnnGetRNNWeightParams", f.get_weights);
    finder.find("cudnnCreateTensorDescriptor", f.create_tensor);
    finder.find("cudnnDestroyTensorDescriptor", f.destroy_tensor);
    finder.find("cudnnSetTensorNdDescriptor", f.set_tensor);
    finder.find("cudnnGetTensorNdDescriptor", f.get_tensor);
    finder.find("cudnnCreateDropoutDescriptor", f.create_dropout);
    finder.find("cudnnDestroyDropoutDescriptor", f.destroy_dropout);
    finder.find("cudnnGetDropoutDescriptor", f.get_dropout);
    finder.find("cudnnRestoreDropoutDescriptor", f.restore_dropout);
    finder.find("cudnnDropoutGetStatesSize", f.dropout_states_size);
    finder.find("cudnnDropoutGetReserveSpaceSize", f.dropout_reserve_size);
    finder.find("cudnnDropoutForward", f.dropout_forward);
    const size_t version = f.get_version != nullptr ? f.get_version() : 0;
    const size_t major = version >= 10000 ? version / 10000 : version / 1000;  // 91900, but 8907
    const std::string off = switched_off(&is_wanted);
    real.has_functions = major == kCudnnMajor && finder.missing.empty();
    if (!off.empty()) {
      real.forwards_all = off;
    } else if (f.get_version != nullptr && major != kCudnnMajor) {
      real.forwards_all = real.path + " is cuDNN " + std::to_string(major) + "; prnn stands in for version " +
                          std::to_string(kCudnnMajor);
    } else if (!finder.missing.empty()) {
      real.forwards_all = real.path + " has no function " + finder.missing;
    } else {
      real.forwards_all = device::why_unavailable();
    }
  }
  if (!real.forwards_all.empty() && !is_wanted) {
    std::fprintf(stderr, "prnn: cuDNN's recurrent layers run as without prnn: %s\n", real.forwards_all.c_str());
  }
  return real;
}

}  // namespace

const RealCudnn& real_cudnn() {
  static const RealCudnn& real = *new RealCudnn(load());  // never destroyed: calls may come from static destructors
  return real;
}

}  // namespace prnn_cudnn
