#include "rnn/cuda/layer_norm/backend.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/cuda/arena.h"
#include "core/cuda/cublas.h"
#include "core/cuda/cuda_state.h"
#include "core/with_real.h"
#include "rnn/cuda/layer/run.h"
#include "rnn/cuda/layer_norm/cluster.h"
#include "rnn/cuda/layer_norm/grid.h"
#include "rnn/cuda/layer_norm/steps.h"
#include "rnn/gates_input.h"

namespace prnn {
namespace {

// The buffers through which the blocks of a grid exchange in one launch; see LayerNormLstmGridParams.
struct GridExchange {
  int64_t states, moments;  // bytes, and floats

  GridExchange(const RnnProblem& p, const LayerNormLstmGrid& grid, Pass direction) {
    const bool is_backward = direction == Pass::kBackward;
    const LayerNormLstmGridPass& pass = is_backward ? grid.backward : grid.forward;
    const int64_t columns = int64_t{pass.replicas} * (is_backward ? 4 * pass.columns : pass.state_columns);
    states = p.steps() * columns * grid.padded * type_bytes(p.type);
    moments = p.normalizes() ? p.steps() * pass.replicas * pass.columns * pass.blocks * 4 : 0;
  }
};

// The workspace; in inference without the arrays of the backward run.
template <class Real>
struct NormWorkspace {
  NormWorkspace(const RnnProblem& p, const LayerNormLstmPlan& plan, void* base) : arena(base) {
    const int64_t state = p.max_batch() * p.hidden, rows = p.steps() * state, bytes = type_bytes(p.type);
    const auto backward_alone = [&](int64_t count) { return p.training ? count : 0; };
    products = arena.take<Real>(4 * state);
    carried = arena.take<Real>(state);
    direct = arena.take<Real>(backward_alone(state));
    masked = arena.take<char>(state * bytes);
    sums = arena.take<Real>(backward_alone(kLayerNormLstmParameterRows * state));
    h_prev = arena.take<char>(backward_alone(rows * bytes));
    da = arena.take<char>(backward_alone(p.normalize == PRNN_NORMALIZE_PRODUCTS ? 4 * rows * bytes : 0));
    const GridExchange forward(p, plan.grid, Pass::kForward), backward(p, plan.grid, Pass::kBackward);
    states = arena.take<char>(std::max(forward.states, backward_alone(backward.states)));
    moments = arena.take<float>(std::max(forward.moments, backward_alone(backward.moments)));
    const bool keeps_sums = plan.engine(Pass::kBackward) == Engine::kNormGrid;
    kept_sums = arena.take<float>(backward_alone(keeps_sums ? 4 * p.steps() * p.max_batch() : 0));
  }

  Arena arena;
  Real* products;  // [N, 4 H] forward: R (m * h_{t-1}); [N, H] backward: R' da, or [4, N, H] that add up to it
  Real* carried;   // [N, H]: c; its gradient
  Real* direct;    // [N, H]
  char* masked;    // [N, H]: m * h
  Real* sums;      // [N, kLayerNormLstmParameterRows, H]
  char* h_prev;    // [T, N, H]: m * h_{t-1}
  char* da;        // [T, N, 4 H]; PRODUCTS alone
  // On the grid alone: LayerNormLstmGridParams
  char* states;
  float *moments, *kept_sums;
};

template <class Real>
struct NormReserve {
  NormReserve(const RnnProblem& p, void* base) : arena(base) {
    gates = arena.take<char>(p.rows * 4 * p.hidden * type_bytes(p.type));
    cells = arena.take<char>(p.rows * p.hidden * type_bytes(p.type));
    stats = arena.take<Real>(p.rows * 4);
  }

