// RNN-T and TDT with their joiner on CUDA handles: cuts the workspace into arrays and enqueues kernels and products, a
// chunk of lattice cells at a time.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <optional>

#include "core/cuda/cublas.h"
#include "core/cuda/cuda_state.h"
#include "core/cuda/launch.h"
#include "rnnt/cuda/arrays.h"
#include "rnnt/cuda/duration_arrays.h"
#include "rnnt/cuda/joint.h"
#include "rnnt/joint.h"

namespace prnn {
namespace {

using namespace rnnt_cuda;

constexpr int64_t kChunkLogits = INT64_C(1) << 25;  // of 32 bits; see docs/joint_rnnt_loss.md
// TDT's classes are mostly many, with which the output layer's sums take memory enough: 8 x 150 x 41 cells, 8,198
// classes and a joiner of 640 in 16 bits take 143 MiB in all.
constexpr int64_t kTdtChunkLogits = kChunkLogits / 8 * 7;
constexpr int64_t kLeastChunk = 1024;
// The backward pass from tiles leaves out cells whose arcs are taken with a probability of at most this; those of a
// frame and those of a symbol position add up to at least one.
constexpr float kLeastShare = 1.0f / (1 << 30);

Problem make_problem(const JointParams& params) {
  const JointOptions& o = params.options;
  prnnRNNTLossOptions_t lattice{};
  lattice.dataType = o.dataType;
  lattice.input = PRNN_LOSS_LOGITS;
  lattice.layout = o.pruneRange > 0 ? PRNN_RNNT_PRUNED : PRNN_RNNT_PACKED;
  lattice.targetLayout = PRNN_TARGETS_PADDED;
  lattice.type = o.type;
  lattice.batch = o.batch;
  lattice.maxFrames = o.maxFrames;
  lattice.maxTargets = o.maxTargets;
  lattice.rows = o.rows > 0 ? o.rows : o.batch * o.maxFrames * (o.maxTargets + 1);
  lattice.pruneRange = o.pruneRange;
  lattice.classes = o.classes;
  lattice.blank = o.blank;
  lattice.zeroInfinity = o.zeroInfinity;
  lattice.fastEmitLambda = o.fastEmitLambda;
  lattice.clamp = o.clamp;
  lattice.delayPenalty = o.delayPenalty;
  return problem_of(lattice, params, nullptr);
}

Joint make_joint(const JointParams& params) {
  const JointOptions& o = params.options;
  Joint joint{};
  joint.activation = o.activation;
  joint.size = o.joinerSize;
  joint.classes = o.rows_of_weight();
  joint.tokens = o.classes;
  joint.padded_size = (o.joinerSize + 7) / 8 * 8;
  joint.padded_classes = (joint.classes + 7) / 8 * 8;
  joint.encoder = params.encoder;
  joint.predictor = params.predictor;
  joint.weight = params.weight;
  joint.bias = params.bias;
  joint.drop_below = static_cast<uint32_t>(o.dropout * 4294967296.0);
  joint.keep_scale = static_cast<float>(1 / (1 - o.dropout));
  joint.seed = params.dropout_seed;
  return joint;
}

// Calls function(Form()) with the form of the products.
template <class Function>
auto with_form(const JointOptions& options, Function&& function) {
  switch (options.dataType) {
    case PRNN_DATA_DOUBLE: return function(DoubleForm());
    case PRNN_DATA_HALF: return function(HalfForm());
    case PRNN_DATA_BFLOAT16: return function(Bfloat16Form());
    case PRNN_DATA_FLOAT: break;
  }
  return options.allowTf32 ? function(Tf32Form()) : function(SplitForm());
}

prnnDataType_t type_of(double) { return PRNN_DATA_DOUBLE; }
prnnDataType_t type_of(float) { return PRNN_DATA_FLOAT; }
prnnDataType_t type_of(__half) { return PRNN_DATA_HALF; }
prnnDataType_t type_of(__nv_bfloat16) { return PRNN_DATA_BFLOAT16; }

// Whether the backward pass takes its products from tiles: of 16-bit numbers, on Hopper.
template <class Form>
constexpr bool kTiles = sizeof(typename Form::Matrix) == 2;
bool has_tiles(prnnHandle_t handle) { return cuda_state(*handle).row.has_wgmma; }

// The lattice of a call, that of RNN-T or that of TDT: its arrays in workspace and reserve space, and its kernels.
template <class Real>
class CallLattice {
 public:
  CallLattice(const JointParams& params, const Problem& problem) : problem_(problem) {
    const JointOptions& o = params.options;
    if (!o.is_tdt()) return;
    DurationParams durations{};
    durations.options = o.durations;
    tdt_.emplace(durations);
    head_.entries = tdt_->arcs.entries;
    head_.first = static_cast<int>(o.classes);
    if (params.bias) head_.bias = static_cast<const Real*>(params.bias) + o.classes;
    head_.arcs = tdt_->arcs;
    head_.record_size = tdt_->record_size();
  }

