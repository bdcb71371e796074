#include "rnn/cpu/cells_impl.h"

const prnn::CellTables& prnn::cell_tables_portable() { return PRNN_ISA_NAMESPACE::kCellTables; }
