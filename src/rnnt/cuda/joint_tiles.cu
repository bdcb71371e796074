// Matrix products from tiles: the logits, of which the forward pass keeps what a cell's arcs need and which the
// backward pass turns into their gradients on the spot; the gradients of the activations, and those of the output
// layer.
#include "rnnt/cuda/joint_tile_product.cuh"

namespace prnn::rnnt_cuda {
namespace {

constexpr int kThreads = 256;
[[maybe_unused]] constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;  // logits are computed as powers of two

// ---- The output layer ----

// An element of the padded matrix a thread: of the tiles {classes, size} and of their transpose.
template <class Form>
__global__ void __launch_bounds__(kThreads)
    weight_tiles_kernel(Joint joint, const Scales* scales, TileWeights<Form> out) {
  using Matrix = typename Form::Matrix;
  using Layout = TileLayout<Matrix>;
  const Layout logits = chunk_layout<Layout>(joint.size, Form::kTerms);
  const Layout gradients = chunk_layout<Layout>(joint.classes, Form::kTerms);
  const int64_t rows = tile_columns(joint.classes), columns = tile_columns(joint.size);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= rows * columns) return;
  int64_t v;
  int d;
  divide(at, columns, v, d);
  float value[1] = {0};
  if (v < joint.classes && d < joint.size)
    value[0] = to_real(static_cast<const typename Form::Element*>(joint.weight)[v * joint.size + d]);
  if (Form::kTerms == 3) value[0] *= scales->weight;
  if (d < logits.stride) store_terms<Form, Side::kRight>(out.for_logits, logits, v, d, value);
  if (out.for_gradients && v < gradients.stride)
    store_terms<Form, Side::kRight>(out.for_gradients, gradients, d, v, value);
  if (d == 0) {
    const auto* bias = static_cast<const float*>(joint.bias);
    out.bias[v] = v >= joint.tokens ? static_cast<float>(kNever) : bias ? bias[v] * kLog2E : 0.0f;
  }
}

// ---- Products ----

#if PRNN_HAS_WGMMA

__device__ __forceinline__ float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float quad_max(float x) {
  x = max(x, __shfl_xor_sync(~0u, x, 1));
  return max(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// Calls function(entry, i, x) for the duration logits of a block of columns: logit `entry` of the thread's cell i is
// x of its sums, not yet scaled and without the bias.
template <class Form, class Function>
__device__ __forceinline__ void for_durations(const TileProduct<Form>& a, const Work& work, float (&sums)[kSums],
                                              int pair, Function&& function) {
  const int first = static_cast<int>(work.column) * kTileColumns - a.head.first;
  const auto entries = static_cast<unsigned>(a.head.entries);
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j) {
    if (first + j * 8 + 8 <= 0 || first + j * 8 >= a.head.entries) continue;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int entry = first + j * 8 + pair + k % 2;
      if (static_cast<unsigned>(entry) < entries) function(entry, k / 2, sums[j * 4 + k]);
    }
  }
}
template <class Form>
__device__ __forceinline__ bool has_durations(const TileProduct<Form>& a, const Work& work) {
  return (work.column + 1) * kTileColumns > a.head.first;
}
template <class Form>
__device__ __forceinline__ float duration_bias(const TileProduct<Form>& a, int entry) {
  return a.head.bias ? a.head.bias[entry] * kLog2E : 0.0f;
}

// The duration logits of a warpgroup's cells, of each cell in shared memory between the lanes that have it.
struct KeptDurations {
  uint32_t rows;  // of the thread's cell 0; cell 1 is 8 rows on

  __device__ __forceinline__ uint32_t at(int i, int entry) const {
    return rows + (i * 8 * PRNN_MAX_DURATIONS + entry) * static_cast<int>(sizeof(float));
  }
  __device__ __forceinline__ float get(int i, int entry) const {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(at(i, entry)) : "memory");
    return value;
  }
};

