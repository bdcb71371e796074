// The part of cuDNN's recurrent API that is used, loaded at run time: libprnn is built without cuDNN and runs without.
// Objects are void*, enumerations int, with the values that cuDNN documents for versions 8 and 9.
#pragma once

#include <cstddef>
#include <cstdint>

namespace prnn {

// Where variable-length batches need no array of lengths in device memory, which a call would have to fill.
constexpr size_t kOldestCudnn = 8901;

struct CudnnLibrary {
  size_t (*get_version)();
  int (*create)(void** handle);
  int (*destroy)(void* handle);
  int (*set_stream)(void* handle, void* stream);
  int (*create_tensor)(void** descriptor);
  int (*destroy_tensor)(void* descriptor);
  int (*set_tensor)(void* descriptor, int type, int rank, const int dims[], const int strides[]);
  int (*create_dropout)(void** descriptor);
  int (*destroy_dropout)(void* descriptor);
  int (*set_dropout)(void* descriptor, void* handle, float probability, void* states, size_t size,
                     unsigned long long seed);
  int (*restore_dropout)(void* descriptor, void* handle, float probability, void* states, size_t size,
                         unsigned long long seed);
  int (*get_dropout_states_size)(void* handle, size_t* size);
  int (*create_rnn)(void** descriptor);
  int (*destroy_rnn)(void* descriptor);
  int (*set_rnn)(void* descriptor, int algorithm, int cell, int bias, int direction, int input_mode, int data_type,
                 int math_precision, int math_type, int32_t input, int32_t hidden, int32_t projection, int32_t layers,
                 void* dropout, uint32_t flags);
  int (*create_data)(void** descriptor);
  int (*destroy_data)(void* descriptor);
  int (*set_data)(void* descriptor, int type, int layout, int steps, int batch, int width, const int lengths[],
                  void* padding);
  int (*get_temporary_sizes)(void* handle, void* rnn, int forward_mode, void* data, size_t* workspace, size_t* reserve);
  int (*get_weights_size)(void* handle, void* rnn, size_t* size);
  int (*get_weights)(void* handle, void* rnn, int32_t pseudo_layer, size_t size, const void* weights, int32_t id,
                     void* matrix_descriptor, void** matrix, void* bias_descriptor, void** bias);
  int (*forward)(void* handle, void* rnn, int mode, const int32_t* device_lengths, void* x_desc, const void* x,
                 void* y_desc, void* y, void* h_desc, const void* hx, void* hy, void* c_desc, const void* cx, void* cy,
                 size_t weights_size, const void* weights, size_t workspace_size, void* workspace, size_t reserve_size,
                 void* reserve);
  int (*backward_data)(void* handle, void* rnn, const int32_t* device_lengths, void* y_desc, const void* y,
                       const void* dy, void* x_desc, void* dx, void* h_desc, const void* hx, const void* dhy, void* dhx,
                       void* c_desc, const void* cx, const void* dcy, void* dcx, size_t weights_size,
                       const void* weights, size_t workspace_size, void* workspace, size_t reserve_size, void* reserve);
  int (*backward_weights)(void* handle, void* rnn, int mode, const int32_t* device_lengths, void* x_desc, const void* x,
                          void* h_desc, const void* hx, void* y_desc, const void* y, size_t weights_size,
                          void* dweights, size_t workspace_size, void* workspace, size_t reserve_size, void* reserve);
};

// cuDNN, loaded by the first call: the file that PRNN_CUDNN_LIBRARY names, else the library that the process has
// already (torch brings one), else the system's. Throws NOT_SUPPORTED with what was tried if there is none.
const CudnnLibrary& require_cudnn_library();

}  // namespace prnn
