// libprnn, loaded when the first call may be taken: a program under `prnn run` starts processes that never make one.
#pragma once

#include <vector>

#include "cudnn_standin/cudnn.h"
#include "persistent_rnn.h"
#include "prnn_call.h"

namespace prnn_cudnn {

#define PRNN_CUDNN_USES(USE)      \
  USE(Create)                     \
  USE(CreateCPU)                  \
  USE(SetStream)                  \
  USE(GetLastErrorMessage)        \
  USE(GetErrorString)             \
  USE(CreateTensorDescriptor)     \
  USE(DestroyTensorDescriptor)    \
  USE(SetTensorNdDescriptor)      \
  USE(CreateFilterDescriptor)     \
  USE(DestroyFilterDescriptor)    \
  USE(SetFilterNdDescriptor)      \
  USE(GetFilterNdDescriptor)      \
  USE(CreateDropoutDescriptor)    \
  USE(DestroyDropoutDescriptor)   \
  USE(DropoutGetStatesSize)       \
  USE(SetDropoutDescriptor)       \
  USE(CreateRNNDescriptor)        \
  USE(DestroyRNNDescriptor)       \
  USE(SetRNNDescriptor)           \
  USE(SetRNNBackend)              \
  USE(SetRNNMatrixMathType)       \
  USE(SetRNNProjectionSize)       \
  USE(GetRNNParamsSize)           \
  USE(GetRNNLinLayerMatrixParams) \
  USE(GetRNNLinLayerBiasParams)   \
  USE(PrepareRNN)                 \
  USE(DestroyRNNCall)             \
  USE(GetRNNCallInfo)             \
  USE(RunRNNForward)              \
  USE(RunRNNBackwardData)         \
  USE(RunRNNBackwardWeights)      \
  USE(QueryRNNSequence)           \
  USE(GetRNNCanonicalLength)

struct Prnn {
#define PRNN_CUDNN_MEMBER(name) decltype(&::prnn##name) name;
  PRNN_CUDNN_USES(PRNN_CUDNN_MEMBER)
#undef PRNN_CUDNN_MEMBER

  // Throws a Failure with the library's message unless the call succeeded.
  void require(prnnStatus_t status, prnnHandle_t handle = nullptr) const;
};

// Throws a Failure that says why if the library beside this one cannot be loaded.
const Prnn& prnn_library();

// A handle of libprnn for one call, on the current device and with the stream. Handles are kept for later calls and
// never destroyed, since captured graphs use the memory that they hold.
class HandleLease {
 public:
  HandleLease(const Prnn& prnn, int device, void* stream);
  HandleLease(const HandleLease&) = delete;
  HandleLease& operator=(const HandleLease&) = delete;
  ~HandleLease();
  prnnHandle_t get() const { return handle_; }

 private:
  int device_;
  void* stream_;
  prnnHandle_t handle_ = nullptr;
};

// An object of libprnn's that one call makes and destroys.
template <class Object>
class Owned {
 public:
  // create(&object): a status, of which `handle` has the message, or NULL.
  template <class Create>
  Owned(const Prnn& prnn, const Create& create, prnnStatus_t (*destroy)(Object), prnnHandle_t handle = nullptr)
      : destroy_(destroy) {
    prnn.require(create(&object_), handle);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { destroy_(object_); }
  Object get() const { return object_; }

 private:
  prnnStatus_t (*destroy_)(Object);
  Object object_ = nullptr;
};

struct TensorDesc : Owned<prnnTensorDescriptor_t> {
  explicit TensorDesc(const Prnn& prnn) : Owned(prnn, prnn.CreateTensorDescriptor, prnn.DestroyTensorDescriptor) {}
};
struct FilterDesc : Owned<prnnFilterDescriptor_t> {
  explicit FilterDesc(const Prnn& prnn) : Owned(prnn, prnn.CreateFilterDescriptor, prnn.DestroyFilterDescriptor) {}
};
struct DropoutDesc : Owned<prnnDropoutDescriptor_t> {
  explicit DropoutDesc(const Prnn& prnn) : Owned(prnn, prnn.CreateDropoutDescriptor, prnn.DestroyDropoutDescriptor) {}
};
struct RnnDesc : Owned<prnnRNNDescriptor_t> {
  explicit RnnDesc(const Prnn& prnn) : Owned(prnn, prnn.CreateRNNDescriptor, prnn.DestroyRNNDescriptor) {}
};

// A call of the layer over packed sequences.
struct PreparedCall : Owned<prnnRNNCall_t> {
  PreparedCall(const Prnn& prnn, prnnHandle_t handle, prnnRNNDescriptor_t rnn, bool is_training, int input,
               const std::vector<int>& batch_sizes)
      : Owned(
            prnn,
            [&](prnnRNNCall_t* call) {
              const prnnForwardMode_t mode = is_training ? PRNN_FWD_MODE_TRAINING : PRNN_FWD_MODE_INFERENCE;
              return prnn.PrepareRNN(handle, rnn, mode, input, static_cast<int>(batch_sizes.size()), batch_sizes.data(),
                                     call);
            },
            prnn.DestroyRNNCall, handle) {
    prnn.require(prnn.GetRNNCallInfo(get(), &info), handle);
  }

  prnnRNNCallInfo_t info{};
};

}  // namespace prnn_cudnn
