// One call of the CUDA backend: the arrays that it cuts from workspace and reserve space, and the layers one after the
// other. ResidentBackend's calls have a file each: forward.cc, backward_data.cc, backward_weights.cc.
#pragma once

#include <algorithm>
#include <vector>

#include "core/cuda/arena.h"
#include "core/cuda/cublas.h"
#include "core/cuda/cuda_state.h"
#include "rnn/cuda/launch.h"
#include "rnn/cuda/layer/kernels.h"
#include "rnn/plan/schedule.h"
#include "rnn/plan/wavefront_chunked.h"

namespace prnn {

// Throws EXECUTION_FAILED (ARCH_MISMATCH where the binary has no code for the device) unless the launch was taken.
void require_launch(cudaError_t error, const char* what);

// Gates whose gradients with respect to W x and to R h are the same.
inline int64_t gates_of_both_products(const RnnProblem& p) { return p.mode == PRNN_GRU ? p.gates() - 1 : p.gates(); }

// How far apart these gates' gradients are in Reserve::PerDirection::dgates, and the matrices that one product has for
// them.
inline int64_t gate_pitch(const RnnProblem& p) { return gates_of_both_products(p) > 1 ? padded_hidden(p) : p.hidden; }

// Whether products of so many rows of gates' gradients with the layer's matrices are faster with transposed ones, the
// copy included: in tf32, whose instructions take both operands with k as their inner dimension
// (docs/resident_kernels_measured.md).
inline bool transposes_weights(const RnnProblem& p, int64_t rows) {
  return p.tf32 && p.type == PRNN_DATA_FLOAT && p.hidden >= 256 && rows >= std::max<int64_t>(4096, 4 * p.hidden);
}

// Whether products with the states before each timestep, for the weights' gradients, take a copy of these states.
bool shifts_states(const RnnProblem& p);

// Bytes from `first` on, which is NULL where sizes alone are asked for.
struct Span {
  char* first;
  int64_t bytes;
};

// Bytes of what a launch's blocks exchange through global memory, but in rows of y: ForwardDirection::exchange or,
// backward, Projection::exchange.
int64_t fragment_bytes(const RnnProblem& p, const ResidentShape& shape, const ResidentSizes& sizes);

// Bytes of Reserve::PerDirection::dgates and dcandidate together.
int64_t gradient_bytes(const RnnProblem& problem);

// Whether a stack is one layer with gates, above which no other has gates whose place the gradients could take, and
// large enough for that place to matter more than the time of a copy.
inline bool is_lone(const RnnProblem& p) {
  return p.layers == 1 && p.gates() > 1 && gradient_bytes(p) >= int64_t{1} << 20;
}

// The reserve space: what a forward training call leaves for the backward calls. Arrays of problem.type unless said.
// Unless it keeps the gates, a layer's gradients lie where the gates of a layer above were, which has been through its
// backward pass (by chunks, through the timestep's: those of a GRU lie in rows as wide as the gates'); those of a lone
// layer take the place of its own gates at the end of its backward pass. If it does, its
// size is linear in the rows and in N whatever the plan, so that a framework can compute it from symbols.
struct Reserve {
  Reserve(const RnnProblem& problem, const RnnPlan& plan, bool keeps_gates, void* base);

  struct PerDirection {
    char* gates;       // [rows, H, 4]: ForwardDirection::gates; not for RNN
    char* cells;       // [rows, H]: LSTM, sLSTM
    char* last;        // [2, N, H]: sLSTM
    char* dgates;      // [rows, G, padded], `gradient_row` apart
    char* dcandidate;  // [rows, H], `candidate_row` apart: GRU
    char* products;    // [rows, G H]: the input products of layers that run together up to this one; at a direction's
                       // first head, [rows, K G H]. A lone layer's are in Workspace::lone
    float* bias_sums;  // [partials, B, H]: a partial sum of each replica and pass, at most N
    // With a projection:
    char* cell_outputs;  // [rows, padded]: m = o * tanh(c), of which h is the projection
    char* dstates;       // [rows, P]: the whole gradients of h
    // An LSTM on the input of its gates keeps gates, cells and LayerNormLstmParams::stats alone.
    char* stats;
  };
  // Memory that a forward call does not write up to the launch whose highest layer is `last`: the places above that of
  // its input products. Of stacks with gates, as large as if the gates were not kept.
  Span spare(int64_t last) const;

