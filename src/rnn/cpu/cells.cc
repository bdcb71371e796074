#include "rnn/cpu/cells.h"

#include "core/cpu/isa.h"

namespace prnn {

template <>
const CellKernels<float>& cell_kernels<float>() {
  return PRNN_FOR_ISA(cell_tables).single;
}

template <>
const CellKernels<double>& cell_kernels<double>() {
  return PRNN_FOR_ISA(cell_tables).twice;
}

}  // namespace prnn
