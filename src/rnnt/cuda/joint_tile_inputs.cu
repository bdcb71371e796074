// From the gradients of a chunk's activations, in tiles, to those of encoder and predictor: times the activation's
// derivative, then sums over the cells of a frame and over those of a symbol position, each in a fixed order, from one
// reading of the chunk. docs/joint_rnnt_loss.md explains the design.
#include <cooperative_groups.h>

#include "rnnt/cuda/joint_tiles.cuh"

namespace prnn::rnnt_cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kCount = 8, kLanes = 8;       // elements of a lane, and lanes that have a cell's columns
constexpr int kColumns = kCount * kLanes;   // of a block
constexpr int kRows = kThreads / kLanes;    // symbol positions that are taken side by side
constexpr int kSlots = 2;                   // positions of a thread, kRows apart
constexpr int kPositions = kRows * kSlots;  // whose sums a block has in registers
constexpr int kRanges = 8;                  // blocks that share a sequence's frames: a cluster
constexpr int kListed = 128;                // frames whose cells a block looks up at a time
constexpr int kFrames = 4;                  // frames between barriers
static_assert(kFrames * kColumns <= kThreads && kPositions / kRanges * kColumns == 2 * kThreads);

// The cells of a frame in the chunk: symbol positions from `begin` to `end`; that of position u is in row `row` + u.
struct FrameCells {
  int row, begin, end;
};

// Stages of kStageRows cells, which come by bulk copies: of activations, with both halves of a number one after the
// other, and of their gradients.
template <class Form>
struct InputRing {
  static constexpr int kHalves = Form::kTerms == 3 ? 2 : 1;
  static constexpr int kProducts = sizeof(typename Form::Product) / 2;  // tiles side by side
  static constexpr int kParts = kHalves + kProducts;
  static constexpr int kBlocks = kHalves == 2 ? 1 : 2;  // of a multiprocessor
  static constexpr int kStageRows = kParts == 2 ? 128 : 64, kStages = kParts;
  static constexpr int kPart = kStageRows * kTileBytes, kStage = kParts * kPart;  // bytes
};

template <class Form>
struct Shared {
  char ring[InputRing<Form>::kStages][InputRing<Form>::kStage];
  union {
    float frames[2][kFrames][kWarps][kColumns];  // what the warps have of the sums over frames
    float positions[kPositions][kColumns];       // in the end: what the block has of those over positions
  };
  FrameCells cells[kListed];
  int64_t cells_end, from_frame, to_frame;  // of the chunk
  int64_t column, begin;                    // what the block works on: its first column and its first frame
  int first_row, rows_end;                  // of the block's cells; the first of their stage, and where they end
  uint64_t full[InputRing<Form>::kStages];
};

template <class Form>
struct TileInputs {
  const typename Form::Matrix* activations;
  const typename Form::Product* products;
  TileLayout<typename Form::Matrix> activation_layout;
  TileLayout<typename Form::Product> product_layout;
  float *encoder_gradients, *predictor_gradients;
};

// A lane's elements of a row of a stage.
template <class Element>
struct StageRun : Words<Element, kCount> {
  __device__ __forceinline__ void load(const char* part, int rows, int row, int lane) {
#pragma unroll
    for (int i = 0; i < this->kPieces; ++i) {
      const int piece = lane * this->kPieces + i;
      this->load_piece(i, part + (piece / 8 * rows + row) * kTileBytes + ((piece ^ row) % 8) * 16);
    }
  }
};

// The sums over the four lanes of a warp that have the same columns; each gets those of two.
[[maybe_unused]] __device__ __forceinline__ float2 sum_rows(const float (&x)[kCount], int lane) {
  const bool upper = lane & 8, last = lane & 16;
  float half[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) half[i] = (upper ? x[4 + i] : x[i]) + __shfl_xor_sync(~0u, upper ? x[i] : x[4 + i], 8);
  return {(last ? half[2] : half[0]) + __shfl_xor_sync(~0u, last ? half[0] : half[2], 16),
          (last ? half[3] : half[1]) + __shfl_xor_sync(~0u, last ? half[1] : half[3], 16)};
}

