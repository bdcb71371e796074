#include "rnn/plan/wavefront_wgmma.h"

#include <algorithm>

#include "rnn/plan/plan.h"

namespace prnn {

int choose_wgmma_wavefront(const GpuRow& row, const RnnProblem& problem, ResidentShape* shape) {
  const int64_t hidden = problem.hidden, batch = problem.max_batch();
  // Fewer sequences gain nothing: measured on an H200.
  if (hidden <= 256 || hidden > 1024 || batch <= 2 * kTileColumns) return 1;
  const int tiles = hidden <= 512 ? 2 : 1;
  const int64_t units = int64_t{kWgmmaUnits} * tiles;
  const int64_t blocks = ceil_div(hidden, units);
  const int64_t replicas = ceil_div(batch, kWavefrontWgmmaColumns), columns = ceil_div(batch, replicas);
  const int64_t layers =
      std::min({problem.layers, resident_blocks(row, 1) / (blocks * replicas), int64_t{kWavefrontLayers}});
  const int64_t shared_bytes = wavefront_wgmma_shared_bytes(tiles);
  if (layers < 2 || shared_bytes + 1024 > row.shared_bytes) return 1;
  const bool exists = any_kernel(row, problem, Engine::kWavefrontWgmma, Pass::kForward, [&](KernelId kernel) {
    if (kernel.shape(0) != tiles) return false;
    *shape = split_units(hidden, units, 1, replicas);
    shape->kernel = kernel;
    shape->tiles = static_cast<int>(ceil_div(columns, kTileColumns));
    shape->shared_bytes = shared_bytes;
    const int64_t chunk_tiles = int64_t{wavefront_wgmma_chunks(tiles)} * tiles,
                  in_registers = wavefront_wgmma_register_tiles(tiles);
    set_weights(2 * in_registers * kWgmmaTileBytes, 2 * (chunk_tiles - in_registers) * kWgmmaTileBytes, shape);
    const auto& delays = row.delays->wavefront_wgmma;
    shape->poll_delay_cycles = tiles == 2 ? delays.two_tiles : delays.one_tile;
    return true;
  });
  return exists ? static_cast<int>(layers) : 1;
}

}  // namespace prnn
