// The cuDNN that the process has loaded, behind the stand-in.
#pragma once

#include "cudnn_standin/cudnn.h"

namespace prnn_cudnn {

struct RealCudnn {
  Cudnn functions{};
  std::string path;
  std::string forwards_all;    // why no call is taken; empty: calls may be
  bool has_functions = false;  // all of them are there, of the right version
};

// Found by the first call, which can only come from a program that has cuDNN loaded.
const RealCudnn& real_cudnn();

}  // namespace prnn_cudnn