  Arena arena;
  char *gates, *cells;
  Real* stats;
};

template <class Real>
class NormPass {
 public:
  // args: of either run.
  template <class Args>
  NormPass(prnnHandle_t handle, const RnnProblem& problem, const Args& args, const LayerNormLstmPlan& plan)
      : handle_(handle), stream_(handle->stream), o_(problem), plan_(plan), ws_(problem, plan, args.workspace) {
    p_.sizes = {static_cast<int>(H),
                static_cast<int>(o_.steps()),
                static_cast<int>(N),
                plan.clusters.columns_per_cluster,
                std::max(plan.clusters.clusters, 1),
                1};
    p_.reverse = o_.reverse;
    p_.products = o_.normalize == PRNN_NORMALIZE_PRODUCTS;
    p_.normalizes = o_.normalizes();
    p_.epsilon = static_cast<Real>(o_.epsilon);
    p_.zoneout = static_cast<Real>(o_.masks.zoneoutExpectation);
    p_.timed_out = cuda_state(*handle).timed_out_on_device;
    p_.x = args.x;
    p_.h0 = args.hx;
    p_.c0 = args.cx;
    p_.recurrent = args.w;
    if (o_.normalizes()) {
      p_.gate_gain = args.norm->gateGain;
      p_.gate_bias = args.norm->gateBias;
      p_.cell_gain = args.norm->cellGain;
      p_.cell_bias = args.norm->cellBias;
    }
    p_.zoneout_mask = o_.masks.zoneout;
    p_.recurrent_mask = o_.masks.recurrent;
    p_.lengths = args.lengths;
    p_.y = const_cast<void*>(static_cast<const void*>(args.y));
    if (args.reserve == nullptr) return;
    const NormReserve<Real> reserve(o_, args.reserve);
    p_.gates = reserve.gates;
    p_.cells = reserve.cells;
    p_.stats = reserve.stats;
  }

  void forward(const RnnForwardArgs& args) {
    p_.cy = args.cy;
    if (!run_resident(Pass::kForward)) run_forward_steps();
    if (args.hy == nullptr) return;
    const char* const last = static_cast<const char*>(args.y) + p_.row_of(p_.sizes.steps - 1) * H * bytes();
    require_launch(
        cudaMemcpyAsync(args.hy, last, static_cast<size_t>(N * H * bytes()), cudaMemcpyDeviceToDevice, stream_),
        "a copy");
  }

  void backward(const RnnBackwardArgs& args) {
    p_.dy = args.dy;
    p_.dcy = args.dcy;
    p_.dx = args.dx;
    p_.da = p_.products ? ws_.da : args.dx;
    p_.dh0 = args.dhx;
    p_.dc0 = args.dcx;
    p_.sums = ws_.sums;
    if (!run_resident(Pass::kBackward)) run_backward_steps();
    if (args.dw != nullptr) {
      gather_layer_norm_lstm_states(o_.type, p_, ws_.h_prev, stream_);
      multiply(4 * H, H, o_.rows, {p_.da, o_.type, 4 * H, true}, {ws_.h_prev, o_.type, H}, args.dw, o_.type);
    }
    store_sums(args.normGradients->gateGain, 0, 4);
    store_sums(args.normGradients->gateBias, 4, 4);
    store_sums(args.normGradients->cellGain, 8, 1);
    store_sums(args.normGradients->cellBias, 9, 1);
  }

 private:
  void run_forward_steps() {
    char* const masked = p_.recurrent_mask != nullptr ? ws_.masked : nullptr;
    load_layer_norm_lstm_state(o_.type, N * H, p_.c0, ws_.carried, stream_);
    const void* h = p_.h0;
    if (masked != nullptr && h != nullptr) {
      mask_layer_norm_lstm_state<Real>(o_.type, N * H, h, p_.recurrent_mask, masked, stream_);
    }
    for (int s = 0; s < p_.sizes.steps; ++s) {
      if (h == nullptr) {
        load_layer_norm_lstm_state<Real>(o_.type, 4 * N * H, nullptr, ws_.products, stream_);
      } else {
        multiply(N, 4 * H, H, {masked != nullptr ? masked : h, o_.type, H}, {p_.recurrent, o_.type, H, true},
                 ws_.products, sum_type());
      }
      run_layer_norm_lstm_forward_step(o_.type, p_, s, ws_.products, ws_.carried, masked, stream_);
      h = static_cast<char*>(p_.y) + p_.row_of(s) * H * bytes();
    }
  }

