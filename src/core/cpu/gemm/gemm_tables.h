// The tables that gemm_portable.cc, gemm_avx2.cc and gemm_avx512.cc define.
#pragma once

#include "core/cpu/gemm/gemm.h"

namespace prnn {

struct GemmTables {
  GemmKernels<float> single;
  GemmKernels<double> twice;
  GemmKernels<Half> half;
  GemmKernels<Bfloat16> bfloat16;
};

const GemmTables& gemm_tables_portable();
const GemmTables& gemm_tables_avx2();
const GemmTables& gemm_tables_avx512();

// The kernels of gemm_bfloat16_avx512.cc and gemm_amx_avx512.cc; NULL where the compiler does not know the
// instructions.
const GemmKernels<Bfloat16>* gemm_kernels_bfloat16();
const GemmKernels<Bfloat16>* gemm_kernels_amx();

}  // namespace prnn
