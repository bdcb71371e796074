#include "core/cpu/gemm/gemm_impl.h"

const prnn::GemmTables& prnn::gemm_tables_portable() { return PRNN_ISA_NAMESPACE::kGemmTables; }