// The sums over the classes of two cells, as far as they go: of a thread's own columns.
struct LogitSums {
  float maximum[2], sum[2];  // of exp2(logit - maximum), logits as powers of two
  float blank[2], label[2];  // these logits, of the thread that has them, else zero

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      maximum[i] = static_cast<float>(kNever);
      sum[i] = blank[i] = label[i] = 0;
    }
  }
};

template <class Form>
__device__ __forceinline__ void add_logits(const TileProduct<Form>& a, const Work& work, float (&sums)[kSums],
                                           const int (&labels)[2], float scale, int pair, LogitSums& own) {
  const int first = static_cast<int>(work.column) * kTileColumns + pair;
  const int blank = a.chunk.problem.blank - first;
  float highest[2] = {own.maximum[0], own.maximum[1]};
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j) {
    const float2 bias = *reinterpret_cast<const float2*>(a.bias + first + j * 8);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float* x = sums + j * 4 + i * 2;
      x[0] = x[0] * scale + bias.x;
      x[1] = x[1] * scale + bias.y;
      highest[i] = max(highest[i], max(x[0], x[1]));
      const int label = labels[i] - first;
      if (blank >> 1 == j * 4) own.blank[i] = blank & 1 ? x[1] : x[0];
      if (label >> 1 == j * 4) own.label[i] = label & 1 ? x[1] : x[0];
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float shift = highest[i] == static_cast<float>(kNever) ? 0.0f : highest[i];
    float sum = own.sum[i] * exp2_of(own.maximum[i] - shift);
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) {
      const float* x = sums + j * 4 + i * 2;
      sum += exp2_of(x[0] - shift) + exp2_of(x[1] - shift);
    }
    own.sum[i] = sum;
    own.maximum[i] = highest[i];
  }
}

// kTdt: with the duration logits that are kept.
template <class Form, bool kTdt>
__device__ __forceinline__ void store_emissions(const TileProduct<Form>& a, int64_t row, const LogitSums& own, int pair,
                                                const KeptDurations& kept) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float highest = quad_max(own.maximum[i]);
    const float shift = highest == static_cast<float>(kNever) ? 0.0f : highest;
    const float sum = quad_sum(own.sum[i] * exp2_of(own.maximum[i] - shift));
    const float blank = quad_sum(own.blank[i]), label = quad_sum(own.label[i]);
    if (!kTdt && pair != 0) continue;
    const Emission cell = a.emissions[row + i * 8];
    if (cell.arcs < 0) continue;
    const float normaliser = shift * kLn2 + logf(sum);
    if constexpr (kTdt)
      write_scores(a.chunk.problem, a.head, cell, blank * kLn2, label * kLn2, normaliser, pair / 2, 4,
                   [&](int entry) { return kept.get(i, entry) * kLn2; });
    else
      write_emission(a.chunk.problem, cell, blank * kLn2, label * kLn2, normaliser, a.arcs, a.normalisers);
  }
}

// A cell as its thread wants it: with the scale in it where gradients are not limited.
struct OwnCell {
  float both, blank, label, normaliser, scale;
  int label_at;  // from the thread's first column on

  __device__ __forceinline__ OwnCell(const CellShares<float>& cell, int first, bool limited)
      : both(cell.blank + cell.label),
        blank(cell.blank),
        label(cell.label),
        normaliser(cell.normaliser * kLog2E),
        scale(cell.scale),
        label_at(cell.label_at - first) {
    if (limited) return;
    both *= scale;
    blank *= scale;
    label *= scale;
  }
};

