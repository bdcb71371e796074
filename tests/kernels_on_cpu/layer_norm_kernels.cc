// In a file of their own: the order of accesses is followed in it alone.
#include "layer_norm_kernels.h"

namespace prnn {

PRNN_LAYER_NORM_KERNELS()

}  // namespace prnn
