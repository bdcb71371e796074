// The part of cuDNN 9 that the stand-in calls and answers for. Objects are void*, enumerations int, with the values
// that cuDNN documents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

namespace prnn_cudnn {

using Status = int;
constexpr Status kSuccess = 0, kNotInitialized = 1001, kBadParam = 2000, kNotSupported = 3000, kInternalError = 4000,
                 kExecutionFailed = 5000;

constexpr int kCudnnMajor = 9;
constexpr int kInference = 0, kTraining = 1;                                         // cudnnForwardMode_t
constexpr int kNoBias = 0, kInputBias = 1, kTwoBiases = 2, kRecurrentBias = 3;       // cudnnRNNBiasMode_t
constexpr int kSequenceMajor = 0, kPacked = 1, kBatchMajor = 2;                      // cudnnRNNDataLayout_t
constexpr int kAdd = 0, kSet = 1;                                                    // cudnnWgradMode_t
constexpr int kNoClipping = 0;                                                       // cudnnRNNClipMode_t
constexpr int kDefaultMath = 0, kTensorMath = 1, kConvertingMath = 2, kFmaMath = 3;  // cudnnMathType_t
constexpr unsigned kPaddedIo = 1;                                                    // of auxFlags

// The functions that the stand-in answers in cuDNN's place.
using GetTempSpaceSizes = Status(void* handle, void* rnn, int forward_mode, void* x_desc, size_t* workspace,
                                 size_t* reserve);
using Forward = Status(void* handle, void* rnn, int forward_mode, const int32_t* device_lengths, void* x_desc,
                       const void* x, void* y_desc, void* y, void* h_desc, const void* hx, void* hy, void* c_desc,
                       const void* cx, void* cy, size_t weights_size, const void* weights, size_t workspace_size,
                       void* workspace, size_t reserve_size, void* reserve);
using BackwardData = Status(void* handle, void* rnn, const int32_t* device_lengths, void* y_desc, const void* y,
                            const void* dy, void* x_desc, void* dx, void* h_desc, const void* hx, const void* dhy,
                            void* dhx, void* c_desc, const void* cx, const void* dcy, void* dcx, size_t weights_size,
                            const void* weights, size_t workspace_size, void* workspace, size_t reserve_size,
                            void* reserve);
using BackwardWeights = Status(void* handle, void* rnn, int add, const int32_t* device_lengths, void* x_desc,
                               const void* x, void* h_desc, const void* hx, void* y_desc, const void* y,
                               size_t weights_size, void* dweights, size_t workspace_size, void* workspace,
                               size_t reserve_size, void* reserve);

// cuDNN's own functions. All are there, or the stand-in takes no call.
struct Cudnn {
  GetTempSpaceSizes* get_temp_space_sizes;
  Forward* forward;
  BackwardData* backward_data;
  BackwardWeights* backward_weights;
  size_t (*get_version)();
  Status (*get_stream)(void* handle, void** stream);
  Status (*get_rnn)(void* rnn, int* algorithm, int* mode, int* bias, int* direction, int* input_mode, int* type,
                    int* math_precision, int* math_type, int32_t* input, int32_t* hidden, int32_t* projection,
                    int32_t* layers, void** dropout, uint32_t* flags);
  Status (*get_clip)(void* rnn, int* mode, double* low, double* high);
  Status (*get_data)(void* data, int* type, int* layout, int* steps, int* batch, int* width, int lengths_requested,
                     int* lengths, void* padding);
  Status (*get_weights_size)(void* handle, void* rnn, size_t* size);
  Status (*get_weights)(void* handle, void* rnn, int32_t pseudo_layer, size_t size, const void* weights, int32_t id,
                        void* matrix_desc, void** matrix, void* bias_desc, void** bias);
  Status (*create_tensor)(void** tensor);
  Status (*destroy_tensor)(void* tensor);
  Status (*set_tensor)(void* tensor, int type, int rank, const int* dims, const int* strides);
  Status (*get_tensor)(void* tensor, int rank_requested, int* type, int* rank, int* dims, int* strides);
  Status (*create_dropout)(void** dropout);
  Status (*destroy_dropout)(void* dropout);
  Status (*get_dropout)(void* dropout, void* handle, float* probability, void** states, unsigned long long* seed);
  Status (*restore_dropout)(void* dropout, void* handle, float probability, void* states, size_t size,
                            unsigned long long seed);
  Status (*dropout_states_size)(void* handle, size_t* size);
  Status (*dropout_reserve_size)(void* x_desc, size_t* size);
  Status (*dropout_forward)(void* handle, void* dropout, void* x_desc, const void* x, void* y_desc, void* y,
                            void* reserve, size_t reserve_size);
};

// A call that was taken and cannot be served. The message is a sentence without a full stop.
class Failure : public std::exception {
 public:
  Failure(Status status, std::string message) : status_(status), message_(std::move(message)) {}
  Status status() const { return status_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  Status status_;
  std::string message_;
};

// Throws a Failure unless the call succeeded.
inline void require(Status status, const char* what) {
  if (status != kSuccess) throw Failure(status, std::string("cuDNN refused ") + what);
}

// A descriptor of cuDNN's that one call makes and destroys.
class CudnnObject {
 public:
  CudnnObject(Status (*create)(void**), Status (*destroy)(void*)) : destroy_(destroy) {
    require(create(&object_), "a descriptor");
  }
  CudnnObject(const CudnnObject&) = delete;
  CudnnObject& operator=(const CudnnObject&) = delete;
  ~CudnnObject() { destroy_(object_); }
  void* get() const { return object_; }

 private:
  Status (*destroy_)(void*);
  void* object_ = nullptr;
};

}  // namespace prnn_cudnn
