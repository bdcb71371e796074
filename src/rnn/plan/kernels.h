// The resident kernels that exist, as data: for which engine, pass, cells, types and GPU feature, with which
// compile-time shape. The planner chooses a row, the launcher turns it into a function, and
// site_scons/kernel_instances.py, which reads the rows of kKernels as text, writes the files that instantiate them.
// A kernel that stands here and not in the library, or the other way round, fails the build (rnn/cuda/launch.cc).
#pragma once

#include <cstdint>

#include "core/gpu_table.h"
#include "persistent_rnn.h"

namespace prnn {

// How a kernel multiplies, and how its blocks exchange what they compute. Shape of each, as in the rows below:
enum class Engine : int8_t {
  kMma,             // mma.sync, states through L2. {units in eights, blocks that split K}; forward the former alone
  kMmaExtras,       // the same with prnnRNNExtras_t, which takes registers. As kMma
  kMmaLarge,        // mma.sync with more weights in registers, one tile of sequences, for the largest layers. {}
  kMmaLargeExtras,  // the same with prnnRNNExtras_t. {}
  kWgmma,           // wgmma, states through L2. {sequences of a replica}
  kWgmmaSplitK,     // the same, forward too in clusters that split K. {sequences of a replica}
  kWgmmaMulticast,  // the same, clusters that read states together. {sequences of a group, groups of a replica}
  kCluster,         // mma.sync, a replica is one cluster and exchanges in shared memory. {k-tiles, blocks}
  kProjected,       // mma.sync, LSTMs with a projection whose two matrices stay apart. {units in eights}
  kSimt,            // FFMA, for few sequences. {units, 16-byte loads a lane, sequences, blocks; 1: through L2}
  kWavefrontMma,    // layers of a stack together, mma.sync. {units in eights, blocks that split K, k-tiles of a warp}
  kWavefrontWgmma,  // layers of a stack together, wgmma. {tiles of 64 rows}
  // Layers of a stack together, some timesteps apart: mma.sync for states, wgmma for inputs. Forward {units in eights},
  // backward {units in eights, blocks that split K}
  kWavefrontChunked,
  // LSTMs on the input of their gates, normalised or not
  kNormCluster,  // mma.sync, a replica is one cluster. {H in eights, at most; blocks; tiles of sequences}
  kNormGrid,  // mma.sync, states through L2. Forward {units in eights}, backward {units in eights, blocks that split K}
  kNormSteps,  // a matrix product and a kernel for each timestep; not in kKernels
};

enum class Pass : int8_t { kForward, kBackward };

// Sets of cells and of types. kRnn: both activations; kSlstm: both forget gates. kGated, kAll: without kSlstm.
struct Cells {
  enum : uint8_t { kRnn = 1, kGru = 2, kLstm = 4, kSlstm = 8, kGated = kGru | kLstm, kAll = kRnn | kGated };
};
struct Types {
  enum : uint8_t { kFloat = 1, kTf32 = 2, kHalf = 4, kBfloat16 = 8, k32Bit = 3, k16Bit = 12, kTensor = 14, kAll = 15 };
};

struct Kernel {
  Engine engine;
  Pass pass;
  uint8_t cells, types;
  Feature feature;
  int8_t shape[4];
};

// A row that comes first is preferred where the planner ranks two of one engine, pass and cell alike. One row a line.
constexpr Kernel kKernels[] = {
    {Engine::kMma, Pass::kForward, Cells::kLstm, Types::kAll, Feature::kNone, {1}},
    {Engine::kMma, Pass::kForward, Cells::kLstm, Types::kAll, Feature::kNone, {2}},
    {Engine::kMma, Pass::kForward, Cells::kGru, Types::kAll, Feature::kNone, {1}},
    {Engine::kMma, Pass::kForward, Cells::kGru, Types::kAll, Feature::kNone, {2}},
    {Engine::kMma, Pass::kForward, Cells::kGru, Types::kAll, Feature::kNone, {3}},
    {Engine::kMma, Pass::kForward, Cells::kRnn, Types::kAll, Feature::kNone, {2}},
    {Engine::kMma, Pass::kForward, Cells::kRnn, Types::kAll, Feature::kNone, {4}},
    {Engine::kMma, Pass::kBackward, Cells::kLstm, Types::kAll, Feature::kNone, {1, 1}},
    {Engine::kMma, Pass::kBackward, Cells::kLstm, Types::kAll, Feature::kNone, {2, 1}},
    {Engine::kMma, Pass::kBackward, Cells::kLstm, Types::kAll, Feature::kClusters, {2, 2}},
    {Engine::kMma, Pass::kBackward, Cells::kLstm, Types::k32Bit, Feature::kClusters, {1, 4}},
    {Engine::kMma, Pass::kBackward, Cells::kLstm, Types::k32Bit, Feature::kClusters, {2, 4}},
    {Engine::kMma, Pass::kBackward, Cells::kGru, Types::kAll, Feature::kNone, {1, 1}},
    {Engine::kMma, Pass::kBackward, Cells::kGru, Types::kAll, Feature::kNone, {2, 1}},
    {Engine::kMma, Pass::kBackward, Cells::kGru, Types::kAll, Feature::kNone, {3, 1}},
    {Engine::kMma, Pass::kBackward, Cells::kGru, Types::k32Bit, Feature::kClusters, {1, 3}},
    {Engine::kMma, Pass::kBackward, Cells::kGru, Types::k32Bit, Feature::kClusters, {2, 3}},
    {Engine::kMma, Pass::kBackward, Cells::kGru, Types::kAll, Feature::kClusters, {3, 3}},
    {Engine::kMma, Pass::kBackward, Cells::kRnn, Types::kAll, Feature::kNone, {2, 1}},
    {Engine::kMma, Pass::kBackward, Cells::kRnn, Types::kAll, Feature::kNone, {4, 1}},
    {Engine::kMma, Pass::kForward, Cells::kSlstm, Types::kAll, Feature::kNone, {1}},
    {Engine::kMma, Pass::kBackward, Cells::kSlstm, Types::kAll, Feature::kNone, {1, 1}},
    {Engine::kMma, Pass::kBackward, Cells::kSlstm, Types::kAll, Feature::kNone, {2, 1}},

    {Engine::kMmaExtras, Pass::kForward, Cells::kLstm, Types::kAll, Feature::kNone, {1}},
    {Engine::kMmaExtras, Pass::kForward, Cells::kLstm, Types::kTensor, Feature::kNone, {2}},
    {Engine::kMmaExtras, Pass::kForward, Cells::kGru, Types::kAll, Feature::kNone, {1}},
    {Engine::kMmaExtras, Pass::kForward, Cells::kGru, Types::kAll, Feature::kNone, {2}},
    {Engine::kMmaExtras, Pass::kForward, Cells::kGru, Types::kTensor, Feature::kNone, {3}},
    {Engine::kMmaExtras, Pass::kForward, Cells::kRnn, Types::kAll, Feature::kNone, {4}},
    {Engine::kMmaExtras, Pass::kBackward, Cells::kLstm, Types::kAll, Feature::kNone, {1, 1}},
    {Engine::kMmaExtras, Pass::kBackward, Cells::kLstm, Types::kAll, Feature::kNone, {2, 1}},
    {Engine::kMmaExtras, Pass::kBackward, Cells::kLstm, Types::kTensor, Feature::kClusters, {2, 2}},
    {Engine::kMmaExtras, Pass::kBackward, Cells::kGru, Types::kAll, Feature::kNone, {1, 1}},
    {Engine::kMmaExtras, Pass::kBackward, Cells::kGru, Types::kAll, Feature::kNone, {2, 1}},
    {Engine::kMmaExtras, Pass::kBackward, Cells::kGru, Types::kAll, Feature::kClusters, {3, 3}},
    {Engine::kMmaExtras, Pass::kBackward, Cells::kRnn, Types::kAll, Feature::kNone, {4, 1}},
    {Engine::kMmaExtras, Pass::kForward, Cells::kSlstm, Types::kFloat, Feature::kNone, {1}},
    {Engine::kMmaExtras, Pass::kBackward, Cells::kSlstm, Types::kFloat, Feature::kNone, {1, 1}},

    {Engine::kMmaLarge, Pass::kForward, Cells::kAll, Types::kAll, Feature::kNone, {}},
    {Engine::kMmaLarge, Pass::kBackward, Cells::kAll, Types::kAll, Feature::kNone, {}},
    {Engine::kMmaLargeExtras, Pass::kForward, Cells::kAll, Types::kAll, Feature::kNone, {}},
    {Engine::kMmaLargeExtras, Pass::kBackward, Cells::kAll, Types::kAll, Feature::kNone, {}},
    {Engine::kMmaLargeExtras, Pass::kForward, Cells::kSlstm, Types::kAll, Feature::kNone, {}},
    {Engine::kMmaLargeExtras, Pass::kBackward, Cells::kSlstm, Types::kAll, Feature::kNone, {}},

    {Engine::kWgmma, Pass::kForward, Cells::kGated, Types::k16Bit, Feature::kWgmma, {8}},
    {Engine::kWgmma, Pass::kForward, Cells::kGated, Types::k16Bit, Feature::kWgmma, {16}},
    {Engine::kWgmma, Pass::kForward, Cells::kGated, Types::k16Bit, Feature::kWgmma, {32}},
    {Engine::kWgmma, Pass::kForward, Cells::kGated, Types::k16Bit, Feature::kWgmma, {64}},
    {Engine::kWgmma, Pass::kBackward, Cells::kGated, Types::k16Bit, Feature::kWgmma, {8}},
    {Engine::kWgmma, Pass::kBackward, Cells::kGated, Types::k16Bit, Feature::kWgmma, {16}},
    {Engine::kWgmma, Pass::kBackward, Cells::kGated, Types::k16Bit, Feature::kWgmma, {32}},
    {Engine::kWgmma, Pass::kBackward, Cells::kGated, Types::k16Bit, Feature::kWgmma, {64}},

    {Engine::kWgmmaSplitK, Pass::kForward, Cells::kGated, Types::k16Bit, Feature::kWgmma, {16}},
    {Engine::kWgmmaSplitK, Pass::kForward, Cells::kGated, Types::k16Bit, Feature::kWgmma, {32}},
    {Engine::kWgmmaSplitK, Pass::kForward, Cells::kGated, Types::k16Bit, Feature::kWgmma, {64}},
    {Engine::kWgmmaSplitK, Pass::kBackward, Cells::kGated, Types::k16Bit, Feature::kWgmma, {16}},
    {Engine::kWgmmaSplitK, Pass::kBackward, Cells::kGated, Types::k16Bit, Feature::kWgmma, {32}},
    {Engine::kWgmmaSplitK, Pass::kBackward, Cells::kGated, Types::k16Bit, Feature::kWgmma, {64}},

    {Engine::kWgmmaMulticast, Pass::kForward, Cells::kGated, Types::k16Bit, Feature::kWgmma, {64, 2}},
    {Engine::kWgmmaMulticast, Pass::kForward, Cells::kGated, Types::k16Bit, Feature::kWgmma, {32, 2}},
    {Engine::kWgmmaMulticast, Pass::kForward, Cells::kGated, Types::k16Bit, Feature::kWgmma, {32, 1}},
    {Engine::kWgmmaMulticast, Pass::kForward, Cells::kGated, Types::kTf32, Feature::kWgmma, {32, 2}},
    {Engine::kWgmmaMulticast, Pass::kForward, Cells::kGated, Types::kTf32, Feature::kWgmma, {32, 1}},
    {Engine::kWgmmaMulticast, Pass::kBackward, Cells::kGated, Types::k16Bit, Feature::kWgmma, {64, 2}},
    {Engine::kWgmmaMulticast, Pass::kBackward, Cells::kGated, Types::k16Bit, Feature::kWgmma, {32, 2}},
    {Engine::kWgmmaMulticast, Pass::kBackward, Cells::kGated, Types::k16Bit, Feature::kWgmma, {32, 1}},
    {Engine::kWgmmaMulticast, Pass::kBackward, Cells::kGated, Types::kTf32, Feature::kWgmma, {32, 2}},
    {Engine::kWgmmaMulticast, Pass::kBackward, Cells::kGated, Types::kTf32, Feature::kWgmma, {32, 1}},

    {Engine::kCluster, Pass::kForward, Cells::kAll, Types::k16Bit, Feature::kClusters, {4, 8}},
    {Engine::kCluster, Pass::kForward, Cells::kAll, Types::k16Bit, Feature::kClusters, {8, 8}},
    {Engine::kCluster, Pass::kForward, Cells::kAll, Types::k16Bit, Feature::kClusters, {16, 16}},
    {Engine::kCluster, Pass::kForward, Cells::kRnn, Types::k16Bit, Feature::kClusters, {16, 8}},
    {Engine::kCluster, Pass::kForward, Cells::kRnn, Types::k16Bit, Feature::kClusters, {32, 16}},
    {Engine::kCluster, Pass::kForward, Cells::kGated, Types::kTf32, Feature::kClusters, {8, 8}},
    {Engine::kCluster, Pass::kForward, Cells::kGated, Types::kTf32, Feature::kClusters, {16, 8}},
    {Engine::kCluster, Pass::kBackward, Cells::kAll, Types::k16Bit, Feature::kClusters, {4, 8}},
    {Engine::kCluster, Pass::kBackward, Cells::kAll, Types::k16Bit, Feature::kClusters, {8, 8}},
    {Engine::kCluster, Pass::kBackward, Cells::kAll, Types::k16Bit, Feature::kClusters, {16, 16}},
    {Engine::kCluster, Pass::kBackward, Cells::kRnn, Types::k16Bit, Feature::kClusters, {16, 8}},
    {Engine::kCluster, Pass::kBackward, Cells::kGated, Types::kTf32, Feature::kClusters, {8, 8}},
    {Engine::kCluster, Pass::kBackward, Cells::kGated, Types::kTf32, Feature::kClusters, {16, 8}},
    {Engine::kCluster, Pass::kForward, Cells::kSlstm, Types::k16Bit, Feature::kClusters, {4, 8}},
    {Engine::kCluster, Pass::kForward, Cells::kSlstm, Types::k16Bit, Feature::kClusters, {8, 8}},
    {Engine::kCluster, Pass::kForward, Cells::kSlstm, Types::k16Bit, Feature::kClusters, {16, 16}},
    {Engine::kCluster, Pass::kForward, Cells::kSlstm, Types::kTf32, Feature::kClusters, {8, 8}},
    {Engine::kCluster, Pass::kForward, Cells::kSlstm, Types::kTf32, Feature::kClusters, {16, 8}},
    {Engine::kCluster, Pass::kBackward, Cells::kSlstm, Types::k16Bit, Feature::kClusters, {4, 8}},
    {Engine::kCluster, Pass::kBackward, Cells::kSlstm, Types::k16Bit, Feature::kClusters, {8, 8}},
    {Engine::kCluster, Pass::kBackward, Cells::kSlstm, Types::k16Bit, Feature::kClusters, {16, 16}},
    {Engine::kCluster, Pass::kBackward, Cells::kSlstm, Types::kTf32, Feature::kClusters, {8, 8}},
    {Engine::kCluster, Pass::kBackward, Cells::kSlstm, Types::kTf32, Feature::kClusters, {16, 8}},

    {Engine::kProjected, Pass::kForward, Cells::kLstm, Types::k32Bit, Feature::kNone, {2}},
    {Engine::kProjected, Pass::kForward, Cells::kLstm, Types::kAll, Feature::kNone, {3}},
    {Engine::kProjected, Pass::kForward, Cells::kLstm, Types::kAll, Feature::kNone, {4}},
    {Engine::kProjected, Pass::kBackward, Cells::kLstm, Types::k32Bit, Feature::kNone, {2}},
    {Engine::kProjected, Pass::kBackward, Cells::kLstm, Types::kAll, Feature::kNone, {3}},
    {Engine::kProjected, Pass::kBackward, Cells::kLstm, Types::kAll, Feature::kNone, {4}},

    {Engine::kSimt, Pass::kForward, Cells::kRnn, Types::kFloat, Feature::kClusters, {32, 2, 1, 8}},
    {Engine::kSimt, Pass::kForward, Cells::kRnn, Types::kFloat, Feature::kClusters, {32, 4, 1, 16}},
    {Engine::kSimt, Pass::kForward, Cells::kRnn, Types::kFloat, Feature::kNone, {16, 4, 1, 1}},
    {Engine::kSimt, Pass::kForward, Cells::kRnn, Types::kFloat, Feature::kNone, {16, 8, 1, 1}},
    {Engine::kSimt, Pass::kForward, Cells::kRnn, Types::kFloat, Feature::kNone, {32, 8, 1, 1}},
    {Engine::kSimt, Pass::kForward, Cells::kRnn, Types::kFloat, Feature::kNone, {32, 21, 1, 1}},
    {Engine::kSimt, Pass::kForward, Cells::kRnn, Types::kFloat, Feature::kNone, {16, 2, 4, 1}},
    {Engine::kSimt, Pass::kForward, Cells::kGated, Types::kFloat, Feature::kClusters, {16, 4, 1, 16}},
    {Engine::kSimt, Pass::kForward, Cells::kGated, Types::kFloat, Feature::kNone, {8, 4, 1, 1}},
    {Engine::kSimt, Pass::kForward, Cells::kGated, Types::kFloat, Feature::kNone, {8, 6, 1, 1}},
    {Engine::kSimt, Pass::kForward, Cells::kGated, Types::kFloat, Feature::kNone, {8, 8, 1, 1}},
    {Engine::kSimt, Pass::kForward, Cells::kLstm, Types::kFloat, Feature::kNone, {16, 21, 1, 1}},
    {Engine::kSimt, Pass::kForward, Cells::kGru, Types::kFloat, Feature::kNone, {16, 28, 1, 1}},
    {Engine::kSimt, Pass::kBackward, Cells::kRnn, Types::kFloat, Feature::kClusters, {32, 2, 1, 8}},
    {Engine::kSimt, Pass::kBackward, Cells::kRnn, Types::kFloat, Feature::kClusters, {32, 4, 1, 16}},
    {Engine::kSimt, Pass::kBackward, Cells::kRnn, Types::kFloat, Feature::kNone, {16, 4, 1, 1}},
    {Engine::kSimt, Pass::kBackward, Cells::kRnn, Types::kFloat, Feature::kNone, {16, 8, 1, 1}},
    {Engine::kSimt, Pass::kBackward, Cells::kRnn, Types::kFloat, Feature::kNone, {32, 8, 1, 1}},
    {Engine::kSimt, Pass::kBackward, Cells::kRnn, Types::kFloat, Feature::kNone, {32, 21, 1, 1}},
    {Engine::kSimt, Pass::kBackward, Cells::kRnn, Types::kFloat, Feature::kNone, {16, 2, 4, 1}},
    {Engine::kSimt, Pass::kBackward, Cells::kGated, Types::kFloat, Feature::kClusters, {16, 4, 1, 16}},
    {Engine::kSimt, Pass::kBackward, Cells::kGated, Types::kFloat, Feature::kNone, {8, 4, 1, 1}},
    {Engine::kSimt, Pass::kBackward, Cells::kGated, Types::kFloat, Feature::kNone, {8, 6, 1, 1}},
    {Engine::kSimt, Pass::kBackward, Cells::kGated, Types::kFloat, Feature::kNone, {8, 8, 1, 1}},
    {Engine::kSimt, Pass::kBackward, Cells::kLstm, Types::kFloat, Feature::kNone, {16, 21, 1, 1}},
    {Engine::kSimt, Pass::kBackward, Cells::kGru, Types::kFloat, Feature::kNone, {16, 21, 1, 1}},
    {Engine::kSimt, Pass::kForward, Cells::kSlstm, Types::kFloat, Feature::kClusters, {16, 4, 1, 16}},
    {Engine::kSimt, Pass::kForward, Cells::kSlstm, Types::kFloat, Feature::kNone, {8, 4, 1, 1}},
    {Engine::kSimt, Pass::kForward, Cells::kSlstm, Types::kFloat, Feature::kNone, {8, 8, 1, 1}},
    {Engine::kSimt, Pass::kBackward, Cells::kSlstm, Types::kFloat, Feature::kClusters, {16, 4, 1, 16}},
    {Engine::kSimt, Pass::kBackward, Cells::kSlstm, Types::kFloat, Feature::kNone, {8, 4, 1, 1}},
    {Engine::kSimt, Pass::kBackward, Cells::kSlstm, Types::kFloat, Feature::kNone, {8, 8, 1, 1}},

    {Engine::kWavefrontMma, Pass::kForward, Cells::kLstm, Types::k16Bit, Feature::kNone, {1, 1, 1}},
    {Engine::kWavefrontMma, Pass::kForward, Cells::kLstm, Types::k16Bit, Feature::kNone, {1, 1, 2}},
    {Engine::kWavefrontMma, Pass::kForward, Cells::kLstm, Types::k16Bit, Feature::kNone, {2, 1, 1}},
    {Engine::kWavefrontMma, Pass::kForward, Cells::kLstm, Types::k16Bit, Feature::kNone, {2, 1, 2}},
    {Engine::kWavefrontMma, Pass::kForward, Cells::kLstm, Types::k16Bit, Feature::kNone, {3, 1, 2}},
    {Engine::kWavefrontMma, Pass::kForward, Cells::kLstm, Types::k16Bit, Feature::kNone, {2, 1, 4}},
    {Engine::kWavefrontMma, Pass::kForward, Cells::kGru, Types::k16Bit, Feature::kNone, {2, 1, 1}},
    {Engine::kWavefrontMma, Pass::kForward, Cells::kGru, Types::k16Bit, Feature::kNone, {2, 1, 2}},
    {Engine::kWavefrontMma, Pass::kForward, Cells::kGru, Types::k16Bit, Feature::kNone, {4, 1, 2}},
    {Engine::kWavefrontMma, Pass::kForward, Cells::kGru, Types::k16Bit, Feature::kNone, {2, 1, 4}},
    {Engine::kWavefrontMma, Pass::kForward, Cells::kRnn, Types::k16Bit, Feature::kNone, {4, 1, 1}},
    {Engine::kWavefrontMma, Pass::kForward, Cells::kRnn, Types::k16Bit, Feature::kNone, {4, 1, 2}},
    {Engine::kWavefrontMma, Pass::kForward, Cells::kRnn, Types::k16Bit, Feature::kNone, {4, 1, 4}},
    {Engine::kWavefrontMma, Pass::kBackward, Cells::kLstm, Types::k16Bit, Feature::kClusters, {2, 4, 1}},
    {Engine::kWavefrontMma, Pass::kBackward, Cells::kLstm, Types::k16Bit, Feature::kClusters, {2, 4, 2}},
    {Engine::kWavefrontMma, Pass::kBackward, Cells::kLstm, Types::k16Bit, Feature::kClusters, {3, 4, 2}},
    {Engine::kWavefrontMma, Pass::kBackward, Cells::kLstm, Types::k16Bit, Feature::kClusters, {2, 2, 8}},
    {Engine::kWavefrontMma, Pass::kBackward, Cells::kGru, Types::k16Bit, Feature::kClusters, {2, 3, 1}},
    {Engine::kWavefrontMma, Pass::kBackward, Cells::kGru, Types::k16Bit, Feature::kClusters, {2, 3, 2}},
    {Engine::kWavefrontMma, Pass::kBackward, Cells::kGru, Types::k16Bit, Feature::kClusters, {4, 3, 2}},
    {Engine::kWavefrontMma, Pass::kBackward, Cells::kRnn, Types::k16Bit, Feature::kNone, {4, 1, 1}},
    {Engine::kWavefrontMma, Pass::kBackward, Cells::kRnn, Types::k16Bit, Feature::kNone, {4, 1, 2}},
    {Engine::kWavefrontMma, Pass::kBackward, Cells::kRnn, Types::k16Bit, Feature::kNone, {4, 1, 4}},

    {Engine::kWavefrontWgmma, Pass::kForward, Cells::kLstm, Types::k16Bit, Feature::kWgmma, {1}},
    {Engine::kWavefrontWgmma, Pass::kForward, Cells::kLstm, Types::k16Bit, Feature::kWgmma, {2}},

    {Engine::kWavefrontChunked, Pass::kForward, Cells::kLstm, Types::k16Bit, Feature::kWgmma, {3}},
    {Engine::kWavefrontChunked, Pass::kForward, Cells::kLstm, Types::k16Bit, Feature::kWgmma, {4}},
    {Engine::kWavefrontChunked, Pass::kForward, Cells::kLstm, Types::k16Bit, Feature::kWgmma, {5}},
    {Engine::kWavefrontChunked, Pass::kForward, Cells::kGru, Types::k16Bit, Feature::kWgmma, {4}},
    {Engine::kWavefrontChunked, Pass::kForward, Cells::kGru, Types::k16Bit, Feature::kWgmma, {5}},
    {Engine::kWavefrontChunked, Pass::kForward, Cells::kGru, Types::k16Bit, Feature::kWgmma, {6}},
    {Engine::kWavefrontChunked, Pass::kBackward, Cells::kLstm, Types::k16Bit, Feature::kWgmma, {5, 2}},
    {Engine::kWavefrontChunked, Pass::kBackward, Cells::kGru, Types::k16Bit, Feature::kWgmma, {5, 2}},

    {Engine::kNormCluster, Pass::kForward, Cells::kLstm, Types::kAll, Feature::kClusters, {16, 8, 1}},
    {Engine::kNormCluster, Pass::kForward, Cells::kLstm, Types::kAll, Feature::kClusters, {32, 8, 1}},
    {Engine::kNormCluster, Pass::kForward, Cells::kLstm, Types::k16Bit, Feature::kClusters, {64, 8, 1}},
    {Engine::kNormCluster, Pass::kForward, Cells::kLstm, Types::kAll, Feature::kClusters, {64, 16, 1}},
    {Engine::kNormCluster, Pass::kForward, Cells::kLstm, Types::kAll, Feature::kClusters, {64, 16, 2}},
    {Engine::kNormCluster, Pass::kBackward, Cells::kLstm, Types::kAll, Feature::kClusters, {16, 8, 1}},
    {Engine::kNormCluster, Pass::kBackward, Cells::kLstm, Types::kAll, Feature::kClusters, {32, 8, 1}},
    {Engine::kNormCluster, Pass::kBackward, Cells::kLstm, Types::k16Bit, Feature::kClusters, {64, 8, 1}},
    {Engine::kNormCluster, Pass::kBackward, Cells::kLstm, Types::kAll, Feature::kClusters, {64, 16, 1}},
    {Engine::kNormCluster, Pass::kBackward, Cells::kLstm, Types::kAll, Feature::kClusters, {64, 16, 2}},

    {Engine::kNormGrid, Pass::kForward, Cells::kLstm, Types::kAll, Feature::kClusters, {1}},
    {Engine::kNormGrid, Pass::kForward, Cells::kLstm, Types::k16Bit, Feature::kClusters, {2}},
    {Engine::kNormGrid, Pass::kBackward, Cells::kLstm, Types::kAll, Feature::kClusters, {1, 2}},
    {Engine::kNormGrid, Pass::kBackward, Cells::kLstm, Types::k16Bit, Feature::kClusters, {2, 4}},
    {Engine::kNormGrid, Pass::kBackward, Cells::kLstm, Types::k16Bit, Feature::kClusters, {2, 2}},
};
constexpr int kKernelCount = sizeof kKernels / sizeof kKernels[0];

// One kernel of the table: a row, and of its sets one cell and one type, by their bits' numbers.
struct KernelId {
  int16_t row = -1;
  int8_t cell = 0, type = 0;

  constexpr bool exists() const { return row >= 0; }
  constexpr const Kernel& operator*() const { return kKernels[row]; }
  constexpr const Kernel* operator->() const { return &kKernels[row]; }
  constexpr bool is(Engine engine) const { return row >= 0 && kKernels[row].engine == engine; }
  constexpr int shape(int index) const { return kKernels[row].shape[index]; }
};

constexpr int cell_number(prnnRNNMode_t mode) {
  return mode == PRNN_SLSTM || mode == PRNN_SLSTM_EXP ? 3 : mode == PRNN_LSTM ? 2 : mode == PRNN_GRU ? 1 : 0;
}
constexpr int kCellCount = 4;
constexpr int type_number(prnnDataType_t type, bool tf32) {
  switch (type) {
    case PRNN_DATA_FLOAT: return tf32 ? 1 : 0;
    case PRNN_DATA_HALF: return 2;
    case PRNN_DATA_BFLOAT16: return 3;
    default: return -1;
  }
}
constexpr int kTypeCount = 4;

}  // namespace prnn
