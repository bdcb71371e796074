// Reading enumerations that come from callers, and their enumerators' names for messages.
#pragma once

#include <cstring>
#include <initializer_list>
#include <typeinfo>

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

// The name of an enumeration's value; NULL: it is none of its values.
const char* find_name(const std::type_info& type, int value);

// An enumerator as the public headers write it: "PRNN_LSTM". NULL of what is none of the enumeration's values.
template <class Enum>
const char* name_of(const Enum& value) {
  return find_name(typeid(Enum), integer_in(value));
}

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
