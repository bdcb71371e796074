#if defined(__x86_64__)
#include "rnn/cpu/cells_impl.h"

const prnn::CellTables& prnn::cell_tables_avx2() { return PRNN_ISA_NAMESPACE::kCellTables; }
#endif