// kTdt: of a block of columns that has duration logits. Their gradients are made first, where the products were.
template <class Form, bool kTdt>
__device__ __forceinline__ void store_gradients(const TileProduct<Form>& a, const Work& work, float (&sums)[kSums],
                                                const CellShares<float> (&shares)[2], float scale, Staging& staging) {
  using Matrix = typename Form::Matrix;
  constexpr int kHalves = TileRing<Form>::kHalves;
  char* out = reinterpret_cast<char*>(a.gradients);
  const int first = static_cast<int>(work.column) * kTileColumns + staging.pair, blank = a.chunk.problem.blank - first;
  const bool limited = a.chunk.problem.clamp > 0;
  const float limit = static_cast<float>(a.chunk.problem.clamp);
  OwnCell cells[2] = {{shares[0], first, limited}, {shares[1], first, limited}};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (shares[i].blank + shares[i].label != 0) continue;
    // Without probability: zeros, whatever the logits are.
    cells[i].both = cells[i].normaliser = 0;
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) sums[j * 4 + i * 2] = sums[j * 4 + i * 2 + 1] = 0;
  }
  if constexpr (kTdt) {
    for_durations(a, work, sums, staging.pair, [&](int entry, int i, float& x) {
      const float logit = (x * scale + duration_bias(a, entry)) * kLn2;
      x = shares[i].blank + shares[i].label != 0 ? duration_gradient(a.head, shares[i].row, entry, logit) : 0;
      if (!limited) x *= cells[i].scale;
    });
  }
  const int durations = a.head.first - first;
#pragma unroll
  for (int g = 0; g < 4; ++g) {
    const int64_t slice = work.column * 4 + g;
    if (slice >= a.out_slices) break;
    uint32_t buffer = staging.next<kHalves == 1 ? 1 : 0>();
    if (kHalves == 2) buffer = staging.buffers;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int at = g * 64 + j * 8;
      const float2 bias = *reinterpret_cast<const float2*>(a.bias + first + at);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const OwnCell& cell = cells[i];
        const float* x = sums + g * 32 + j * 4 + i * 2;
        float one = cell.both * exp2_of(fmaf(x[0], scale, bias.x - cell.normaliser));
        float two = cell.both * exp2_of(fmaf(x[1], scale, bias.y - cell.normaliser));
        if (blank >> 1 == at / 2) (blank & 1 ? two : one) -= cell.blank;
        if (cell.label_at >> 1 == at / 2) (cell.label_at & 1 ? two : one) -= cell.label;
        if (kTdt && at >= durations) one = x[0];
        if (kTdt && at + 1 >= durations) two = x[1];
        if (limited) {  // what is not a number stays none
          one = (one > limit ? limit : one < -limit ? -limit : one) * cell.scale;
          two = (two > limit ? limit : two < -limit ? -limit : two) * cell.scale;
        }
        const uint32_t upper = packed(static_cast<const Matrix*>(nullptr), one, two);
        const uint32_t place = staging.place(buffer, i * 8, j * 16 + staging.pair * 2);
        put(place, upper);
        if constexpr (kHalves == 2) put(place + kTile / 2, packed_rest(upper, one, two));
      }
    }
    staging.written();
    char* to = out + (work.row * a.out_slices + slice) * kHalves * kTile + staging.group * (kTile / 2);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) staging.store(to + h * kTile, buffer + h * (kTile / 2));
    if (staging.first()) bulk_commit();
  }
}

template <class Form>
__device__ __forceinline__ void store_products(const TileProduct<Form>& a, const Work& work, float (&sums)[kSums],
                                               Staging& staging) {
  using Product = typename Form::Product;
  constexpr int kColumns = TileLayout<Product>::kColumns, kGroups = kTileColumns / kColumns;
  char* out = reinterpret_cast<char*>(a.products);
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int64_t slice = work.column * kGroups + g;
    if (slice >= a.out_slices) break;
    const uint32_t buffer = staging.next<1>();
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float* x = sums + (g * kColumns / 8 + j) * 4 + i * 2;
        if constexpr (sizeof(Product) == 4)
          put(staging.place(buffer, i * 8, j * 32 + staging.pair * 4), x[0], x[1]);
        else
          put(staging.place(buffer, i * 8, j * 16 + staging.pair * 2),
              packed(static_cast<const Product*>(nullptr), x[0], x[1]));
      }
    }
    staging.written();
    staging.store(out + (work.row * a.out_slices + slice) * kTile + staging.group * (kTile / 2), buffer);
    if (staging.first()) bulk_commit();
  }
}