  int64_t gradient_row, candidate_row;   // elements from a row to the next
  std::vector<PerDirection> directions;  // [layer * D K + recurrence]
  std::vector<char*> outputs;            // [rows, D P] of every layer but the last
  std::vector<char*> inputs;             // those after dropout; the outputs themselves without
  uint64_t* draw;                        // of dropout: {seed, call}
  size_t size;

 private:
  std::vector<Span> places_;  // of gates and gradients, one after the other; those that are there if gates are not kept
};

// Arrays that kernels by chunks have for each layer of a launch, WavefrontForwardLayer's or WavefrontBackwardLayer's
// `exchange` and `products`: in spare memory as far as there is room, else in the rest.
struct ChunkedArrays {
  ChunkedArrays(const RnnProblem& problem, Pass pass, int64_t layers, std::vector<Span> spare, Arena* rest);

  std::vector<char*> exchange, products;
};

// Arrays in the workspace of an LSTM on the input of its gates. Real: float, of double double.
struct GatesArrays {
  char* products;  // Real [N, 4 H] forward: R (m * h_{t-1}); [N, H] backward: R' da, or [4, N, H] that add up to it
  char* carried;   // Real [N, H]: c; its gradient
  char* masked;    // [N, H]: m * h
  // The next four are the backward run's.
  char* direct;  // Real [N, H]
  char* sums;    // LayerNormLstmParams::sums
  char* h_prev;  // [T, N, H]: m * h_{t-1}
  char* da;      // [T, N, 4 H]; PRODUCTS alone
  // LayerNormLstmGridParams', where a pass is on the grid.
  char* states;
  float *moments, *kept_sums;
};

// The buffers through which the blocks of a grid exchange in one launch of a pass; see LayerNormLstmGridParams.
struct GridExchange {
  GridExchange(const RnnProblem& problem, const RnnPlan& plan, Pass pass);

  int64_t states, moments;  // bytes, and floats; 0 without a grid
};

// The workspace. A call uses the first two arrays, and those of its own pass, which lie in one place.
struct Workspace {
  Workspace(const RnnProblem& problem, const RnnPlan& plan, void* base);

