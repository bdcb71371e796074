// RNN-T with its joiner on CUDA handles: cuts the workspace into arrays and enqueues kernels and products, a chunk of
// lattice cells at a time.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "core/cuda/cublas.h"
#include "core/cuda/launch.h"
#include "rnnt/cuda/arrays.h"
#include "rnnt/cuda/joint.h"
#include "rnnt/joint.h"

namespace prnn {
namespace {

using namespace rnnt_cuda;

constexpr int64_t kChunkLogits = INT64_C(1) << 25;  // see docs/joint_rnnt_loss.md
constexpr int64_t kLeastChunk = 1024;

Problem make_problem(const JointParams& params) {
  const prnnJointRNNTLossOptions_t& o = params.options;
  Problem problem{};
  problem.type = o.dataType;
  problem.input = PRNN_LOSS_LOGITS;
  problem.layout = o.pruneRange > 0 ? PRNN_RNNT_PRUNED : PRNN_RNNT_PACKED;
  problem.target_layout = PRNN_TARGETS_PADDED;
  problem.lattice = o.type;
  problem.batch = o.batch;
  problem.max_frames = o.maxFrames;
  problem.max_targets = o.maxTargets;
  problem.rows = o.rows > 0 ? o.rows : o.batch * o.maxFrames * (o.maxTargets + 1);
  problem.prune_range = o.pruneRange;
  problem.classes = o.classes;
  problem.blank = static_cast<int>(o.blank);
  problem.zero_infinity = o.zeroInfinity != 0;
  problem.fast_emit = o.fastEmitLambda;
  problem.clamp = o.clamp;
  problem.delay_penalty = o.delayPenalty;
  problem.targets = params.targets;
  problem.frame_lengths = params.frame_lengths;
  problem.target_lengths = params.target_lengths;
  problem.range_begins = params.range_begins;
  return problem;
}

Joint make_joint(const JointParams& params) {
  const prnnJointRNNTLossOptions_t& o = params.options;
  Joint joint{};
  joint.activation = o.activation;
  joint.size = o.joinerSize;
  joint.classes = o.classes;
  joint.padded_size = (o.joinerSize + 7) / 8 * 8;
  joint.padded_classes = (o.classes + 7) / 8 * 8;
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
auto with_form(const prnnJointRNNTLossOptions_t& options, Function&& function) {
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

// One call: its sizes and, from the workspace on, its arrays. Made with NULL pointers it only counts.
template <class Form>
struct Call {
  using Element = typename Form::Element;
  using Matrix = typename Form::Matrix;
  using Real = typename Form::Real;
  using Product = typename Form::Product;
  static constexpr int kTerms = Form::kTerms;
  static constexpr bool kSums = sizeof(Element) != sizeof(Real);  // gradients are summed in arrays of their own

  Problem problem;
  Joint joint;
  int64_t cells, chunk;
  Arena workspace;
  Scales* scales;
  Extremes* extremes;
  Weights<Form> weights;
  Matrix* activations;
  Real* logits;

  explicit Call(const JointParams& params)
      : problem(make_problem(params)), joint(make_joint(params)), workspace(params.workspace) {
    cells = problem.activation_cells();
    chunk = params.options.chunkCells;
    if (chunk == 0) chunk = std::max(kChunkLogits / joint.padded_classes, kLeastChunk);
    chunk = std::min(chunk, cells);
    scales = workspace.take<Scales>(1);
    extremes = workspace.take<Extremes>(1);
    const int64_t matrix = joint.padded_classes * kTerms * joint.padded_size;
    weights.for_logits = workspace.take<Matrix>(matrix);
    weights.for_gradients = kTerms > 1 ? workspace.take<Matrix>(matrix) : weights.for_logits;
    weights.bias = workspace.take<Real>(joint.padded_classes);
  }

  void take_chunk() {
    activations = workspace.take<Matrix>(chunk * kTerms * joint.padded_size);
    logits = workspace.take<Real>(chunk * joint.padded_classes);
  }

  // Calls function(first, count) for each chunk.
  template <class Function>
  void for_chunks(Function&& function) const {
    for (int64_t first = 0; first < cells; first += chunk) function(first, std::min(chunk, cells - first));
  }

  void make_logits(prnnHandle_t handle, const Sequence* sequences, int64_t first, int64_t count) const {
    run_activations<Form>(problem, joint, sequences, scales, first, count, activations, handle->stream);
    const int64_t terms = kTerms * joint.padded_size;
    multiply(handle, count, joint.padded_classes, terms, {activations, type_of(Matrix()), terms},
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
struct ForwardCall : Call<Form> {
  using Real = typename Form::Real;
  Lattice<Real> lattice{};

  ForwardCall(const JointParams& params, bool with_beta) : Call<Form>(params) {
    const Problem& problem = this->problem;
    lattice.sequences = this->workspace.template take<Sequence>(problem.batch);
    lattice.totals = this->workspace.template take<Scaled<Real>>(problem.batch);
    lattice.arcs = this->workspace.template take<Arcs<Real>>(problem.lattice_cells());
    Arena later = this->workspace;
    this->take_chunk();
    lattice.alpha = later.take<Scaled<Real>>(problem.lattice_cells());
    if (with_beta) lattice.beta = later.take<Scaled<Real>>(problem.lattice_cells());
    size = std::max(this->workspace.size(), later.size());
  }
  size_t size;
};

template <class Form>
struct BackwardCall : Call<Form> {
  using Real = typename Form::Real;
  typename Form::Matrix* gradients;    // of the logits
  typename Form::Product* products;    // gradients of the activations, where the logits were
  Real *encoder, *predictor, *weight;  // sums of gradients
  Real* bias_sums;

  BackwardCall(const JointParams& params, const JointGradients& out) : Call<Form>(params) {
    const Joint& joint = this->joint;
    Arena& workspace = this->workspace;
    encoder = static_cast<Real*>(out.encoder);
    predictor = static_cast<Real*>(out.predictor);
    if (this->kSums) {
      encoder = workspace.template take<Real>(encoder_rows() * joint.size);
      predictor = workspace.template take<Real>(predictor_rows() * joint.size);
    }
    weight = workspace.template take<Real>(joint.padded_classes * joint.padded_size);
    bias_sums = workspace.template take<Real>(bias_elements());
    gradients = workspace.template take<typename Form::Matrix>(this->chunk * Form::kTerms * joint.padded_classes);
    Arena there = workspace;
    this->take_chunk();
    there.take<typename Form::Matrix>(this->chunk * Form::kTerms * joint.padded_size);
    products = there.take<typename Form::Product>(this->chunk * joint.padded_size);
    size = std::max(workspace.size(), there.size());
  }
  int64_t encoder_rows() const { return this->problem.batch * this->problem.max_frames; }
  int64_t predictor_rows() const { return this->problem.batch * this->problem.width(); }
  int64_t bias_elements() const { return joint_bias_slots(this->chunk) * this->joint.padded_classes; }
  size_t size;
};

class CudaJointBackend final : public JointBackend {
 public:
  size_t workspace_size(const prnnJointRNNTLossOptions_t& options) const override {
    JointParams params{};
    params.options = options;
    return with_form(options, [&](auto form) {
      using Form = decltype(form);
      return std::max(ForwardCall<Form>(params, true).size, BackwardCall<Form>(params, {}).size);
    });
  }

  size_t reserve_size(const prnnJointRNNTLossOptions_t& options) const override {
    JointParams params{};
    params.options = options;
    Arena arena(nullptr);
    const Problem problem = make_problem(params);
    with_real(problem.type, [&](auto real) { Reserve<decltype(real)>(problem, arena); });
    return arena.size();
  }

  void forward(prnnHandle_t handle, const JointParams& params, void* costs, void* reserve_space) const override {
    with_form(params.options, [&](auto form) {
      using Form = decltype(form);
      using Real = typename Form::Real;
      ForwardCall<Form> call(params, reserve_space != nullptr);
      Lattice<Real>& lattice = call.lattice;
      Arena reserve_arena(reserve_space);
      const Reserve<Real> reserve(call.problem, reserve_arena);
      if (reserve_space) lattice.sequences = reserve.sequences;
      cudaStream_t stream = handle->stream;
      run_setup(call.problem, lattice.sequences, stream);
      run_scales<Form>(call.problem, call.joint, lattice.sequences, nullptr, call.extremes, call.scales, stream);
      run_prepare_weights(call.joint, call.scales, call.weights, stream);
      run_prune(call.problem, lattice, stream);
      call.for_chunks([&](int64_t first, int64_t count) {
        call.make_logits(handle, lattice.sequences, first, count);
        run_joint_emissions(call.problem, call.joint, lattice, call.scales, call.weights.bias, call.logits, first,
                            count, reserve.shares.normalisers, stream);
      });
      run_recursion(call.problem, lattice, static_cast<Real*>(costs), stream);
      if (reserve_space) run_shares(call.problem, lattice, reserve.shares.arcs, stream);
    });
  }

  void backward(prnnHandle_t handle, const JointParams& params, const void* cost_gradients, const JointGradients& out,
                const void* reserve_space) const override {
    with_form(params.options, [&](auto form) {
      using Form = decltype(form);
      using Element = typename Form::Element;
      using Matrix = typename Form::Matrix;
      using Real = typename Form::Real;
      const BackwardCall<Form> call(params, out);
      const Problem& problem = call.problem;
      const Joint& joint = call.joint;
      Arena reserve_arena(const_cast<void*>(reserve_space));
      const Reserve<Real> reserve(problem, reserve_arena);
      const Sequence* sequences = reserve.sequences;
      const Real* given = static_cast<const Real*>(cost_gradients);
      cudaStream_t stream = handle->stream;
      const int64_t encoder_elements = call.encoder_rows() * joint.size;
      const int64_t predictor_elements = call.predictor_rows() * joint.size;
      cudaMemsetAsync(call.encoder, 0, encoder_elements * sizeof(Real), stream);
      cudaMemsetAsync(call.predictor, 0, predictor_elements * sizeof(Real), stream);
      cudaMemsetAsync(call.bias_sums, 0, call.bias_elements() * sizeof(Real), stream);
      check_launch("a fill");
      run_scales<Form>(problem, joint, sequences, given, call.extremes, call.scales, stream);
      run_prepare_weights(joint, call.scales, call.weights, stream);
      constexpr int64_t kTerms = Form::kTerms;
      const int64_t size = joint.padded_size, classes = joint.padded_classes;
      const prnnDataType_t type = type_of(Matrix());
      call.for_chunks([&](int64_t first, int64_t count) {
        call.make_logits(handle, sequences, first, count);
        run_joint_gradients<Form>(problem, joint, sequences, reserve.shares, given, call.scales, call.weights.bias,
                                  call.logits, first, count, call.gradients, call.bias_sums, stream);
        call.multiply(handle, classes, size, count * kTerms, {call.gradients, type, classes, true},
                      {call.activations, type, size}, first > 0, call.weight, size);
        call.multiply(handle, count, size, kTerms * classes, {call.gradients, type, kTerms * classes},
                      {call.weights.for_gradients, type, size}, 0, call.products, size);
        run_input_gradients<Form>(problem, joint, sequences, call.scales, first, count, call.activations, call.products,
                                  call.encoder, call.predictor, stream);
      });
      if (call.kSums) {
        run_finish(call.encoder, 1, encoder_elements, encoder_elements, false, call.scales,
                   static_cast<Element*>(out.encoder), stream);
        run_finish(call.predictor, 1, predictor_elements, predictor_elements, false, call.scales,
                   static_cast<Element*>(out.predictor), stream);
      }
      run_finish(call.weight, joint.classes, joint.size, size, true, call.scales, static_cast<Element*>(out.weight),
                 stream);
      if (out.bias)
        run_finish_bias(joint, call.bias_sums, joint_bias_slots(call.chunk), call.scales, static_cast<Real*>(out.bias),
                        stream);
    });
  }
};

}  // namespace

const JointBackend& cuda_joint_backend() {
  static const CudaJointBackend backend;
  return backend;
}

}  // namespace prnn