template <class Form>
__device__ __forceinline__ void add_sums(const TileProduct<Form>& a, const Work& work, const float (&sums)[kSums],
                                         const float (&column)[4], bool with_column, const Staging& at) {
  const int64_t rows = a.row_tiles * kTileRows, columns = a.column_blocks * kTileColumns;
  const int64_t row = work.split * rows + work.row * kTileRows + at.group * 64 + at.row;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float* out = a.sums + (row + i * 8) * columns + work.column * kTileColumns + at.pair;
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) {
      float2* pair = reinterpret_cast<float2*>(out + j * 8);
      const float2 before = *pair;
      *pair = {before.x + sums[j * 4 + i * 2], before.y + sums[j * 4 + i * 2 + 1]};
    }
    if (with_column && at.pair == 0) a.bias_sums[row + i * 8] += column[i * 2];
  }
}

#endif

template <class Form, Kind kKind, bool kTdt>
__global__ void __launch_bounds__(kTileThreads, 1) tiles_kernel(const __grid_constant__ TileProduct<Form> a) {
#if PRNN_HAS_WGMMA
  using Ring = TileRing<Form>;
  using Matrix = typename Form::Matrix;
  extern __shared__ __align__(1024) char shared[];
  const int64_t cells = min(frames_end(a.chunk.problem, a.chunk.frames) - a.chunk.first, a.chunk.count);
  if (cells <= 0) return;
  const uint32_t ring = shared_address(shared), full = ring + Ring::kBarriers, empty = full + Ring::kStages * 8;
  const int group = threadIdx.x / kGroupThreads - 1, thread = threadIdx.x % kGroupThreads;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Ring::kStages; ++i) {
      barrier_init(full + i * 8, 1);
      barrier_init(empty + i * 8, 2 * kGroupThreads / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if constexpr (kKind == Kind::kWeights) {  // ones for the sums over cells, where others stage
    Matrix one;
    from_real(one, 1.0f);
    for (int i = threadIdx.x; i < 512; i += kTileThreads) reinterpret_cast<Matrix*>(shared + Ring::kStaging)[i] = one;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  const int64_t turns = work_turns<kKind>(a), units = work_units<kKind>(a, cells);
  int turn = 0;  // of the ring
  if (group < 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (thread != 0) return;
    for_units(units, turns, [&](int64_t unit) {
      const Work work = find_work<kKind>(a, cells, unit);
      for (int64_t slice = work.begin; slice < work.end; ++slice, ++turn) {
        const int stage = turn % Ring::kStages;
        barrier_wait(empty + stage * 8, (turn / Ring::kStages & 1) ^ 1);
        fetch<Form, kKind>(a, work, slice, ring + stage * Ring::kStage, full + stage * 8);
      }
    });
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int lane = thread % 32;
    const float scale = logit_scale<float>(a.chunk.scales) * kLog2E;
    Staging staging{ring + Ring::kStaging + group * 2 * Ring::kStaged, group, thread / 32 * 16 + lane / 4,
                    lane % 4 * 2};
    float sums[kSums], column[4];
    LogitSums logits;
    for_units(units, turns, [&](int64_t unit) {
      const Work work = find_work<kKind>(a, cells, unit);
      if (work.begin >= work.end) return;
      const int64_t row = work.row * kTileRows + group * 64 + staging.row;
      const bool with_column = kKind == Kind::kWeights && work.column == 0;
      CellShares<float> own[2];
      if constexpr (kKind == Kind::kGradients) {
#pragma unroll
        for (int i = 0; i < 2; ++i) own[i] = a.cells[row + i * 8];
      }
      int labels[2];
      if constexpr (kKind == Kind::kEmissions) {
#pragma unroll
        for (int i = 0; i < 2; ++i) labels[i] = a.emissions[row + i * 8].label;
        if (work.column == 0) logits.clear();
      }
      constexpr bool kTransposed = kKind == Kind::kWeights;
      if (with_column)
        multiply_slices<Form, kTransposed, kTransposed>(sums, column, work, ring, full, empty, group, turn);
      else
        multiply_slices<Form, kTransposed, false>(sums, column, work, ring, full, empty, group, turn);
      if constexpr (kKind == Kind::kEmissions) {
        const KeptDurations kept{staging.buffers + staging.row * PRNN_MAX_DURATIONS * 4};
        if (kTdt && has_durations(a, work)) {
          for_durations(a, work, sums, staging.pair, [&](int entry, int i, float x) {
            put(kept.at(i, entry), __float_as_uint(x * scale + duration_bias(a, entry)));
          });
        }
        add_logits(a, work, sums, labels, scale, staging.pair, logits);
        if (work.column == turns - 1) {
          if (kTdt) __syncwarp();
          store_emissions<Form, kTdt>(a, row, logits, staging.pair, kept);
          if (kTdt) __syncwarp();
        }
      }
      if constexpr (kKind == Kind::kGradients) {
        if (kTdt && has_durations(a, work))
          store_gradients<Form, true>(a, work, sums, own, scale, staging);
        else
          store_gradients<Form, false>(a, work, sums, own, scale, staging);
      }
      if constexpr (kKind == Kind::kProducts) store_products(a, work, sums, staging);
      if constexpr (kKind == Kind::kWeights) add_sums(a, work, sums, column, with_column, staging);
    });
    if (thread == 0) bulk_wait<0>();
  }
#endif
}

// A thread an element: the sums of all shares, in their order.
template <class Element>
__global__ void __launch_bounds__(kThreads)
    finish_tiles_kernel(const float* sums, int64_t splits, int64_t share, int64_t stride, int64_t rows, int64_t columns,
                        bool activations, const Scales* scales, Element* out) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= rows * columns) return;
  int64_t row;
  int column;
  divide(at, columns, row, column);
  float sum = 0;
  for (int64_t i = 0; i < splits; ++i) sum += sums[i * share + row * stride + column];
  from_real(out[at], sum / (scales->gradient * (activations ? scales->activation : 1.0f)));
}

