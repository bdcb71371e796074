// Reading enumerations that come from callers, and their enumerators' names for messages.
#pragma once

#include <cstring>
#include <initializer_list>

#include "persistent_rnn.h"
#include "prnn_decode.h"
#include "prnn_losses.h"

namespace prnn {

// The number in a caller's enumeration, which need not be one of its values; C++ lets only an int be looked at then.
template <class Enum>
int integer_in(const Enum& value) {
  int result;
  static_assert(sizeof result == sizeof value);
  std::memcpy(&result, &value, sizeof result);
  return result;
}

// An enumerator as the public headers write it: "PRNN_LSTM". NULL of what is none of the enumeration's values.
const char* name_of(const prnnDataType_t& value);
const char* name_of(const prnnTensorFormat_t& value);
const char* name_of(const prnnRNNMode_t& value);
const char* name_of(const prnnDirectionMode_t& value);
const char* name_of(const prnnRNNInputMode_t& value);
const char* name_of(const prnnForwardMode_t& value);
const char* name_of(const prnnRNNBackend_t& value);
const char* name_of(const prnnWgradMode_t& value);
const char* name_of(const prnnMathType_t& value);
const char* name_of(const prnnRNNEngine_t& value);
const char* name_of(const prnnLossInput_t& value);
const char* name_of(const prnnTargetLayout_t& value);
const char* name_of(const prnnRNNTType_t& value);
const char* name_of(const prnnRNNTLayout_t& value);
const char* name_of(const prnnDurationRNNTType_t& value);
const char* name_of(const prnnJointActivation_t& value);
const char* name_of(const prnnNormalization_t& value);
const char* name_of(const prnnPredictorKind_t& value);
const char* name_of(const prnnTransducerBeamMode_t& value);

struct Enumerator {
  int value;
  const char* name;  // or NULL
};

// Throws BAD_PARAM: argument `name` is `given`; it must be one of `accepted`.
[[noreturn]] void refuse_enumerator(const char* name, Enumerator given, const Enumerator* accepted, size_t count);

// Throws BAD_PARAM unless `value` is one of `accepted`.
template <class Enum>
void require_enumerator(const Enum& value, std::initializer_list<Enum> accepted, const char* name) {
  constexpr size_t kMost = 8;
  Enumerator known[kMost];
  size_t count = 0;
  for (const Enum one : accepted) {
    if (integer_in(value) == one) return;
    if (count < kMost) known[count++] = {one, name_of(one)};
  }
  refuse_enumerator(name, {integer_in(value), name_of(value)}, known, count);
}

}  // namespace prnn