  StepSizes* table;            // [T] where the batch varies
  std::vector<char*> between;  // [rows, D P]: inference's outputs, or the gradients between layers; see between_of()
  std::vector<char*> kept;     // ForwardDropout::kept of a launch's layers; empty without dropout
  unsigned*
      progress;  // by chunks: `progress` of a launch's layers, and kWavefrontLayers further on of their projections
  // Per layer, side by side: [N, H], what one half of the timesteps leaves for the other, backward its gradients.
  std::vector<char*> carried_h, carried_c;
  // Arrays of a lone layer in training, per recurrence: forward its input products, backward the gates' gradients,
  // until they take the gates' place.
  std::vector<char*> lone;
  // Forward.
  std::vector<char*> xw;        // per direction: [rows, K G H]; inference's
  std::vector<char*> exchange;  // per recurrence: ForwardDirection::exchange; empty where there is none. By chunks, the
                                // first one is the rest that ChunkedArrays take
  std::vector<char*> initial;   // [layer * D K + recurrence]: [N, padded], without gaps; empty where no kernel reads
                                // them
  // Backward, data.
  char* input_weights;  // copies of a direction's input matrices, as BackwardData::gate_matrices() makes them
  float* sums;          // BackwardParams::sums
  // With resets, per recurrence: floats, BackwardDirection::dreset_hx and dreset_cx, [N, H] and as many as there are
  // states.
  std::vector<char*> reset_sums;
  char* chunked;  // the rest that ChunkedArrays take
  // Backward, weights.
  char* previous;  // [rows, P]
  // With a projection; docs/resident_kernels.md has the formulas. Arrays of recurrences are those of a layer, or of the
  // layers of a launch: see of_recurrence().
  std::vector<char*> merged;         // per recurrence: [G H, H], the recurrent matrices times the projection; or empty
  std::vector<char*> merged_inputs;  // of a launch's layers but the lowest: the same of the input and the layer below;
                                     // where there is dropout in between, room for copies of both
  std::vector<char*> cell_outputs;   // per recurrence: [rows, padded], inference's
  std::vector<char*> last_outputs;   // of a launch's layers but the highest: [N, H], the last of them
  float* initial_products;           // of a launch's layers, or one: [N, G H], the recurrent matrices times hx
  std::vector<char*> dcell_outputs;  // per direction: [rows, padded]; of a launch's highest layer
  std::vector<char*> dlast;          // per recurrence: [N, H], what dhy adds to the last of them
  std::vector<char*> dcells;         // per direction: [rows, padded], prnnRNNExtras_t::dcells where it is given
  char* dprevious;                   // [rows, P]: what the gates' gradients are to h of the timestep before
  // For kernels that keep the projection apart.
  float* row_sums;         // Projection::sums
  char* row_exchange;      // Projection::exchange
  int64_t layers_at_once;  // in a launch, of layers with a projection
  GatesArrays gates{};     // in place of all the others, where the problem takes_gates()
  size_t size;

  void take_gates(const RnnProblem& problem, const RnnPlan& plan, void* base);
  // Element of an array of a layer's recurrences, or of some neighbouring layers with one recurrence each.
  char* of_recurrence(const std::vector<char*>& arrays, int64_t layer, int64_t recurrence) const {
    return layers_at_once > 1 ? arrays[layer % static_cast<int64_t>(arrays.size())] : arrays[recurrence];
  }
  // The array between this layer and the one above it.
  char* between_of(int64_t layer) const { return between[layer % between.size()]; }
};

// The state of one call, which every call works out first.
struct LayerRun {
  template <class Args>
  LayerRun(prnnHandle_t handle, const RnnProblem& problem, const RnnPlan& plan, const Args& args)
      : LayerRun(handle, problem, plan, args.workspace, args.reserve, args.keeps_gates) {}
  LayerRun(prnnHandle_t handle, const RnnProblem& problem, const RnnPlan& plan, void* workspace, void* reserve,
           bool keeps_gates);

  const RnnProblem& p;
  prnnContext& context;
  cudaStream_t stream;
  const RnnPlan& plan;
  Workspace work;
  Reserve saved;
  int64_t element;      // bytes
  int64_t padded;       // H rounded up to whole k-tiles
  int steps, batch;     // T, N
  bool varies;          // the batch does
  bool replaces_gates;  // whether a lone layer's gradients take the place of its gates, which are not kept

