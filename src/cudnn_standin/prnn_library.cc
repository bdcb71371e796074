#include "cudnn_standin/prnn_library.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "cudnn_standin/device.h"

namespace prnn_cudnn {
namespace {

#define PRNN_CUDNN_TEXT_(value) #value
#define PRNN_CUDNN_TEXT(value) PRNN_CUDNN_TEXT_(value)

// The folder of the library that this function is in.
std::string own_folder() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&own_folder), &info) == 0) return "";
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/') + 1);
}

struct Loaded {
  Prnn functions{};
  std::string failure;

  Loaded() {
    const std::string path = own_folder() + "libprnn.so." PRNN_CUDNN_TEXT(PRNN_MAJOR);
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      failure = std::string("libprnn cannot be loaded: ") + dlerror();
      return;
    }
#define PRNN_CUDNN_FIND(name)                                                                \
  functions.name = reinterpret_cast<decltype(functions.name)>(dlsym(library, "prnn" #name)); \
  if (functions.name == nullptr && failure.empty()) failure = path + " has no function prnn" #name;
    PRNN_CUDNN_USES(PRNN_CUDNN_FIND)
#undef PRNN_CUDNN_FIND
  }
};

class Handles {
 public:
  static Handles& instance() {
    static Handles& handles = *new Handles;
    return handles;
  }

  prnnHandle_t take(const Prnn& prnn, int device, void* stream) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      std::vector<prnnHandle_t>& resting = resting_[{device, stream}];
      if (!resting.empty()) {
        prnnHandle_t handle = resting.back();
        resting.pop_back();
        return handle;
      }
    }
    prnnHandle_t handle = nullptr;
    prnn.require(device::create_handle(prnn, &handle));
    prnn.require(prnn.SetStream(handle, static_cast<prnnStream_t>(stream)), handle);
    return handle;
  }

  void give_back(int device, void* stream, prnnHandle_t handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    resting_[{device, stream}].push_back(handle);
  }

 private:
  std::mutex mutex_;
  // By device and stream, because the work of one handle must not run on two streams at once.
  std::map<std::pair<int, void*>, std::vector<prnnHandle_t>> resting_;
};

Status as_cudnn_status(prnnStatus_t status) {
  switch (status) {
    case PRNN_STATUS_BAD_PARAM: return kBadParam;
    case PRNN_STATUS_NOT_SUPPORTED:
    case PRNN_STATUS_ARCH_MISMATCH: return kNotSupported;
    case PRNN_STATUS_EXECUTION_FAILED: return kExecutionFailed;
    case PRNN_STATUS_NOT_INITIALIZED: return kNotInitialized;
    default: return kInternalError;
  }
}

}  // namespace

void Prnn::require(prnnStatus_t status, prnnHandle_t handle) const {
  if (status != PRNN_STATUS_SUCCESS) throw Failure(as_cudnn_status(status), GetLastErrorMessage(handle));
}

const Prnn& prnn_library() {
  static const Loaded& loaded = *new Loaded;
  if (!loaded.failure.empty()) throw Failure(kNotInitialized, loaded.failure);
  return loaded.functions;
}

HandleLease::HandleLease(const Prnn& prnn, int device, void* stream)
    : device_(device), stream_(stream), handle_(Handles::instance().take(prnn, device, stream)) {}

HandleLease::~HandleLease() { Handles::instance().give_back(device_, stream_, handle_); }

}  // namespace prnn_cudnn
