// Bytes of workspace that a call can use, and the fewest that it runs with.
#pragma once

#include <cstddef>

namespace prnn {

// The two differ on the CPU, where each thread has a part of its own: a call shares out what it is given. So a
// workspace that was sized for fewer threads serves as many as it has room for.
struct WorkspaceSize {
  WorkspaceSize(size_t size) : all(size), least(size) {}
  WorkspaceSize(size_t all_bytes, size_t least_bytes) : all(all_bytes), least(least_bytes) {}

  size_t all, least;
};

}  // namespace prnn