  // Takes the arrays that the emissions fill.
  void take(Arena& arena) {
    if (tdt_) {
      take_scores(*tdt_, arena, durations_);
      lattice_.sequences = durations_.sequences;
      return;
    }
    lattice_.sequences = arena.take<Sequence>(problem_.batch);
    lattice_.totals = arena.take<Scaled<Real>>(problem_.batch);
    lattice_.arcs = arena.take<Arcs<Real>>(problem_.lattice_cells());
  }
  // Takes the recursion's scratch arrays.
  void take_sums(Arena& arena, bool with_beta) {
    if (tdt_) return duration_cuda::take_sums(*tdt_, arena, with_beta, durations_);
    lattice_.alpha = arena.take<Scaled<Real>>(problem_.lattice_cells());
    if (with_beta) lattice_.beta = arena.take<Scaled<Real>>(problem_.lattice_cells());
  }
  // Takes the arrays that the backward pass reads.
  void take_reserve(Arena& arena) {
    if (tdt_) {
      const duration_cuda::Reserve<Real> reserve(*tdt_, arena);
      durations_.sequences = lattice_.sequences = reserve.sequences;
      head_.shares = reserve.shares;
      return;
    }
    const Reserve<Real> reserve(problem_, arena);
    lattice_.sequences = reserve.sequences;
    shares_ = reserve.shares;
  }

  Sequence* sequences() const { return lattice_.sequences; }
  const DurationHead<Real>& head() const { return head_; }
  EmissionsOut<Real> emissions() const {
    EmissionsOut<Real> out{lattice_.arcs, shares_.normalisers, head_};
    out.head.scores = durations_.scores;
    return out;
  }
  CellWeights<Real> weights() const { return {shares_.arcs, head_.shares.records, head_.record_size}; }
  CostShares<Real> shares(const void* cost_gradients) const {
    return {weights(), tdt_ ? head_.shares.token_normalisers : shares_.normalisers,
            static_cast<const Real*>(cost_gradients)};
  }

  // Before the emissions.
  void prepare(cudaStream_t stream) const {
    if (!tdt_) run_prune(problem_, lattice_, stream);
  }
  // After them: the costs, and with a reserve space what it is for.
  void run(void* costs, cudaStream_t stream) const {
    if (tdt_) {
      duration_cuda::run_recursion(*tdt_, durations_, static_cast<Real*>(costs), stream);
      if (durations_.beta) duration_cuda::run_shares(*tdt_, durations_, head_.shares.records, {}, stream);
      return;
    }
    run_recursion(problem_, lattice_, static_cast<Real*>(costs), stream);
    if (lattice_.beta) run_shares(problem_, lattice_, shares_.arcs, {}, stream);
  }

