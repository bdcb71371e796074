// The CUDA backend of the LSTM with layer normalisation: cuts workspace and reserve space into arrays and enqueues the
// kernels of the engine that serves the layer.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cinttypes>

#include "core/cuda/arena.h"
#include "core/cuda/cublas.h"
#include "core/cuda/cuda_state.h"
#include "core/cuda/launch.h"
#include "core/with_real.h"
#include "layer_norm_lstm/cuda/cluster.h"
#include "layer_norm_lstm/cuda/grid.h"
#include "layer_norm_lstm/cuda/steps.h"
#include "layer_norm_lstm/layer_norm_lstm.h"

namespace prnn {
namespace {

FloatProduct precision_of(const LayerNormLstmOptions& o) {
  return o.allowTf32 != 0 ? FloatProduct::kTf32 : FloatProduct::kFloat32;
}

// The buffers through which the blocks of a grid exchange in one launch; see LayerNormLstmGridParams.
struct GridExchange {
  int64_t states, moments;  // bytes, and floats

  GridExchange(const LayerNormLstmOptions& o, const LayerNormLstmGrid& grid, bool backward) {
    const LayerNormLstmGridPass& pass = backward ? grid.backward : grid.forward;
    const int64_t columns = int64_t{pass.replicas} * (backward ? 4 * pass.columns : pass.state_columns);
    states = o.steps * columns * grid.padded * static_cast<int64_t>(type_size(o.dataType));
    moments = o.normalize == PRNN_NORMALIZE_NONE ? 0 : o.steps * pass.replicas * pass.columns * pass.blocks * 4;
  }
};

template <class Real>
struct Workspace {
  Workspace(const LayerNormLstmOptions& o, const LayerNormLstmPlan& plan, void* base) : arena(base) {
    const int64_t state = o.batch * o.hiddenSize, rows = o.steps * state;
    const int64_t bytes = static_cast<int64_t>(type_size(o.dataType));
    products = arena.take<Real>(4 * state);
    carried = arena.take<Real>(state);
    direct = arena.take<Real>(state);
    masked = arena.take<char>(state * bytes);
    sums = arena.take<Real>(kLayerNormLstmParameterRows * state);
    h_prev = arena.take<char>(rows * bytes);
    da = arena.take<char>(o.normalize == PRNN_NORMALIZE_PRODUCTS ? 4 * rows * bytes : 0);
    const GridExchange forward(o, plan.grid, false), backward(o, plan.grid, true);
    states = arena.take<char>(std::max(forward.states, backward.states));
    moments = arena.take<float>(std::max(forward.moments, backward.moments));
    kept_sums = arena.take<float>(plan.on_grid(true) ? 4 * o.steps * o.batch : 0);
  }

  Arena arena;
  Real* products;  // [N, 4 H] forward: R (m * h_{t-1}); [N, H] backward: R' da, or [4, N, H] that add up to it
  Real* carried;   // [N, H]: c; its gradient
  Real* direct;    // [N, H]
  char* masked;    // [N, H]: m * h
  Real* sums;      // [N, kLayerNormLstmParameterRows, H]
  char* h_prev;    // [T, N, H]: m * h_{t-1}
  char* da;        // [T, N, 4 H]; PRODUCTS alone
  // GRID alone: LayerNormLstmGridParams
  char* states;
  float *moments, *kept_sums;
};

template <class Real>
struct Reserve {
  Reserve(const LayerNormLstmOptions& o, void* base) : arena(base) {
    const int64_t rows = o.steps * o.batch, bytes = static_cast<int64_t>(type_size(o.dataType));
    gates = arena.take<char>(rows * 4 * o.hiddenSize * bytes);
    cells = arena.take<char>(rows * o.hiddenSize * bytes);
    stats = arena.take<Real>(rows * 4);
  }

