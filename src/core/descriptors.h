// The structs behind the opaque descriptors, and the checks that read them.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/object_pool.h"
#include "core/status.h"

struct prnnTensorStruct {
  static constexpr uint32_t kAlive = 0x74656e73;
  static constexpr const char* kKind = "tensor";

  uint32_t tag = kAlive;
  prnnDataType_t type = PRNN_DATA_FLOAT;
  int rank = 0;  // 0: not set yet
  std::array<int, PRNN_DIM_MAX> dims{};
  std::array<int, PRNN_DIM_MAX> strides{};
};

struct prnnFilterStruct {
  static constexpr uint32_t kAlive = 0x66696c74;
  static constexpr const char* kKind = "filter";

  uint32_t tag = kAlive;
  prnnDataType_t type = PRNN_DATA_FLOAT;
  prnnTensorFormat_t format = PRNN_TENSOR_NCHW;
  bool set = false;
  int rank = 0;  // 0 in a set descriptor: no elements
  std::array<int, PRNN_DIM_MAX> dims{};
};

struct prnnDropoutStruct {
  static constexpr uint32_t kAlive = 0x64726f70;
  static constexpr const char* kKind = "dropout";

  uint32_t tag = kAlive;
  bool set = false;
  float probability = 0;
  void* states = nullptr;
  int device = -1;  // of the handle it was set with; -1 is the CPU
};

namespace prnn {

// The object that `states` of a dropout descriptor points to, in the memory of the handle's device.
struct DropoutStates {
  uint64_t seed;
  uint64_t calls;  // training forward calls that have drawn from it
};

size_t type_size(prnnDataType_t type);
void require_known_type(const prnnDataType_t& type, const char* name);

// "{16, 80, 1}", for messages.
std::string dims_text(const prnnTensorStruct& tensor);

// The name of an argument for messages: "hxDesc", or "xDesc[3]" for an element of an array.
struct ArgumentName {
  ArgumentName(const char* base_name) : base(base_name) {}  // NOLINT: a name converts
  ArgumentName(const char* base_name, int64_t element) : base(base_name), index(element) {}
  std::string text() const { return index < 0 ? base : std::string(base) + "[" + std::to_string(index) + "]"; }

  const char* base;
  int64_t index = -1;
};

// Throws BAD_PARAM unless the descriptor is alive, set, of the type and packed (row-major without gaps).
void require_packed_tensor(const prnnTensorStruct* tensor, const ArgumentName& name, prnnDataType_t type);

// The same, and its dimensions must be `expected` followed by nothing but ones.
void require_tensor(const prnnTensorStruct* tensor, const ArgumentName& name, prnnDataType_t type,
                    std::initializer_list<int64_t> expected);

// Throws BAD_PARAM unless the descriptor is alive, set, of the type and has this number of elements.
void require_filter(const prnnFilterStruct* filter, const char* name, prnnDataType_t type, int64_t elements);

}  // namespace prnn
