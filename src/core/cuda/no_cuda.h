// For the no_cuda.cc of every folder called cuda.
#pragma once

namespace prnn {

// Throws NOT_SUPPORTED. Not in a build with CUDA.
[[noreturn]] void fail_without_cuda();

}  // namespace prnn