 private:
  Problem problem_;
  Lattice<Real> lattice_{};
  Shares<Real> shares_{};
  std::optional<duration_cuda::Problem> tdt_;
  duration_cuda::Lattices<Real> durations_{};
  DurationHead<Real> head_;
};

// One call: its sizes and, from the workspace on, its arrays. Made with NULL pointers it only counts.
template <class Form>
struct Call {
  using Element = typename Form::Element;
  using Matrix = typename Form::Matrix;
  using Real = typename Form::Real;

  Problem problem;
  Joint joint;
  CallLattice<Real> lattice;
  int64_t cells, chunk;
  Arena workspace;
  Scales* scales;
  Extremes* extremes;
  Frames frames;

  explicit Call(const JointParams& params)
      : problem(make_problem(params)),
        joint(make_joint(params)),
        lattice(params, problem),
        workspace(params.workspace) {
    cells = problem.activation_cells();
    chunk = params.options.chunkCells;
    if (chunk == 0) {
      const int64_t rnnt_logits = sizeof(Element) == 2 ? 2 * kChunkLogits : kChunkLogits;
      const int64_t logits = params.options.is_tdt() ? kTdtChunkLogits : rnnt_logits;
      chunk = std::max(logits / joint.padded_classes, kLeastChunk);
    }
    chunk = std::min(chunk, cells);
  }

  void take_frames() {
    scales = workspace.take<Scales>(1);
    extremes = workspace.take<Extremes>(1);
    frames.first = workspace.take<int64_t>(encoder_rows() + 1);
    frames.begin = workspace.take<int>(encoder_rows());
    frames.chunk = workspace.take<int64_t>(2);
  }
  int64_t encoder_rows() const { return problem.batch * problem.maxFrames; }
  int64_t predictor_rows() const { return problem.batch * problem.width(); }

  // Calls function(Chunk) for each chunk. Of tiles they are all of one size.
  template <class Function>
  void for_chunks(bool whole, Function&& function) const {
    for (int64_t first = 0; first < cells; first += chunk)
      function(Chunk{problem, joint, frames, lattice.sequences(), scales, first,
                     whole ? chunk : std::min(chunk, cells - first)});
  }
};

// One with products by cuBLAS.
template <class Form>
struct RowCall : Call<Form> {
  using Matrix = typename Form::Matrix;
  using Logit = typename Form::Logit;
  static constexpr int kTerms = Form::kTerms;
  Weights<Form> weights;
  Matrix* activations;
  Logit* logits;

  explicit RowCall(const JointParams& params) : Call<Form>(params) {
    const int64_t matrix = this->joint.padded_classes * kTerms * this->joint.padded_size;
    weights.for_logits = this->workspace.template take<Matrix>(matrix);
    weights.for_gradients = kTerms > 1 ? this->workspace.template take<Matrix>(matrix) : weights.for_logits;
    weights.bias = this->workspace.template take<typename Form::Real>(this->joint.padded_classes);
    this->take_frames();
  }

  void take_chunk() {
    activations = this->workspace.template take<Matrix>(this->chunk * kTerms * this->joint.padded_size);
    logits = this->workspace.template take<Logit>(this->chunk * this->joint.padded_classes);
  }

  void make_logits(prnnHandle_t handle, const Chunk& chunk) const {
    const Joint& joint = this->joint;
    run_activations<Form, false>(chunk, activations, {}, handle->stream);
    const int64_t terms = kTerms * joint.padded_size;
    multiply(handle, chunk.count, joint.padded_classes, terms, {activations, type_of(Matrix()), terms},
             {weights.for_logits, type_of(Matrix()), terms, true}, 0, logits, joint.padded_classes);
  }