  const StepSizes* table() const { return varies ? work.table : nullptr; }
  bool drops() const { return p.dropout.probability > 0 && p.layers > 1; }
  // So many elements on; NULL stays NULL.
  const char* at(const void* base, int64_t elements) const { return at(const_cast<void*>(base), elements); }
  char* at(void* base, int64_t elements) const {
    return base == nullptr ? nullptr : static_cast<char*>(base) + elements * element;
  }
  // State [layer * D K + recurrence] of hx, hy and their like, {N, P}.
  template <class Pointer>
  Pointer h_state(Pointer base, int64_t layer, int64_t direction) const {
    return state(base, layer, direction, p.state());
  }
  // State [layer * D K + recurrence] of cx, cy and their like, {N, H}; an sLSTM's three.
  template <class Pointer>
  Pointer c_state(Pointer base, int64_t layer, int64_t direction) const {
    return state(base, layer, direction, p.cell_states() * p.hidden);
  }
  // The state that the resident kernels have for h. With a projection it is m, which begins with zeros and whose states
  // at the edges of sequences are no argument of a call.
  template <class Pointer>
  Pointer resident_state(Pointer base, int64_t layer, int64_t direction) const {
    return merges() ? nullptr : h_state(base, layer, direction);
  }
  bool projects() const { return p.projection > 0; }
  // Whether the kernels multiply with the product of both recurrent matrices and know nothing of the projection.
  bool merges() const { return projects() && !plan.keeps_projection_apart(); }
  // The projection of a launch that keeps it apart; its partial sums become zeros.
  Projection projection_of(const void* w, int64_t layer, int64_t direction, const ResidentSizes& sizes) const;
  MatrixView view(const void* data, int64_t stride, bool transposed = false) const {
    return {data, p.type, stride, transposed};
  }
  FloatProduct precision() const { return p.tf32 ? FloatProduct::kTf32 : FloatProduct::kFloat32; }
  // run_gemm() in the precision that the layer asks for.
  void multiply(int64_t m, int64_t n, int64_t k, double alpha, const MatrixView& a, const MatrixView& b, double beta,
                void* c, prnnDataType_t c_type, int64_t c_stride) const {
    run_gemm(context, m, n, k, alpha, a, b, beta, c, c_type, c_stride, precision());
  }
  // The matrices that the resident kernels multiply with: with a projection, made here.
  const void* recurrent_weights(const void* w, int64_t layer, int64_t direction) const;
  // The matrices for a layer's input, which the layer below leaves in the same launch.
  const void* input_matrices(const void* w, int64_t layer) const;
  // Whether between a launch's layers there are a projection, dropout and input matrices, one after the other.
  bool drops_projected() const { return merges() && chunked_drops_projected(p); }
  // The projection between this layer and the one above it in a launch, with `states` and `dropped`; `i`: the layer's
  // number in the launch.
  ChunkedProjection chunked_projection(const void* w, int64_t layer, int64_t i, void* states, void* dropped) const;
  // The rows of each sequence's first or last timestep.
  EdgeRows edge(const void* rows, int64_t stride, int64_t width, bool is_last) const;
  // The rows with which a direction begins, for initial states: without those that start anew there.
  EdgeRows first_edge(const void* rows, int64_t stride, int64_t width, int64_t direction) const;
  ResetRows reset_rows(const void* rows, int64_t stride, int64_t width, int64_t direction) const;
  // run_previous_states() of all rows of y, P wide and y_row apart; the caller adds the states at sequences'
  // beginnings.
  PreviousStates previous_states(int64_t layer, int64_t direction, const void* y, int64_t y_row, bool reverse,
                                 void* out) const;
  // Sizes of a launch for sequences [first, first + columns); `directions`: heads and directions of a layer, or layers.
  ResidentSizes sizes_of(const ResidentShape& shape, int64_t first, int64_t columns, int64_t directions) const;
  // Sizes and masks of a launch of a layer's recurrences from `first` on, which have all timesteps.
  template <class Params>
  void set_sizes(const ResidentSizes& sizes, int64_t layer, int64_t first, Params* params) const {
    params->sizes = sizes;
    params->masks = masks(layer, first, sizes.directions);
    for (int i = 0; i < sizes.directions; ++i) params->timesteps[i] = {sizes.table, sizes.steps, sizes.batch};
  }
  // Each direction has one half of the timesteps of a layer.
  template <class Params>
  void set_sizes(const SideBySideLaunch& launch, const ResidentShape& shape, Params* params) const {
    params->sizes = sizes_of(shape, 0, p.max_batch(), launch.count);
    for (int i = 0; i < launch.count; ++i) {
      const LayerHalf& half = launch.half[i];
      params->timesteps[i] = {varies ? work.table + half.first : nullptr, static_cast<int>(half.steps),
                              params->sizes.batch};
    }
    params->sizes.table = params->timesteps[0].table;  // of a layer alone
    params->sizes.steps = params->timesteps[0].steps;
  }
  // Rows [first, first + count) of the packed data. `base`: the row that pointers of a launch point to, from which the
  // kernels count: a table has the rows themselves.
  struct Rows {
    int64_t first, count, base;
  };
  Rows rows_of(const LayerHalf& half) const;
  LayerHalf whole(int64_t layer) const { return {layer, 0, p.steps()}; }  // both halves
  // Sets what kernels by chunks read besides, for a launch of layers [first, first + count) of either pass; fills what
  // is exchanged, and Workspace::progress with zeros.
  template <class Params>
  void set_chunks(Pass pass, int64_t first, int64_t count, Params* params) const {
    const ChunkedArrays arrays = chunked_arrays(pass, first, count);
    for (int64_t i = 0; i < count; ++i) {
      auto& layer = params->layer[i];
      layer.exchange = arrays.exchange[i];
      layer.products = arrays.products[i];
      layer.projection.progress = work.progress + kWavefrontLayers + i;
    }
    params->chunk_steps = chunked_steps(p.max_batch());
    if (!drops_projected()) return;
    const ResidentShape& shape = plan.together[pass].shape;
    params->projection = static_cast<int>(p.projection);
    params->projection_columns = chunked_projected_columns(p.projection, shape.blocks / shape.cluster);
  }
  // The mask between layer first + i and the one above, layers of one launch.
  const uint8_t* dropout_mask(int64_t first, int64_t i) const;
  float dropout_scale() const { return drops() ? 1 / (1 - p.dropout.probability) : 0; }
  // Dropout between layer - 1 and `layer`, of rows [first, first + rows).
  void drop(int64_t layer, int64_t first, int64_t rows, const void* in, void* out) const;
  void copy(void* to, const void* from, int64_t bytes) const;
  // Rows of `width` elements; to_row and from_row are elements from one row to the next.
  void copy_rows(void* to, int64_t to_row, const void* from, int64_t from_row, int64_t width, int64_t rows) const;
  // [N, H]; nothing where `to` is NULL.
  void copy_states(const void* from, void* to) const;
  void clear(void* first, int64_t bytes) const;
  void store_table() const;
  void fill_empty(void* exchange, int64_t elements) const;
  Span span(void* first, int64_t elements) const { return {static_cast<char*>(first), elements * element}; }
  // Fills arrays that lie one after the other together.
  void fill_all_empty(std::vector<Span> arrays) const;

