#if defined(__x86_64__)
#include "core/cpu/gemm/gemm_impl.h"

const prnn::GemmTables& prnn::gemm_tables_avx512() { return PRNN_ISA_NAMESPACE::kGemmTables; }
#endif