  void run_backward_steps() {
    load_layer_norm_lstm_state<Real>(o_.type, N * H, nullptr, ws_.direct, stream_);
    load_layer_norm_lstm_state(o_.type, N * H, p_.dcy, ws_.carried, stream_);
    // R' da, or in 16 bits what each gate gives of it: cuBLAS splits the one product and adds its parts by a kernel.
    const bool is_split = bytes() == 2 && H % 8 == 0;
    const int64_t parts = is_split ? 4 : 1, k = 4 * H / parts;
    for (int s = p_.sizes.steps - 1; s >= 0; --s) {
      const bool is_first = s == p_.sizes.steps - 1;
      run_layer_norm_lstm_backward_step<Real>(o_.type, p_, s, is_first ? nullptr : ws_.products,
                                              static_cast<int>(parts), ws_.direct, ws_.carried, stream_);
      if (s == 0 && p_.dh0 == nullptr) break;
      const char* const da = static_cast<const char*>(p_.da) + p_.row_of(s) * 4 * H * bytes();
      run_gemm(*handle_, N, H, k, 1, {da, o_.type, 4 * H, false, k}, {p_.recurrent, o_.type, H, false, k * H}, 0,
               ws_.products, sum_type(), H, precision(), parts, N * H);
    }
    store_layer_norm_lstm_initial<Real>(o_.type, p_, ws_.products, static_cast<int>(parts), ws_.direct, ws_.carried,
                                        stream_);
  }

  // All timesteps by the engine's kernel of the problem's type. Returns false where the plan of the pass is steps.
  bool run_resident(Pass pass) {
    if constexpr (sizeof(Real) == sizeof(float)) {
      switch (plan_.engine(pass)) {
        case Engine::kNormCluster:
          launch("cluster", plan_.clusters, pass, p_, launch_layer_norm_lstm_cluster<float>,
                 plan_.clusters.wants_tf32() ? launch_layer_norm_lstm_cluster<Tf32>
                                             : launch_layer_norm_lstm_cluster<float>,
                 launch_layer_norm_lstm_cluster<__half>, launch_layer_norm_lstm_cluster<__nv_bfloat16>);
          return true;
        case Engine::kNormGrid: run_grid(pass); return true;
        default: break;
      }
    }
    return false;
  }

  template <class Plan, class Params>
  using Launch = cudaError_t (*)(const Plan&, bool, const Params&, cudaStream_t);

  template <class Plan, class Params>
  void launch(const char* engine, const Plan& plan, Pass pass, const Params& params, Launch<Plan, Params> single,
              Launch<Plan, Params> tf32, Launch<Plan, Params> half, Launch<Plan, Params> bfloat16) {
    const bool is_backward = pass == Pass::kBackward;
    const auto kernel = o_.type == PRNN_DATA_HALF       ? half
                        : o_.type == PRNN_DATA_BFLOAT16 ? bfloat16
                        : o_.tf32                       ? tf32
                                                        : single;
    const std::string name = std::string("layer_norm_lstm_") + engine + (is_backward ? "_backward" : "_forward");
    require_launch(kernel(plan, is_backward, params, stream_), name.c_str());
  }

  // One launch after the other, each for some of the sequences.
  void run_grid(Pass direction) {
    constexpr int kMomentsDelay = 500;  // cycles
    const LayerNormLstmGridPass& pass = direction == Pass::kBackward ? plan_.grid.backward : plan_.grid.forward;
    const GridExchange exchange(o_, plan_.grid, direction);
    LayerNormLstmGridParams params{};
    static_cast<LayerNormLstmParams<float>&>(params) = p_;
    params.padded = plan_.grid.padded;
    params.blocks = pass.blocks;
    params.sizes.columns_per_replica = pass.columns;
    params.poll_delay_cycles = pass.poll_delay_cycles;
    params.moments_delay_cycles = kMomentsDelay;
    params.states = ws_.states;
    params.moments = ws_.moments;
    params.kept_sums = ws_.kept_sums;
    const int together = pass.replicas * pass.columns;
    for (; params.first_column < p_.sizes.batch; params.first_column += together) {
      params.columns = std::min(together, p_.sizes.batch - params.first_column);
      params.sizes.replicas = static_cast<int>(ceil_div(params.columns, pass.columns));
      clear(ws_.states, exchange.states);
      if (exchange.moments > 0) clear(ws_.moments, exchange.moments * static_cast<int64_t>(sizeof(float)));
      launch("grid", plan_.grid, direction, params, launch_layer_norm_lstm_grid<float>,
             launch_layer_norm_lstm_grid<Tf32>, launch_layer_norm_lstm_grid<__half>,
             launch_layer_norm_lstm_grid<__nv_bfloat16>);
      params.first_partial += params.sizes.replicas;
    }
  }