  template <class Out>
  void multiply(prnnHandle_t handle, int64_t m, int64_t n, int64_t k, const MatrixView& a, const MatrixView& b,
                double beta, Out* c, int64_t stride) const {
    const bool tf32 = std::is_same_v<Form, Tf32Form>;
    run_gemm(*handle, m, n, k, 1, a, b, beta, c, type_of(Out()), stride,
             tf32 ? FloatProduct::kTf32 : FloatProduct::kFloat32);
  }
};

// The forward call's arrays; those of the recursion lie where those of the chunks were.
template <class Form>
struct RowForwardCall : RowCall<Form> {
  RowForwardCall(const JointParams& params, bool with_beta) : RowCall<Form>(params) {
    this->lattice.take(this->workspace);
    Arena later = this->workspace;
    this->take_chunk();
    this->lattice.take_sums(later, with_beta);
    size = std::max(this->workspace.size(), later.size());
  }
  size_t size;
};

// Where the gradients of encoder and predictor are summed: in the caller's arrays if they are float.
template <class Form>
struct InputSums {
  using Element = typename Form::Element;
  using Real = typename Form::Real;
  static constexpr bool kOwn = sizeof(Element) != sizeof(Real);
  Real *encoder, *predictor;
  int64_t encoder_elements, predictor_elements;

  InputSums(const Call<Form>& call, const JointGradients& out, Arena& workspace)
      : encoder(static_cast<Real*>(out.encoder)),
        predictor(static_cast<Real*>(out.predictor)),
        encoder_elements(call.encoder_rows() * call.joint.size),
        predictor_elements(call.predictor_rows() * call.joint.size) {
    if (!kOwn) return;
    encoder = workspace.take<Real>(encoder_elements);
    predictor = workspace.take<Real>(predictor_elements);
  }
  void clear(cudaStream_t stream) const {
    cudaMemsetAsync(encoder, 0, encoder_elements * sizeof(Real), stream);
    cudaMemsetAsync(predictor, 0, predictor_elements * sizeof(Real), stream);
  }
  void finish(const JointGradients& out, const Scales* scales, cudaStream_t stream) const {
    if (!kOwn) return;
    run_finish(encoder, 1, encoder_elements, encoder_elements, false, scales, static_cast<Element*>(out.encoder),
               stream);
    run_finish(predictor, 1, predictor_elements, predictor_elements, false, scales,
               static_cast<Element*>(out.predictor), stream);
  }
};

template <class Form>
struct RowBackwardCall : RowCall<Form> {
  using Real = typename Form::Real;
  InputSums<Form> inputs;
  typename Form::Matrix* gradients;  // of the logits
  typename Form::Product* products;  // gradients of the activations, where the logits were
  Real *weight, *bias_sums;

  RowBackwardCall(const JointParams& params, const JointGradients& out)
      : RowCall<Form>(params), inputs(*this, out, this->workspace) {
    const Joint& joint = this->joint;
    Arena& workspace = this->workspace;
    weight = workspace.template take<Real>(joint.padded_classes * joint.padded_size);
    bias_sums = workspace.template take<Real>(bias_elements());
    gradients = workspace.template take<typename Form::Matrix>(this->chunk * Form::kTerms * joint.padded_classes);
    Arena there = workspace;
    this->take_chunk();
    there.take<typename Form::Matrix>(this->chunk * Form::kTerms * joint.padded_size);
    products = there.take<typename Form::Product>(this->chunk * joint.padded_size);
    size = std::max(workspace.size(), there.size());
  }
  int64_t bias_elements() const { return joint_bias_slots(this->chunk) * this->joint.padded_classes; }
  size_t size;
};

// One with products from tiles.
template <class Form>
struct TileCall : Call<Form> {
  using Matrix = typename Form::Matrix;
  static constexpr int64_t kHalves = Form::kTerms == 3 ? 2 : 1;
  TileWeights<Form> weights{};