  Arena arena;
  char *gates, *cells;
  Real* stats;
};

template <class Real>
class Pass {
 public:
  Pass(prnnHandle_t handle, const LayerNormLstmOptions& o, const LayerNormLstmInputs& in, void* workspace,
       const LayerNormLstmPlan& plan)
      : handle_(handle), stream_(handle->stream), o_(o), plan_(plan), ws_(o, plan, workspace) {
    p_.sizes = {static_cast<int>(o.hiddenSize),    static_cast<int>(o.steps),           static_cast<int>(o.batch),
                plan.clusters.columns_per_cluster, std::max(plan.clusters.clusters, 1), 1};
    p_.reverse = o.reverse != 0;
    p_.products = o.normalize == PRNN_NORMALIZE_PRODUCTS;
    p_.normalizes = o.normalize != PRNN_NORMALIZE_NONE;
    p_.epsilon = static_cast<Real>(o.epsilon);
    p_.zoneout = static_cast<Real>(o.zoneout);
    p_.timed_out = cuda_state(*handle).timed_out_on_device;
    p_.x = in.x;
    p_.h0 = in.h0;
    p_.c0 = in.c0;
    p_.recurrent = in.recurrent;
    p_.gate_gain = in.gateGain;
    p_.gate_bias = in.gateBias;
    p_.cell_gain = in.cellGain;
    p_.cell_bias = in.cellBias;
    p_.zoneout_mask = in.zoneoutMask;
    p_.recurrent_mask = in.recurrentMask;
    p_.lengths = in.lengths;
  }

  void forward(const LayerNormLstmForwardArgs& args) {
    p_.y = args.y;
    p_.cy = args.cy;
    if (args.reserve != nullptr) set_reserve(args.reserve);
    if (!run_resident(false)) run_forward_steps();
  }

  void backward(const LayerNormLstmBackwardArgs& args) {
    const LayerNormLstmGradients& g = args.gradients;
    p_.y = const_cast<void*>(args.y);
    p_.dy = args.dy;
    p_.dcy = args.dcy;
    p_.dx = g.dx;
    p_.da = p_.products ? ws_.da : g.dx;
    p_.dh0 = g.dh0;
    p_.dc0 = g.dc0;
    p_.sums = ws_.sums;
    set_reserve(const_cast<void*>(args.reserve));
    if (!run_resident(true)) run_backward_steps();
    if (g.dRecurrent != nullptr) {
      gather_layer_norm_lstm_states(o_.dataType, p_, ws_.h_prev, stream_);
      multiply(4 * H, H, o_.steps * N, {p_.da, o_.dataType, 4 * H, true}, {ws_.h_prev, o_.dataType, H}, g.dRecurrent,
               o_.dataType);
    }
    store_sums(g.dGateGain, 0, 4);
    store_sums(g.dGateBias, 4, 4);
    store_sums(g.dCellGain, 8, 1);
    store_sums(g.dCellBias, 9, 1);
  }

 private:
  void run_forward_steps() {
    char* const masked = p_.recurrent_mask != nullptr ? ws_.masked : nullptr;
    load_layer_norm_lstm_state(o_.dataType, N * H, p_.c0, ws_.carried, stream_);
    const void* h = p_.h0;
    if (masked != nullptr && h != nullptr) {
      mask_layer_norm_lstm_state<Real>(o_.dataType, N * H, h, p_.recurrent_mask, masked, stream_);
    }
    for (int s = 0; s < p_.sizes.steps; ++s) {
      if (h == nullptr) {
        load_layer_norm_lstm_state<Real>(o_.dataType, 4 * N * H, nullptr, ws_.products, stream_);
      } else {
        multiply(N, 4 * H, H, {masked != nullptr ? masked : h, o_.dataType, H}, {p_.recurrent, o_.dataType, H, true},
                 ws_.products, sum_type());
      }
      run_layer_norm_lstm_forward_step(o_.dataType, p_, s, ws_.products, ws_.carried, masked, stream_);
      h = static_cast<char*>(p_.y) + p_.row_of(s) * H * bytes();
    }
  }