#if PRNN_HAS_WGMMA

// Fetches rows from `row` on of the columns from `column` on.
template <class Form>
__device__ __forceinline__ void fetch(const TileInputs<Form>& in, int64_t row, int64_t column, Shared<Form>& shared,
                                      int stage) {
  using Ring = InputRing<Form>;
  const uint32_t to = shared_address(shared.ring[stage]), barrier = shared_address(&shared.full[stage]);
  const int products = column + kColumns / 2 < in.product_layout.stride ? Ring::kProducts : 1;
  barrier_expect(barrier, (Ring::kHalves + products) * Ring::kPart);
#pragma unroll
  for (int h = 0; h < Ring::kHalves; ++h)
    bulk_load(to + h * Ring::kPart, in.activations + in.activation_layout.origin(row, h, column), Ring::kPart, barrier);
#pragma unroll
  for (int j = 0; j < Ring::kProducts; ++j) {
    if (j >= products) break;
    bulk_load(to + (Ring::kHalves + j) * Ring::kPart,
              in.products + in.product_layout.origin(row, 0, column + j * (kColumns / 2)), Ring::kPart, barrier);
  }
}

#endif

// blockIdx.x: a range of a sequence's frames; y: sequences; z: columns. No two threads add to the same sum: it is by
// atomics only because these do not wait for what was there before. The chunk's parts are parameters of their own: as
// one Chunk, nvcc 13.0 spills 8 to 24 bytes a thread.
template <class Form, bool kPlain>
__global__ void __launch_bounds__(kThreads, InputRing<Form>::kBlocks)
    tile_input_gradients_kernel(Problem p, Joint joint, const Sequence* sequences, Frames frames, const Scales* scales,
                                int64_t first, int64_t count, const __grid_constant__ TileInputs<Form> in) {
#if PRNN_HAS_WGMMA
  using Ring = InputRing<Form>;
  extern __shared__ __align__(1024) char memory[];
  Shared<Form>& shared = *reinterpret_cast<Shared<Form>*>(memory);
  const int64_t cells_end = min(first + count, frames_end(p, frames));
  if (cells_end <= first) return;
  if (threadIdx.x == 0) {
    shared.cells_end = cells_end;
    shared.from_frame = frames.chunk[0];
    shared.to_frame = frames.chunk[1];
    for (int i = 0; i < Ring::kStages; ++i) barrier_init(shared_address(&shared.full[i]), 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const auto cluster = cooperative_groups::this_cluster();
  const Slope<Form, kPlain> slope(joint, *scales);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int part = lane % kLanes * kCount + (lane & 8 ? 4 : 0) + (lane & 16 ? 2 : 0);  // what sum_rows() gives
  unsigned turn = 0, buffer = 0;                                                       // of shared.frames, of the ring
  const auto add_sequence = [&](int64_t n, int column, int base) {
    const int position = base + threadIdx.x / kLanes;
    const bool inside = column + threadIdx.x % kLanes * kCount < joint.padded_size;
    const int64_t frame_begin = max(n * p.maxFrames, shared.from_frame);
    const int all = static_cast<int>(min(n * p.maxFrames + sequences[n].frames, shared.to_frame + 1) - frame_begin);
    const int share = (all + kRanges - 1) / kRanges, own = min(static_cast<int>(blockIdx.x) * share, all);
    const int most = min(share, all - own);  // frames of the block
    const bool adds = threadIdx.x < kFrames * kColumns && column + threadIdx.x % kColumns < joint.size;
    float sums[kSlots][kCount] = {};
    if (threadIdx.x == 0) {
      const int64_t begin = frame_begin + own;
      int row = 0, end = 0;
      if (most > 0) {
        row = static_cast<int>(max(frames.first[begin], first) - first) / Ring::kStageRows * Ring::kStageRows;
        end = static_cast<int>(min(frames.first[begin + most], shared.cells_end) - first);
        for (int i = 0; i < Ring::kStages && row + i * Ring::kStageRows < end; ++i)
          fetch<Form>(in, row + i * Ring::kStageRows, column, shared, (turn + i) % Ring::kStages);
      }
      shared.column = column;
      shared.begin = begin;
      shared.first_row = row;
      shared.rows_end = end;
    }
    __syncthreads();
    int stage_row = shared.first_row;  // where the stage begins
    const auto wait = [&] {
      barrier_wait(shared_address(&shared.full[turn % Ring::kStages]), turn / Ring::kStages & 1);
    };
    if (stage_row < shared.rows_end) wait();
    const auto list = [&](int from) {
      __syncthreads();
      for (int i = threadIdx.x; i < min(kListed, most - from); i += kThreads) {
        const int64_t frame = shared.begin + from + i, cell = frames.first[frame], next = frames.first[frame + 1];
        const int u = frames.begin[frame];
        FrameCells cells;
        cells.row = static_cast<int>(cell - first) - u;
        cells.begin = u + static_cast<int>(max(cell, first) - cell);
        cells.end = u + static_cast<int>(min(next, shared.cells_end) - cell);
        shared.cells[i] = cells;
      }
      __syncthreads();
    };
    // A few frames at a time, or what of them is in the stage.
    for (int from = 0, some; from < most; buffer ^= 1) {
      if (from % kListed == 0) list(from);
      const FrameCells* const listed = shared.cells + from % kListed;
      const int left = min(min(kFrames, kListed - from % kListed), most - from);
      const int stage_end = stage_row + Ring::kStageRows;
      const char* const stage = shared.ring[turn % Ring::kStages];
      bool more = false;  // of the last frame, or after it, in the next stage
#pragma unroll 1
      for (some = 0; some < left && !more; ++some) {
        const FrameCells cells = listed[some];
        more = cells.row + cells.end >= stage_end;
        const int end = inside ? cells.end : 0;
        float sum[kCount] = {};
        bool has = false;
#pragma unroll
        for (int j = 0; j < kSlots; ++j) {
          const int u = position + j * kRows, row = cells.row + u - stage_row;
          if (u < cells.begin || u >= end || static_cast<unsigned>(row) >= Ring::kStageRows) continue;
          has = true;
          StageRun<typename Form::Matrix> upper, lower;
          upper.load(stage, Ring::kStageRows, row, lane % kLanes);
          if constexpr (Form::kTerms == 3) lower.load(stage + Ring::kPart, Ring::kStageRows, row, lane % kLanes);
          float slopes[kCount];
#pragma unroll
          for (int k = 0; k < kCount; ++k) slopes[k] = slope.of(upper.at(k), Form::kTerms == 3 ? lower.at(k) : 0.0f);
          StageRun<typename Form::Product> product;
          product.load(stage + Ring::kHalves * Ring::kPart, Ring::kStageRows, row, lane % kLanes);
#pragma unroll
          for (int k = 0; k < kCount; ++k) {
            const float value = product.at(k) * slopes[k];
            sum[k] += value;
            sums[j][k] += value;
          }
        }
        float2 parts{0, 0};
        if (__any_sync(~0u, has)) parts = sum_rows(sum, lane);
        *reinterpret_cast<float2*>(&shared.frames[buffer][some][warp][part]) = parts;
      }
      __syncthreads();
      const int frame = threadIdx.x / kColumns;
      if (adds && frame < some) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < kWarps; ++i) sum += shared.frames[buffer][frame][i][threadIdx.x % kColumns];
        atomicAdd(
            &in.encoder_gradients[(shared.begin + from + frame) * joint.size + shared.column + threadIdx.x % kColumns],
            sum / (scales->gradient * scales->weight));
      }
      const FrameCells last = listed[some - 1];
      from += more && last.row + last.end > stage_end ? some - 1 : some;
      if (!more) continue;
      if (threadIdx.x == 0 && stage_row + Ring::kStages * Ring::kStageRows < shared.rows_end)
        fetch<Form>(in, stage_row + Ring::kStages * Ring::kStageRows, shared.column, shared, turn % Ring::kStages);
      stage_row = stage_end;
      ++turn;
      if (stage_row < shared.rows_end) wait();
    }
    if (stage_row < shared.rows_end) ++turn;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kSlots; ++j) {
      auto* out =
          reinterpret_cast<float4*>(&shared.positions[j * kRows + threadIdx.x / kLanes][threadIdx.x % kLanes * kCount]);
      out[0] = {sums[j][0], sums[j][1], sums[j][2], sums[j][3]};
      out[1] = {sums[j][4], sums[j][5], sums[j][6], sums[j][7]};
    }
    cluster.sync();
    // The cluster's sums: a share of the positions a block, two columns a thread.
    const int row = blockIdx.x * (kPositions / kRanges) + threadIdx.x / (kColumns / 2);
    const int pair = threadIdx.x % (kColumns / 2) * 2;
    float2 total{0, 0};
#pragma unroll
    for (int i = 0; i < kRanges; ++i) {
      const float2 x = *reinterpret_cast<const float2*>(
          cluster.map_shared_rank(&shared.positions[row][pair], static_cast<unsigned>(i)));
      total.x += x.x;
      total.y += x.y;
    }
    if (base + row <= sequences[n].targets) {
      const float scale = 1 / (scales->gradient * scales->weight);
      float* out = in.predictor_gradients + (n * p.width() + base + row) * joint.size + shared.column + pair;
      if (shared.column + pair < joint.size) atomicAdd(out, total.x * scale);
      if (shared.column + pair + 1 < joint.size) atomicAdd(out + 1, total.y * scale);
    }
    cluster.sync();
  };
  for (int64_t n = shared.from_frame / p.maxFrames + blockIdx.y; n <= shared.to_frame / p.maxFrames; n += gridDim.y) {
    if (sequences[n].frames == 0) continue;
    for (int column = blockIdx.z * kColumns; column < joint.padded_size; column += gridDim.z * kColumns) {
      for (int base = 0; base <= sequences[n].targets; base += kPositions) add_sequence(n, column, base);
    }
  }