  // Tiles come first, so that they are aligned as the workspace is.
  TileCall(const JointParams& params, bool backward) : Call<Form>(params) {
    const Joint& joint = this->joint;
    this->chunk = (this->chunk + kTileRows - 1) / kTileRows * kTileRows;
    weights.for_logits = take_tiles<Matrix>(tile_columns(joint.classes), joint.size, kHalves);
    if (backward) weights.for_gradients = take_tiles<Matrix>(tile_columns(joint.size), joint.classes, kHalves);
    weights.bias = this->workspace.template take<float>(tile_columns(joint.classes));
  }
  template <class Element>
  Element* take_tiles(int64_t rows, int64_t columns, int64_t halves) {
    constexpr int64_t kColumns = kTileBytes / sizeof(Element);
    return this->workspace.template take<Element>(rows * halves * ((columns + kColumns - 1) / kColumns * kColumns));
  }
};

template <class Form>
struct TileForwardCall : TileCall<Form> {
  typename Form::Matrix* activations;
  Emission* emissions;
  size_t size;

  // The recursion's arrays lie where those of the chunks were.
  TileForwardCall(const JointParams& params, bool with_beta) : TileCall<Form>(params, false) {
    Arena& workspace = this->workspace;
    // As much of a chunk as the backward pass has of one, in which logits and gradients have a place, too.
    const int64_t columns = this->joint.padded_size, more = (5 * columns / 2 + this->joint.padded_classes) / columns;
    this->chunk = std::min(this->chunk * more, (this->cells + kTileRows - 1) / kTileRows * kTileRows);
    Arena later = workspace;
    this->lattice.take_sums(later, with_beta);
    activations = this->template take_tiles<typename Form::Matrix>(this->chunk, this->joint.size, this->kHalves);
    emissions = workspace.template take<Emission>(this->chunk);
    if (workspace.size() < later.size()) workspace = later;
    this->lattice.take(workspace);
    this->take_frames();
    size = workspace.size();
  }
};

template <class Form>
struct TileBackwardCall : TileCall<Form> {
  Tiles<Form> tiles;
  TileSums sums;
  InputSums<Form> inputs;
  size_t size;

  TileBackwardCall(const JointParams& params, const JointGradients& out)
      : TileCall<Form>(params, true), tiles(take_chunk()), inputs(*this, out, this->workspace) {
    Arena& workspace = this->workspace;
    tiles.cells = workspace.template take<CellShares<float>>(this->chunk);
    sums.weight = workspace.template take<float>(weight_elements());
    sums.bias = workspace.template take<float>(bias_elements());
    this->take_frames();
    size = workspace.size();
  }
  Tiles<Form> take_chunk() {
    using Matrix = typename Form::Matrix;
    const Joint& joint = this->joint;
    Tiles<Form> chunk{};
    chunk.activations = this->template take_tiles<Matrix>(this->chunk, joint.size, this->kHalves);
    chunk.gradients = this->template take_tiles<Matrix>(this->chunk, joint.classes, this->kHalves);
    chunk.products = this->template take_tiles<typename Form::Product>(this->chunk, joint.size, 1);
    return chunk;
  }
  int64_t bias_elements() const {
    return tile_splits(this->joint) * ((this->joint.classes + kTileRows - 1) / kTileRows * kTileRows);
  }
  int64_t weight_elements() const { return bias_elements() * tile_columns(this->joint.size); }
};

class CudaJointBackend final : public JointBackend {
 public:
  size_t workspace_size(prnnHandle_t handle, const JointOptions& options) const override {
    JointParams params{};
    params.options = options;
    return with_form(options, [&](auto form) {
      using Form = decltype(form);
      if constexpr (kTiles<Form>) {
        if (has_tiles(handle))
          return std::max(TileForwardCall<Form>(params, true).size, TileBackwardCall<Form>(params, {}).size);
      }
      return std::max(RowForwardCall<Form>(params, true).size, RowBackwardCall<Form>(params, {}).size);
    });
  }