  void clear(void* words, int64_t size) {
    require_launch(cudaMemsetAsync(words, 0xFF, static_cast<size_t>(size), stream_), "a memset");
  }

  void multiply(int64_t m, int64_t n, int64_t k, const MatrixView& a, const MatrixView& b, void* c,
                prnnDataType_t c_type) {
    run_gemm(*handle_, m, n, k, 1, a, b, 0, c, c_type, n, precision());
  }

  void store_sums(void* out, int first, int count) {
    if (out == nullptr) return;
    const Engine engine = plan_.engine(Pass::kBackward);
    const int64_t partials = engine == Engine::kNormCluster ? plan_.clusters.clusters
                             : engine == Engine::kNormGrid  ? ceil_div(N, plan_.grid.backward.columns)
                                                            : N;
    store_layer_norm_lstm_sums(o_.type, p_, partials, first, count, out, stream_);
  }

  FloatProduct precision() const { return o_.tf32 ? FloatProduct::kTf32 : FloatProduct::kFloat32; }
  int64_t bytes() const { return static_cast<int64_t>(type_size(o_.type)); }
  prnnDataType_t sum_type() const { return sizeof(Real) == 8 ? PRNN_DATA_DOUBLE : PRNN_DATA_FLOAT; }

  prnnHandle_t handle_;
  cudaStream_t stream_;
  const RnnProblem& o_;
  const LayerNormLstmPlan& plan_;
  const NormWorkspace<Real> ws_;
  const int64_t N = o_.max_batch(), H = o_.hidden;
  LayerNormLstmParams<Real> p_{};
};

class LayerNormBackend final : public ResidentBackend {
 public:
  using ResidentBackend::ResidentBackend;

  size_t workspace_size(prnnHandle_t, const RnnProblem& p) const override {
    return with_real(p.type,
                     [&](auto real) { return NormWorkspace<decltype(real)>(p, plan().norm, nullptr).arena.size(); });
  }
  size_t reserve_size(prnnHandle_t, const RnnProblem& p, bool) const override {
    return with_real(p.type, [&](auto real) { return NormReserve<decltype(real)>(p, nullptr).arena.size(); });
  }
  void forward(prnnHandle_t handle, const RnnProblem& p, const RnnForwardArgs& args) const override {
    check_earlier_calls(*handle);
    with_real(p.type, [&](auto real) { NormPass<decltype(real)>(handle, p, args, plan().norm).forward(args); });
  }
  void backward(prnnHandle_t handle, const RnnProblem& p, const RnnBackwardArgs& args) const override {
    check_earlier_calls(*handle);
    with_real(p.type, [&](auto real) { NormPass<decltype(real)>(handle, p, args, plan().norm).backward(args); });
  }
};

}  // namespace

std::shared_ptr<const ResidentBackend> make_layer_norm_backend(RnnPlan plan) {
  return std::make_shared<const LayerNormBackend>(std::move(plan));
}

void multiply_gates_cuda(prnnContext& context, prnnDataType_t type, bool tf32, const GatesProduct& p) {
  check_earlier_calls(context);
  run_gemm(context, p.m, p.n, p.k, 1, {p.a, type, p.a_stride(), p.a_transposed},
           {p.b, type, p.b_stride(), p.b_transposed}, 0, p.c, type, p.n,
           tf32 ? FloatProduct::kTf32 : FloatProduct::kFloat32);
}

}  // namespace prnn