template <Kind kKind, class Form>
void launch(const TileProduct<Form>& product, int blocks, cudaStream_t stream) {
  constexpr int kBytes = TileRing<Form>::kBytes;
  auto kernel = tiles_kernel<Form, kKind, false>;
  if constexpr (kKind == Kind::kEmissions || kKind == Kind::kGradients) {
    if (product.head.entries > 0) kernel = tiles_kernel<Form, kKind, true>;
  }
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  kernel<<<static_cast<unsigned>(blocks), kTileThreads, kBytes, stream>>>(product);
  check_launch("joint tiles_kernel");
}

template <class Form>
int64_t slices(int64_t columns) {
  return ceil_div(columns, TileLayout<typename Form::Matrix>::kColumns);
}

}  // namespace

int64_t tile_splits(const Joint& joint) {
  // Chooses the number of shares, of a few, with which the blocks' turns are fullest.
  const int64_t products = ceil_div(joint.classes, kTileRows) * ceil_div(joint.size, kTileColumns);
  constexpr int64_t kMost = 16;
  int64_t best = 1;
  const auto turns = [&](int64_t splits) {
    return static_cast<double>(ceil_div(products * splits, kGridMultiprocessors)) / splits;
  };
  for (int64_t splits = 2; splits <= kMost; ++splits) {
    if (turns(splits) < turns(best)) best = splits;
  }
  return best;
}

template <class Form>
void run_weight_tiles(const Joint& joint, const Scales* scales, const TileWeights<Form>& weights, cudaStream_t stream) {
  const int64_t elements = tile_columns(joint.classes) * tile_columns(joint.size);
  weight_tiles_kernel<Form>
      <<<static_cast<unsigned>(ceil_div(elements, kThreads)), kThreads, 0, stream>>>(joint, scales, weights);
  check_launch("joint weight_tiles_kernel");
}

