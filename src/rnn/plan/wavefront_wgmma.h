// How the forward wgmma wavefront kernels are laid out: LSTM layers of more sequences than a tile, by wgmma. Plain C++
// that needs no GPU. docs/resident_kernels.md, section wavefront.
#pragma once

#include "rnn/plan/wavefront.h"
#include "rnn/plan/wgmma.h"

namespace prnn {

// A block has 16 units for each of one or two tiles of 64 rows. Its two warpgroups have a part of K each, whose chunks
// are kWgmmaChunk elements; a chunk tile is a tile's rows of one chunk.
constexpr int kWavefrontWgmmaColumns = 32;  // sequences of a replica, at most
constexpr int kWavefrontWgmmaBatch = 2;     // chunks that are waited for and multiplied together
constexpr int kWavefrontWgmmaRing = 4;      // batches of the neighbour's state in shared memory
constexpr int wavefront_wgmma_chunks(int tiles) { return 16 / tiles; }  // of a part, at most
// Chunk tiles of a warpgroup's weights that are in registers (16 a thread each).
constexpr int wavefront_wgmma_register_tiles(int tiles) { return tiles == 1 ? 9 : 8; }

// Dynamic shared memory of a block: states, the neighbour's sums, the states in their transposition, weights.
constexpr int64_t wavefront_wgmma_shared_bytes(int tiles) {
  const int chunks = wavefront_wgmma_chunks(tiles), columns = kWavefrontWgmmaColumns;
  const int64_t states = int64_t{chunks + kWavefrontWgmmaRing * kWavefrontWgmmaBatch} * columns * 128;
  const int64_t sums = int64_t{tiles} * columns * 256, transposed = 4096;
  return states + sums + transposed +
         int64_t{2} * (chunks * tiles - wavefront_wgmma_register_tiles(tiles)) * kWgmmaTileBytes;
}

// Sets `shape` to the layout of a launch; returns how many layers it takes, 1: there is none.
int choose_wgmma_wavefront(const GpuRow& row, const RnnProblem& problem, ResidentShape* shape);

}  // namespace prnn
