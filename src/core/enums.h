// Reading enumerations that come from callers.
#pragma once

#include <cstring>

namespace prnn {

// What a caller's enumeration holds, which need not be one of its values; C++ lets only an int be looked at then.
template <class Enum>
int integer_in(const Enum& value) {
  int result;
  static_assert(sizeof result == sizeof value);
  std::memcpy(&result, &value, sizeof result);
  return result;
}

}  // namespace prnn