  size_t reserve_size(const JointOptions& options) const override {
    JointParams params{};
    params.options = options;
    Arena arena(nullptr);
    with_real(options.dataType,
              [&](auto real) { CallLattice<decltype(real)>(params, make_problem(params)).take_reserve(arena); });
    return arena.size();
  }

  void forward(prnnHandle_t handle, const JointParams& params, void* costs, void* reserve_space) const override {
    with_form(params.options, [&](auto form) {
      using Form = decltype(form);
      const bool with_beta = reserve_space != nullptr;
      if constexpr (kTiles<Form>) {
        if (has_tiles(handle)) {
          TileForwardCall<Form> call(params, with_beta);
          return run_forward<Form>(
              call, handle, costs, reserve_space, true,
              [&] { run_weight_tiles(call.joint, call.scales, call.weights, handle->stream); },
              [&](const Chunk& chunk) {
                CellRecords<float> records;
                records.emissions = call.emissions;
                run_activations<Form, true>(chunk, call.activations, records, handle->stream);
                run_tile_emissions<Form>(chunk,
                                         {call.weights, call.activations, call.emissions, call.lattice.emissions()},
                                         blocks(handle), handle->stream);
              });
        }
      }
      RowForwardCall<Form> call(params, with_beta);
      run_forward<Form>(
          call, handle, costs, reserve_space, false,
          [&] { run_prepare_weights(call.joint, call.scales, call.weights, handle->stream); },
          [&](const Chunk& chunk) {
            call.make_logits(handle, chunk);
            run_joint_emissions<Form>(chunk, {call.logits, call.weights.bias, call.lattice.emissions()},
                                      handle->stream);
          });
    });
  }

  void backward(prnnHandle_t handle, const JointParams& params, const void* cost_gradients, const JointGradients& out,
                const void* reserve_space) const override {
    with_form(params.options, [&](auto form) {
      using Form = decltype(form);
      if constexpr (kTiles<Form>) {
        if (has_tiles(handle)) return tile_backward<Form>(handle, params, cost_gradients, out, reserve_space);
      }
      row_backward<Form>(handle, params, cost_gradients, out, reserve_space);
    });
  }

 private:
  static int blocks(prnnHandle_t handle) { return cuda_state(*handle).row.multiprocessors; }

  // prepare() makes the weights ready, emissions(chunk) those of a chunk.
  template <class Form, class MadeCall, class Prepare, class Emissions>
  static void run_forward(MadeCall& call, prnnHandle_t handle, void* costs, void* reserve_space, bool whole,
                          Prepare&& prepare, Emissions&& emissions) {
    using Real = typename Form::Real;
    Arena reserve(reserve_space);
    if (reserve_space) call.lattice.take_reserve(reserve);
    Sequence* sequences = call.lattice.sequences();
    cudaStream_t stream = handle->stream;
    run_setup(call.problem, sequences, stream);
    run_frames<Real>(call.problem, sequences, {}, 0, call.frames, stream);
    run_scales<Form>(call.problem, call.joint, sequences, nullptr, call.extremes, call.scales, stream);
    prepare();
    call.lattice.prepare(stream);
    call.for_chunks(whole, emissions);
    call.lattice.run(costs, stream);
  }

  // Begins both ways: computes the scales, and which cells are computed.
  template <class Form>
  static void begin_backward(Call<Form>& call, const InputSums<Form>& inputs, const void* cost_gradients,
                             const void* reserve_space, bool all, cudaStream_t stream) {
    using Real = typename Form::Real;
    Arena reserve(const_cast<void*>(reserve_space));
    call.lattice.take_reserve(reserve);
    const Sequence* sequences = call.lattice.sequences();
    inputs.clear(stream);
    run_frames<Real>(call.problem, sequences, all ? CellWeights<Real>{} : call.lattice.weights(), kLeastShare,
                     call.frames, stream);
    run_scales<Form>(call.problem, call.joint, sequences, static_cast<const Real*>(cost_gradients), call.extremes,
                     call.scales, stream);
  }

