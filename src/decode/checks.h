// Checks that the search and the layers of streams share. Each throws BAD_PARAM with the argument's name, its value and
// what would be accepted.
#pragma once

#include <algorithm>
#include <vector>

#include "core/loss_checks.h"

namespace prnn {

// Checks an array that models of one kind have and others do not.
inline void require_only_if(bool wanted, const void* array, const char* name, const char* reason) {
  if (wanted) return require_not_null(array, name);
  if (array != nullptr) fail(PRNN_STATUS_BAD_PARAM, "%s is given; it must be NULL %s", name, reason);
}

// Checks a prepared model, which like workspaces is aligned to 16 bytes.
inline void check_prepared(const void* prepared) {
  require_not_null(prepared, "prepared");
  if (reinterpret_cast<uintptr_t>(prepared) % 16 != 0)
    fail(PRNN_STATUS_BAD_PARAM, "prepared is at address %p; it must be aligned to 16 bytes", prepared);
}

// Slots of a call, which NULL means all in order.
inline void require_different(const int* slots, int64_t count, const char* name) {
  if (slots == nullptr) return;
  std::vector<int> sorted(slots, slots + count);
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end())
    fail(PRNN_STATUS_BAD_PARAM, "%s holds %d twice; slots must be different ones", name, *twice);
}

}  // namespace prnn