  // Calls launch(sizes, first recurrence, pass) for every launch of a layer: passes over the batch, and, where not all
  // heads and directions run at once, some after the others.
  template <class Launch>
  void for_each_launch(const ResidentShape& shape, Launch&& launch) const {
    const int64_t at_once = plan.recurrences_at_once, batch = p.max_batch();
    for (int64_t first = 0, pass = 0; first < batch; first += shape.batch_per_pass(), ++pass) {
      const int64_t columns = std::min(shape.batch_per_pass(), batch - first);
      for (int64_t recurrence = 0; recurrence < p.recurrences(); recurrence += at_once) {
        launch(sizes_of(shape, first, columns, std::min(at_once, p.recurrences() - recurrence)), recurrence, pass);
      }
    }
  }

 private:
  StateMasks masks(int64_t layer, int64_t first, int directions) const;
  ChunkedArrays chunked_arrays(Pass pass, int64_t first, int64_t count) const;
  // Matrices of `count` elements, aligned to 16 bytes: those of the caller or, where they are not, a copy.
  const void* aligned_matrix(const void* matrix, int64_t count, void* place) const;
  // merged <- [G H, P] times the projection of a layer.
  const void* merge(const void* matrix, const void* w, int64_t layer, int64_t direction, char* merged) const;
  template <class Pointer>
  Pointer state(Pointer base, int64_t layer, int64_t direction, int64_t width) const {
    return at(base, (layer * p.recurrences() + direction) * p.max_batch() * width);
  }
};

}  // namespace prnn