  template <class Form>
  static void row_backward(prnnHandle_t handle, const JointParams& params, const void* cost_gradients,
                           const JointGradients& out, const void* reserve_space) {
    using Element = typename Form::Element;
    using Real = typename Form::Real;
    RowBackwardCall<Form> call(params, out);
    const Joint& joint = call.joint;
    cudaStream_t stream = handle->stream;
    begin_backward<Form>(call, call.inputs, cost_gradients, reserve_space, true, stream);
    cudaMemsetAsync(call.bias_sums, 0, call.bias_elements() * sizeof(Real), stream);
    check_launch("a fill");
    run_prepare_weights(joint, call.scales, call.weights, stream);
    const LogitGradients<Form> logits{call.lattice.shares(cost_gradients),
                                      call.lattice.head(),
                                      call.logits,
                                      call.weights.bias,
                                      call.gradients,
                                      call.bias_sums};
    const InputGradients<Form> inputs{call.activations, call.products, call.inputs.encoder, call.inputs.predictor};
    constexpr int64_t kTerms = Form::kTerms;
    const int64_t size = joint.padded_size, classes = joint.padded_classes;
    const prnnDataType_t type = type_of(typename Form::Matrix());
    call.for_chunks(false, [&](const Chunk& chunk) {
      call.make_logits(handle, chunk);
      run_joint_gradients(chunk, logits, stream);
      call.multiply(handle, classes, size, chunk.count * kTerms, {call.gradients, type, classes, true},
                    {call.activations, type, size}, chunk.first > 0, call.weight, size);
      call.multiply(handle, chunk.count, size, kTerms * classes, {call.gradients, type, kTerms * classes},
                    {call.weights.for_gradients, type, size}, 0, call.products, size);
      run_input_gradients(chunk, inputs, stream);
    });
    call.inputs.finish(out, call.scales, stream);
    run_finish(call.weight, joint.classes, joint.size, size, true, call.scales, static_cast<Element*>(out.weight),
               stream);
    if (out.bias)
      run_finish_bias(joint, call.bias_sums, joint_bias_slots(call.chunk), call.scales, static_cast<Real*>(out.bias),
                      stream);
  }

  template <class Form>
  static void tile_backward(prnnHandle_t handle, const JointParams& params, const void* cost_gradients,
                            const JointGradients& out, const void* reserve_space) {
    using Element = typename Form::Element;
    TileBackwardCall<Form> call(params, out);
    const Joint& joint = call.joint;
    cudaStream_t stream = handle->stream;
    begin_backward<Form>(call, call.inputs, cost_gradients, reserve_space, false, stream);
    cudaMemsetAsync(call.sums.weight, 0, call.weight_elements() * sizeof(float), stream);
    cudaMemsetAsync(call.sums.bias, 0, call.bias_elements() * sizeof(float), stream);
    check_launch("a fill");
    run_weight_tiles(joint, call.scales, call.weights, stream);
    CellRecords<float> records;
    records.cells = call.tiles.cells;
    records.made_of = call.lattice.shares(cost_gradients);
    const InputGradients<Form> inputs{call.tiles.activations, call.tiles.products, call.inputs.encoder,
                                      call.inputs.predictor};
    call.for_chunks(true, [&](const Chunk& chunk) {
      run_activations<Form, true>(chunk, call.tiles.activations, records, stream);
      run_tile_products(chunk, call.weights, call.tiles, call.lattice.head(), call.sums, blocks(handle), stream);
      run_tile_input_gradients(chunk, inputs, stream);
    });
    call.inputs.finish(out, call.scales, stream);
    run_finish_tiles<Form>(joint, call.sums, call.scales, static_cast<Element*>(out.weight),
                           static_cast<float*>(out.bias), stream);
  }
};

}  // namespace

const JointBackend& cuda_joint_backend() {
  static const CudaJointBackend backend;
  return backend;
}

}  // namespace prnn
