#pragma once

#include <limits>

namespace prnn {

// The logarithm of no probability.
constexpr double kNever = -std::numeric_limits<double>::infinity();

}  // namespace prnn