  void run_backward_steps() {
    load_layer_norm_lstm_state<Real>(o_.dataType, N * H, nullptr, ws_.direct, stream_);
    load_layer_norm_lstm_state(o_.dataType, N * H, p_.dcy, ws_.carried, stream_);
    // R' da, or in 16 bits what each gate gives of it: cuBLAS splits the one product and adds its parts by a kernel.
    const bool is_split = bytes() == 2 && H % 8 == 0;
    const int64_t parts = is_split ? 4 : 1, k = 4 * H / parts;
    for (int s = p_.sizes.steps - 1; s >= 0; --s) {
      const bool is_first = s == p_.sizes.steps - 1;
      run_layer_norm_lstm_backward_step<Real>(o_.dataType, p_, s, is_first ? nullptr : ws_.products,
                                              static_cast<int>(parts), ws_.direct, ws_.carried, stream_);
      if (s == 0 && p_.dh0 == nullptr) break;
      const char* const da = static_cast<const char*>(p_.da) + p_.row_of(s) * 4 * H * bytes();
      run_gemm(*handle_, N, H, k, 1, {da, o_.dataType, 4 * H, false, k}, {p_.recurrent, o_.dataType, H, false, k * H},
               0, ws_.products, sum_type(), H, precision_of(o_), parts, N * H);
    }
    store_layer_norm_lstm_initial<Real>(o_.dataType, p_, ws_.products, static_cast<int>(parts), ws_.direct, ws_.carried,
                                        stream_);
  }

  // All timesteps by the engine's kernel of the problem's type. Returns false where the plan of the pass is steps.
  bool run_resident(bool is_backward) {
    if constexpr (sizeof(Real) == sizeof(float)) {
      if (plan_.on_clusters()) {
        launch(
            "cluster", plan_.clusters, is_backward, p_, launch_layer_norm_lstm_cluster<float>,
            plan_.clusters.wants_tf32() ? launch_layer_norm_lstm_cluster<Tf32> : launch_layer_norm_lstm_cluster<float>,
            launch_layer_norm_lstm_cluster<__half>, launch_layer_norm_lstm_cluster<__nv_bfloat16>);
        return true;
      }
      if (plan_.on_grid(is_backward)) {
        run_grid(is_backward);
        return true;
      }
    }
    return false;
  }

  template <class Plan, class Params>
  using Launch = cudaError_t (*)(const Plan&, bool, const Params&, cudaStream_t);

  template <class Plan, class Params>
  void launch(const char* engine, const Plan& plan, bool is_backward, const Params& params, Launch<Plan, Params> single,
              Launch<Plan, Params> tf32, Launch<Plan, Params> half, Launch<Plan, Params> bfloat16) {
    const auto kernel = o_.dataType == PRNN_DATA_HALF       ? half
                        : o_.dataType == PRNN_DATA_BFLOAT16 ? bfloat16
                        : o_.allowTf32 != 0                 ? tf32
                                                            : single;
    const cudaError_t error = kernel(plan, is_backward, params, stream_);
    if (error != cudaSuccess)
      fail(PRNN_STATUS_EXECUTION_FAILED, "layer_norm_lstm_%s_%s could not be launched: %s", engine,
           is_backward ? "backward" : "forward", cudaGetErrorString(error));
  }

  // One launch after the other, each for some of the sequences.
  void run_grid(bool is_backward) {
    constexpr int kMomentsDelay = 500;  // cycles
    const LayerNormLstmGridPass& pass = is_backward ? plan_.grid.backward : plan_.grid.forward;
    const GridExchange exchange(o_, plan_.grid, is_backward);
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
      launch("grid", plan_.grid, is_backward, params, launch_layer_norm_lstm_grid<float>,
             launch_layer_norm_lstm_grid<Tf32>, launch_layer_norm_lstm_grid<__half>,
             launch_layer_norm_lstm_grid<__nv_bfloat16>);
      params.first_partial += params.sizes.replicas;
    }
  }

  void clear(void* words, int64_t size) {
    require_success(cudaMemsetAsync(words, 0xFF, static_cast<size_t>(size), stream_), PRNN_STATUS_EXECUTION_FAILED,
                    "a memset could not be enqueued");
  }

  void multiply(int64_t m, int64_t n, int64_t k, const MatrixView& a, const MatrixView& b, void* c,
                prnnDataType_t c_type) {
    run_gemm(*handle_, m, n, k, 1, a, b, 0, c, c_type, n, precision_of(o_));
  }

  void store_sums(void* out, int first, int count) {
    const int64_t partials = plan_.on_clusters()   ? plan_.clusters.clusters
                             : plan_.on_grid(true) ? ceil_div(N, plan_.grid.backward.columns)
                                                   : N;
    if (out != nullptr) store_layer_norm_lstm_sums(o_.dataType, p_, partials, first, count, out, stream_);
  }