#endif
}

}  // namespace

template <class Form>
void run_tile_input_gradients(const Chunk& chunk, const InputGradients<Form>& gradients, cudaStream_t stream) {
  const Joint& joint = chunk.joint;
  TileInputs<Form> in{gradients.activations, gradients.products, {}, {}, gradients.encoder, gradients.predictor};
  in.activation_layout = chunk_layout<decltype(in.activation_layout)>(joint.padded_size, Form::kTerms);
  in.product_layout = chunk_layout<decltype(in.product_layout)>(joint.padded_size, 1);
  const auto at_most = [](int64_t x, int64_t most) { return static_cast<unsigned>(x < most ? x : most); };
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {kRanges, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kRanges, at_most(chunk.problem.batch, 16), at_most(ceil_div(joint.padded_size, kColumns), 64));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sizeof(Shared<Form>);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const bool plain = joint.activation == PRNN_JOINT_TANH && joint.drop_below == 0;
  const auto kernel = plain ? tile_input_gradients_kernel<Form, true> : tile_input_gradients_kernel<Form, false>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared<Form>));
  cudaLaunchKernelEx(&config, kernel, chunk.problem, joint, chunk.sequences, chunk.frames, chunk.scales, chunk.first,
                     chunk.count, in);
  check_launch("joint tile_input_gradients_kernel");
}

#define PRNN_INSTANTIATE(Form) \
  template void run_tile_input_gradients(const Chunk&, const InputGradients<Form>&, cudaStream_t);
PRNN_FOR_TILED_FORMS(PRNN_INSTANTIATE)
#undef PRNN_INSTANTIATE

}  // namespace prnn::rnnt_cuda