template <class Form>
void run_tile_emissions(const Chunk& chunk, const TileEmissions<Form>& emissions, int blocks, cudaStream_t stream) {
  const Joint& joint = chunk.joint;
  TileProduct<Form> product{};
  product.chunk = chunk;
  product.bias = emissions.weights.bias;
  product.emissions = emissions.emissions;
  product.head = emissions.out.head;
  product.arcs = emissions.out.arcs;
  product.normalisers = emissions.out.normalisers;
  product.left = emissions.activations;
  product.right = emissions.weights.for_logits;
  product.left_slices = product.right_slices = slices<Form>(joint.size);
  product.column_blocks = ceil_div(joint.classes, kTileColumns);
  launch<Kind::kEmissions>(product, blocks, stream);
}

template <class Form>
void run_tile_products(const Chunk& chunk, const TileWeights<Form>& weights, const Tiles<Form>& tiles,
                       const DurationHead<float>& head, const TileSums& sums, int blocks, cudaStream_t stream) {
  const Joint& joint = chunk.joint;
  const int64_t size_slices = slices<Form>(joint.size), class_slices = slices<Form>(joint.classes);
  TileProduct<Form> product{};
  product.chunk = chunk;
  product.head = head;
  product.cells = tiles.cells;
  product.bias = weights.bias;
  product.gradients = tiles.gradients;
  product.products = tiles.products;
  product.splits = tile_splits(joint);
  product.sums = sums.weight;
  product.bias_sums = sums.bias;
  product.row_tiles = ceil_div(joint.classes, kTileRows);

  product.left = tiles.activations;
  product.right = weights.for_logits;
  product.left_slices = product.right_slices = size_slices;
  product.out_slices = class_slices;
  product.column_blocks = ceil_div(joint.classes, kTileColumns);
  launch<Kind::kGradients>(product, blocks, stream);

  product.left = tiles.gradients;
  product.right = weights.for_gradients;
  product.left_slices = product.right_slices = class_slices;
  product.out_slices = ceil_div(joint.size, TileLayout<typename Form::Product>::kColumns);
  product.column_blocks = ceil_div(joint.size, kTileColumns);
  launch<Kind::kProducts>(product, blocks, stream);

  product.left = tiles.gradients;
  product.right = tiles.activations;
  product.left_slices = class_slices;
  product.right_slices = size_slices;
  launch<Kind::kWeights>(product, blocks, stream);
}

template <class Form>
void run_finish_tiles(const Joint& joint, const TileSums& sums, const Scales* scales, typename Form::Element* weight,
                      float* bias, cudaStream_t stream) {
  const int64_t rows = ceil_div(joint.classes, kTileRows) * kTileRows, columns = tile_columns(joint.size);
  const int64_t splits = tile_splits(joint), elements = joint.classes * joint.size;
  finish_tiles_kernel<<<static_cast<unsigned>(ceil_div(elements, kThreads)), kThreads, 0, stream>>>(
      sums.weight, splits, rows * columns, columns, joint.classes, joint.size, true, scales, weight);
  check_launch("joint finish_tiles_kernel");
  if (!bias) return;
  finish_tiles_kernel<<<static_cast<unsigned>(ceil_div(joint.classes, kThreads)), kThreads, 0, stream>>>(
      sums.bias, splits, rows, int64_t{1}, joint.classes, int64_t{1}, false, scales, bias);
  check_launch("joint finish_tiles_kernel");
}

#define PRNN_INSTANTIATE(Form)                                                                               \
  template void run_weight_tiles(const Joint&, const Scales*, const TileWeights<Form>&, cudaStream_t);       \
  template void run_tile_emissions(const Chunk&, const TileEmissions<Form>&, int, cudaStream_t);             \
  template void run_tile_products(const Chunk&, const TileWeights<Form>&, const Tiles<Form>&,                \
                                  const DurationHead<float>&, const TileSums&, int, cudaStream_t);           \
  template void run_finish_tiles<Form>(const Joint&, const TileSums&, const Scales*, Form::Element*, float*, \
                                       cudaStream_t);
PRNN_FOR_TILED_FORMS(PRNN_INSTANTIATE)
#undef PRNN_INSTANTIATE

}  // namespace prnn::rnnt_cuda