  void set_reserve(void* base) {
    const Reserve<Real> reserve(o_, base);
    p_.gates = reserve.gates;
    p_.cells = reserve.cells;
    p_.stats = reserve.stats;
  }

  int64_t bytes() const { return static_cast<int64_t>(type_size(o_.dataType)); }
  prnnDataType_t sum_type() const { return sizeof(Real) == 8 ? PRNN_DATA_DOUBLE : PRNN_DATA_FLOAT; }

  prnnHandle_t handle_;
  cudaStream_t stream_;
  const LayerNormLstmOptions& o_;
  const LayerNormLstmPlan& plan_;
  const Workspace<Real> ws_;
  const int64_t N = o_.batch, H = o_.hiddenSize;
  LayerNormLstmParams<Real> p_{};
};

LayerNormLstmPlan plan_for(prnnHandle_t handle, const LayerNormLstmOptions& o) {
  return plan_layer_norm_lstm(cuda_gpu_row(*handle), o);
}

class CudaLayerNormLstmBackend final : public LayerNormLstmBackend {
 public:
  void require_supported(prnnHandle_t handle, const LayerNormLstmOptions& o) const override {
    constexpr int64_t kOwnBytes = 1024;  // of shared memory, that a step's kernel and the driver have themselves
    const int64_t room = cuda_gpu_row(*handle).shared_bytes - kOwnBytes;
    const int64_t unit = with_real(o.dataType, [](auto real) { return layer_norm_lstm_step_bytes<decltype(real)>(1); });
    const int64_t most = room / unit;
    if (o.hiddenSize > most)
      fail(PRNN_STATUS_NOT_SUPPORTED, "hiddenSize is %" PRId64 "; a timestep has room for %" PRId64 " on this GPU",
           o.hiddenSize, most);
  }
  prnnLayerNormLSTMInfo_t plan(prnnHandle_t handle, const LayerNormLstmOptions& o) const override {
    return layer_norm_lstm_info(plan_for(handle, o));
  }
  size_t workspace_size(prnnHandle_t handle, const LayerNormLstmOptions& o) const override {
    return with_real(
        o.dataType, [&](auto real) { return Workspace<decltype(real)>(o, plan_for(handle, o), nullptr).arena.size(); });
  }
  size_t reserve_size(prnnHandle_t, const LayerNormLstmOptions& o) const override {
    return with_real(o.dataType, [&](auto real) { return Reserve<decltype(real)>(o, nullptr).arena.size(); });
  }
  void forward(prnnHandle_t handle, const LayerNormLstmOptions& o, const LayerNormLstmInputs& inputs,
               const LayerNormLstmForwardArgs& args) const override {
    check_earlier_calls(*handle);
    const LayerNormLstmPlan plan = plan_for(handle, o);
    with_real(o.dataType,
              [&](auto real) { Pass<decltype(real)>(handle, o, inputs, args.workspace, plan).forward(args); });
  }
  void backward(prnnHandle_t handle, const LayerNormLstmOptions& o, const LayerNormLstmInputs& inputs,
                const LayerNormLstmBackwardArgs& args) const override {
    check_earlier_calls(*handle);
    const LayerNormLstmPlan plan = plan_for(handle, o);
    with_real(o.dataType,
              [&](auto real) { Pass<decltype(real)>(handle, o, inputs, args.workspace, plan).backward(args); });
  }
  void multiply(prnnHandle_t handle, const LayerNormLstmOptions& o, const LayerNormLstmProduct& p) const override {
    check_earlier_calls(*handle);
    const MatrixView a{p.a, o.dataType, p.a_stride(), p.a_transposed}, b{p.b, o.dataType, p.b_stride(), p.b_transposed};
    run_gemm(*handle, p.m, p.n, p.k, 1, a, b, 0, p.c, o.dataType, p.n, precision_of(o));
  }
};

}  // namespace

const LayerNormLstmBackend& cuda_layer_norm_lstm_backend() {
  static const CudaLayerNormLstmBackend backend;
  return backend;
}

}  // namespace prnn
