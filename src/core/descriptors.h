// The structs behind the opaque descriptors, and the checks that read them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "core/status.h"

struct prnnTensorStruct {
  prnnDataType_t type = PRNN_DATA_FLOAT;
  int rank = 0;  // 0: not set yet
  std::array<int, PRNN_DIM_MAX> dims{};
  std::array<int, PRNN_DIM_MAX> strides{};
};

struct prnnFilterStruct {
  prnnDataType_t type = PRNN_DATA_FLOAT;
  prnnTensorFormat_t format = PRNN_TENSOR_NCHW;
  bool set = false;
  int rank = 0;  // 0 in a set descriptor: no elements
  std::array<int, PRNN_DIM_MAX> dims{};
};

namespace prnn {

// What `states` of a dropout descriptor points to, in the memory of the handle's device.
struct DropoutStates {
  uint64_t seed;
  uint64_t calls;  // training forward calls that have drawn from it
};

// "float", "double", "half", "bfloat16", or "type 7" for what is none of them. Static or thread-local storage.
const char* type_name(prnnDataType_t type);
bool is_known_type(prnnDataType_t type);
size_t type_size(prnnDataType_t type);

// "{16, 80, 1}", for messages.
std::string dims_text(const prnnTensorStruct& tensor);

// Throws BAD_PARAM unless the descriptor is set, has the type, is packed (row-major without gaps) and its dimensions
// are `expected` followed by nothing but ones.
void require_tensor(const prnnTensorStruct* tensor, const char* name, prnnDataType_t type,
                    std::initializer_list<int64_t> expected);

}  // namespace prnn

struct prnnDropoutStruct {
  bool set = false;
  float probability = 0;
  void* states = nullptr;
  int device = -1;  // of the handle it was set with; -1 is the CPU
};
