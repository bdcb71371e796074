// RNN-T and TDT with their joiner on a GPU: the kernels around the matrix products of one chunk of lattice cells.
// docs/joint_rnnt_loss.md tells the whole way of the data.
//
// Which cells are computed say Frames; they are numbered in that order. A chunk is `count` cells from `first` on; what
// lies beyond the last cell is computed as zeros, or not at all where nothing of the chunk is left.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rnnt/cuda/duration.h"
#include "rnnt/cuda/lattice.h"

namespace prnn::rnnt_cuda {

// How a data type's matrix products are made. Element: of the caller's arrays. Matrix: of the factors. Real: in which
// all else is computed. Logit, Product: in which cuBLAS gives the logits, and the gradients of the activations come
// out. A number becomes kTerms numbers of a factor: itself, or for kTerms = 3 its upper and lower half, `kLeft` and
// `kRight` in joint.cuh, so that one product over thrice the length is the sum of the products that matter. kScaled:
// factors are multiplied by powers of two, see Scales.
struct DoubleForm {
  using Element = double;
  using Matrix = double;
  using Real = double;
  using Logit = double;
  using Product = double;
  static constexpr int kTerms = 1;
  static constexpr bool kScaled = false;
};
struct HalfForm {
  using Element = __half;
  using Matrix = __half;
  using Real = float;
  using Logit = __half;
  using Product = float;  // scaled gradients times weights may be beyond what a half holds
  static constexpr int kTerms = 1;
  static constexpr bool kScaled = true;
};
struct Bfloat16Form {
  using Element = __nv_bfloat16;
  using Matrix = __nv_bfloat16;
  using Real = float;
  using Logit = __nv_bfloat16;
  using Product = __nv_bfloat16;
  static constexpr int kTerms = 1;
  static constexpr bool kScaled = false;
};
struct SplitForm {  // FLOAT: 22 bits in two halves
  using Element = float;
  using Matrix = __half;
  using Real = float;
  using Logit = float;
  using Product = float;
  static constexpr int kTerms = 3;
  static constexpr bool kScaled = true;
};
struct Tf32Form {
  using Element = float;
  using Matrix = float;
  using Real = float;
  using Logit = float;
  using Product = float;
  static constexpr int kTerms = 1;
  static constexpr bool kScaled = false;
};

// Instantiates for every form, and for those whose products on compute capability 9.0 are from tiles.
#define PRNN_FOR_TILED_FORMS(INSTANTIATE) INSTANTIATE(HalfForm) INSTANTIATE(Bfloat16Form) INSTANTIATE(SplitForm)
#define PRNN_FOR_ALL_FORMS(INSTANTIATE) INSTANTIATE(DoubleForm) PRNN_FOR_TILED_FORMS(INSTANTIATE) INSTANTIATE(Tf32Form)

// Powers of two that bring a factor into the range of a half; ones where that is not needed.
struct Scales {
  float activation, weight, gradient;
};

// The joiner's sizes and inputs; device pointers. Matrices have rows of padded_size or padded_classes elements, zeros
// in the padding, so that products are aligned. `tokens` of the classes have a softmax: all of RNN-T; of TDT the
// duration logits follow. What has no part in that softmax has a bias of minus infinity.
struct Joint {
  prnnJointActivation_t activation;
  int64_t size, classes, tokens, padded_size, padded_classes;
  const void *encoder, *predictor, *weight, *bias;
  uint32_t drop_below;  // an element is dropped if its random number is below
  float keep_scale;     // 1 / (1 - dropout)
  const unsigned long long* seed;
};

// The cells that are computed: in each frame, n * max_frames + t, a run of symbol positions.
struct Frames {
  int64_t* first;  // {N * T + 1}: how many cells lie before a frame; the last: how many there are
  int* begin;      // {N * T}: a frame's first symbol position
  int64_t* chunk;  // {2}: the first and the last frame of a chunk, of which run_activations() tells
};

// `count` cells of a call, from `first` on, and what all kernels that work on them have in common.
struct Chunk {
  Problem problem;
  Joint joint;
  Frames frames;
  const Sequence* sequences;
  const Scales* scales;
  int64_t first, count;
};

// With which probability paths go through cells: of RNN-T by its arcs, a row each, of TDT by its share records, of
// which also padding has one.
template <class Real>
struct CellWeights {
  const Arcs<Real>* arcs = nullptr;
  const Real* records = nullptr;
  int64_t record_size = 0;
};

// All cells of the sequences and, unless `weights` are none, of those the ones which a path takes with a probability
// above `least`, with what lies between them in a frame.
template <class Real>
void run_frames(const Problem& problem, const Sequence* sequences, const CellWeights<Real>& weights, Real least,
                const Frames& frames, cudaStream_t stream);

// The arrays that TDT has beyond RNN-T's in the emissions and the gradients of a chunk.
template <class Real>
struct DurationHead {
  int entries = 0;  // duration logits, the classes from `first` on; 0: RNN-T
  int first = 0;
  const Real* bias = nullptr;  // {entries}; NULL: zeros
  DurationArcs arcs{{}};
  Real* scores = nullptr;                // of duration_cuda::Lattices; emissions alone
  duration_cuda::Shares<Real> shares{};  // emissions write the normalisers unless NULL, gradients read them and records
  int64_t record_size = 0;
};

// The output layer as the products take it.
template <class Form>
struct Weights {
  typename Form::Matrix* for_logits;     // {padded_classes, kTerms, padded_size}, kRight
  typename Form::Matrix* for_gradients;  // {kTerms, padded_classes, padded_size}, kLeft; the same for kTerms = 1
  typename Form::Real* bias;             // {padded_classes}
};

// Largest absolute values, from which the scales follow.
struct Extremes {
  unsigned encoder, predictor, weight, cost_gradient;  // bits of floats, which compare as integers
};

// Finds the scales. cost_gradients may be NULL: ones. Runs nothing but a fill where they are all ones.
template <class Form>
void run_scales(const Problem& problem, const Joint& joint, const Sequence* sequences,
                const typename Form::Real* cost_gradients, Extremes* extremes, Scales* scales, cudaStream_t stream);

template <class Form>
void run_prepare_weights(const Joint& joint, const Scales* scales, const Weights<Form>& weights, cudaStream_t stream);

// A chunk's matrices lie in rows (for cuBLAS) or in tiles (for run_tile_products); what says kTiled is for either.
constexpr int kTileRows = 128, kTileBytes = 128;

// Where a cell's arcs and its normaliser go, and what the arcs are made of. arcs: the cell's node in the lattice, -1
// for what is no cell. row: of arrays kept for the backward pass. label: -1 after the last target.
struct Emission {
  int64_t arcs, row;
  int label, t, u, frames;
};

// A cell's part in the gradients of its logits. row: as of an Emission.
template <class Real>
struct CellShares {
  int64_t row;
  Real blank, label, normaliser, scale;
  int label_at;
};

// The terms of the logits' gradients. With TDT the records take the place of the arcs.
template <class Real>
struct CostShares {
  CellWeights<Real> weights;
  const Real* normalisers;     // of the tokens
  const Real* cost_gradients;  // NULL: ones
};

// The chunk's cells as the products from tiles read them: `emissions` forward, `cells` backward, else NULL.
template <class Real>
struct CellRecords {
  Emission* emissions = nullptr;
  CellShares<Real>* cells = nullptr;
  CostShares<Real> made_of{};  // `cells`
};

// activations {count, kTerms, padded_size}, kLeft: drop(activation(encoder + predictor)); zeros for padding. What
// dropout took is minus zero, everything else that is zero is plus zero.
// With kTiled also what `records` has room for, and Frames::chunk.
template <class Form, bool kTiled>
void run_activations(const Chunk& chunk, typename Form::Matrix* activations,
                     const CellRecords<typename Form::Real>& records, cudaStream_t stream);

// Where emissions go: of RNN-T to arcs, and normalisers unless NULL; of TDT to what `head` has.
template <class Real>
struct EmissionsOut {
  Arcs<Real>* arcs;
  Real* normalisers;
  DurationHead<Real> head;
};

// From products {count, padded_classes}. bias: padded with minus infinity.
template <class Form>
struct JointEmissions {
  const typename Form::Logit* products;
  const typename Form::Real* bias;
  EmissionsOut<typename Form::Real> out;
};
template <class Form>
void run_joint_emissions(const Chunk& chunk, const JointEmissions<Form>& emissions, cudaStream_t stream);

// From products and bias, as there, to gradients of the logits {count, kTerms, padded_classes}, kRight, times
// Scales::gradient. Adds sums over rows to bias_sums {joint_bias_slots(count), padded_classes}.
template <class Form>
struct LogitGradients {
  CostShares<typename Form::Real> made_of;
  DurationHead<typename Form::Real> head;
  const typename Form::Logit* products;
  const typename Form::Real* bias;
  typename Form::Matrix* gradients;
  typename Form::Real* bias_sums;
};
template <class Form>
void run_joint_gradients(const Chunk& chunk, const LogitGradients<Form>& gradients, cudaStream_t stream);
int64_t joint_bias_slots(int64_t chunk);

// Adds a chunk's part to the gradients of encoder {N, T, size} and predictor {N, U + 1, size}. products: gradients of
// the activations {count, padded_size}, times the scales of gradient and weight.
template <class Form>
struct InputGradients {
  const typename Form::Matrix* activations;
  const typename Form::Product* products;
  typename Form::Real *encoder, *predictor;
};
template <class Form>
void run_input_gradients(const Chunk& chunk, const InputGradients<Form>& gradients, cudaStream_t stream);

// ---- The products on compute capability 9.0, from tiles; docs/joint_rnnt_loss.md ----

// The output layer in tiles.
template <class Form>
struct TileWeights {
  typename Form::Matrix* for_logits;     // {tile_columns(classes), size}
  typename Form::Matrix* for_gradients;  // {tile_columns(size), classes}; NULL where no gradients are wanted
  float* bias;                           // {tile_columns(classes)}
};
inline __host__ __device__ int64_t tile_columns(int64_t columns) { return (columns + 255) / 256 * 256; }

// A chunk's matrices, whole tiles: activations {count, size}, gradients of logits {count, classes} and of activations
// {count, size}, times the scales of gradient and weight.
template <class Form>
struct Tiles {
  CellShares<float>* cells;
  typename Form::Matrix *activations, *gradients;
  typename Form::Product* products;
};

// Shares of the output layer's gradients: {tile_splits(), classes in whole tiles, tile_columns(size)} and without the
// last dimension for the bias.
struct TileSums {
  float *weight, *bias;
};
int64_t tile_splits(const Joint& joint);

template <class Form>
void run_weight_tiles(const Joint& joint, const Scales* scales, const TileWeights<Form>& weights, cudaStream_t stream);

// From the activations of a chunk to its emissions. `blocks`: one a multiprocessor.
template <class Form>
struct TileEmissions {
  TileWeights<Form> weights;
  const typename Form::Matrix* activations;
  const Emission* emissions;
  EmissionsOut<float> out;
};
template <class Form>
void run_tile_emissions(const Chunk& chunk, const TileEmissions<Form>& emissions, int blocks, cudaStream_t stream);

// From the activations of a chunk to everything else of it; adds to the sums.
template <class Form>
void run_tile_products(const Chunk& chunk, const TileWeights<Form>& weights, const Tiles<Form>& tiles,
                       const DurationHead<float>& head, const TileSums& sums, int blocks, cudaStream_t stream);

// As run_input_gradients().
template <class Form>
void run_tile_input_gradients(const Chunk& chunk, const InputGradients<Form>& gradients, cudaStream_t stream);

// weight {classes, size} and, unless NULL, bias {classes}: the sums, divided by their scales.
template <class Form>
void run_finish_tiles(const Joint& joint, const TileSums& sums, const Scales* scales, typename Form::Element* weight,
                      float* bias, cudaStream_t stream);

// out {rows, columns} = sums {rows, stride}, divided by the scales of gradient and activation if `scaled`.
template <class Real, class Element>
void run_finish(const Real* sums, int64_t rows, int64_t columns, int64_t stride, bool scaled, const Scales* scales,
                Element* out, cudaStream_t stream);

// out {classes} = the sums of bias_sums over its slots, divided by the gradients' scale.
template <class Real>
void run_finish_bias(const Joint& joint, const Real* bias_sums, int64_t slots, const Scales* scales, Real* out,
                     cudaStream_t stream);

}  // namespace prnn::rnnt_cuda
