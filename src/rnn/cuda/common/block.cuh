// The share of a launch that a block works on.
#pragma once

#include "rnn/cuda/common/params.h"

namespace prnn {

// Blocks are numbered by direction (wavefront: layer), replica and units. Columns are sequences.
struct BlockPlace {
  int direction;
  int replica;
  int first_unit;
  int first_column;  // of the replica
  int columns;       // of the replica; not above 0: none
};

// `units`: of a block. Unsigned divisions: signed ones cost registers, and one kernel spilled.
__device__ __forceinline__ BlockPlace place_of_block(const ResidentSizes& sizes, int units) {
  const unsigned blocks = sizes.blocks, blocks_per_direction = sizes.blocks * sizes.replicas;
  BlockPlace place;
  place.direction = blockIdx.x / blocks_per_direction;
  place.replica = blockIdx.x % blocks_per_direction / blocks;
  place.first_unit = blockIdx.x % blocks * units;
  place.first_column = sizes.first_column + place.replica * sizes.columns_per_replica;
  place.columns = min(sizes.columns_per_replica, sizes.first_column + sizes.columns - place.first_column);
  return place;
}

}  // namespace prnn
