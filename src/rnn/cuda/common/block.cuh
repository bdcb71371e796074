// The share of a launch that a block works on.
#pragma once

#include "rnn/cuda/common/params.h"

namespace prnn {

// Blocks are numbered by direction, replica and units. Columns are sequences.
struct BlockPlace {
  int direction;
  int replica;
  int first_unit;
  int first_column;  // of the replica
  int columns;       // of the replica; not above 0: none
};

// `units`: of a block.
__device__ __forceinline__ BlockPlace place_of_block(const ResidentSizes& sizes, int units) {
  const int blocks_per_direction = sizes.blocks * sizes.replicas;
  const int block = static_cast<int>(blockIdx.x);
  const int replica = block % blocks_per_direction / sizes.blocks;
  const int first_column = sizes.first_column + replica * sizes.columns_per_replica;
  return {block / blocks_per_direction, replica, block % sizes.blocks * units, first_column,
          min(sizes.columns_per_replica, sizes.first_column + sizes.columns - first_column)};
}

}  // namespace prnn
