// The calls of an LSTM on the input of its gates (RnnProblem::takes_gates()): forward, and backward, which has the
// gradients of data and weights.
#include <string>

#include "core/with_real.h"
#include "rnn/cuda/backend.h"
#include "rnn/cuda/layer/run.h"
#include "rnn/cuda/layer_norm/steps.h"
#include "rnn/gates_input.h"

namespace prnn {
namespace {

template <class Real>
class GatesRun : LayerRun {
 public:
  // args: of either call.
  template <class Args>
  GatesRun(prnnHandle_t handle, const RnnProblem& problem, const RnnPlan& plan_of_call, const Args& args)
      : LayerRun(handle, problem, plan_of_call, args) {
    p_.sizes = {static_cast<int>(H), static_cast<int>(p.steps()), static_cast<int>(N), 0, 1, 1};
    p_.reverse = p.reverse;
    p_.products = p.normalize == PRNN_NORMALIZE_PRODUCTS;
    p_.normalizes = p.normalizes();
    p_.epsilon = static_cast<Real>(p.epsilon);
    p_.zoneout = static_cast<Real>(p.masks.zoneoutExpectation);
    p_.timed_out = cuda_state(context).timed_out_on_device;
    p_.x = args.x;
    p_.h0 = args.hx;
    p_.c0 = args.cx;
    p_.recurrent = args.w;
    if (p.normalizes()) {
      p_.gate_gain = args.norm->gateGain;
      p_.gate_bias = args.norm->gateBias;
      p_.cell_gain = args.norm->cellGain;
      p_.cell_bias = args.norm->cellBias;
    }
    p_.zoneout_mask = p.masks.zoneout;
    p_.recurrent_mask = p.masks.recurrent;
    p_.lengths = args.lengths;
    p_.y = const_cast<void*>(static_cast<const void*>(args.y));
    if (args.reserve == nullptr) return;
    p_.gates = saved.directions[0].gates;
    p_.cells = saved.directions[0].cells;
    p_.stats = reals(saved.directions[0].stats);
  }

  void forward(const RnnForwardArgs& args) {
    p_.cy = args.cy;
    if (!run_resident(Pass::kForward)) run_forward_steps();
    copy_states(at(args.y, p_.row_of(p_.sizes.steps - 1) * H), args.hy);
  }

  void backward(const RnnBackwardArgs& args) {
    p_.dy = args.dy;
    p_.dcy = args.dcy;
    p_.dx = args.dx;
    p_.da = p_.products ? work.gates.da : args.dx;
    p_.dh0 = args.dhx;
    p_.dc0 = args.dcx;
    p_.sums = reals(work.gates.sums);
    if (!run_resident(Pass::kBackward)) run_backward_steps();
    if (args.dw != nullptr) {
      gather_layer_norm_lstm_states(p.type, p_, work.gates.h_prev, stream);
      multiply(4 * H, H, p.rows, 1, view(p_.da, 4 * H, true), view(work.gates.h_prev, H), 0, args.dw, p.type, H);
    }
    store_sums(args.normGradients->gateGain, 0, 4);
    store_sums(args.normGradients->gateBias, 4, 4);
    store_sums(args.normGradients->cellGain, 8, 1);
    store_sums(args.normGradients->cellBias, 9, 1);
  }

 private:
  void run_forward_steps() {
    const GatesArrays& own = work.gates;
    char* const masked = p_.recurrent_mask != nullptr ? own.masked : nullptr;
    load_layer_norm_lstm_state(p.type, N * H, p_.c0, reals(own.carried), stream);
    const void* h = p_.h0;
    if (masked != nullptr && h != nullptr) {
      mask_layer_norm_lstm_state<Real>(p.type, N * H, h, p_.recurrent_mask, masked, stream);
    }
    for (int s = 0; s < p_.sizes.steps; ++s) {
      if (h == nullptr) {
        load_layer_norm_lstm_state<Real>(p.type, 4 * N * H, nullptr, reals(own.products), stream);
      } else {
        multiply(N, 4 * H, H, 1, view(masked != nullptr ? masked : h, H), view(p_.recurrent, H, true), 0, own.products,
                 sum_type(), 4 * H);
      }
      run_layer_norm_lstm_forward_step(p.type, p_, s, reals(own.products), reals(own.carried), masked, stream);
      h = at(p_.y, p_.row_of(s) * H);
    }
  }

  void run_backward_steps() {
    Real *const products = reals(work.gates.products), *const direct = reals(work.gates.direct),
                *const dc = reals(work.gates.carried);
    load_layer_norm_lstm_state<Real>(p.type, N * H, nullptr, direct, stream);
    load_layer_norm_lstm_state(p.type, N * H, p_.dcy, dc, stream);
    // R' da, or in 16 bits what each gate gives of it: cuBLAS splits the one product and adds its parts by a kernel.
    const bool is_split = element == 2 && H % 8 == 0;
    const int64_t parts = is_split ? 4 : 1, k = 4 * H / parts;
    for (int s = p_.sizes.steps - 1; s >= 0; --s) {
      const bool is_first = s == p_.sizes.steps - 1;
      run_layer_norm_lstm_backward_step<Real>(p.type, p_, s, is_first ? nullptr : products, static_cast<int>(parts),
                                              direct, dc, stream);
      if (s == 0 && p_.dh0 == nullptr) break;
      run_gemm(context, N, H, k, 1, {at(p_.da, p_.row_of(s) * 4 * H), p.type, 4 * H, false, k},
               {p_.recurrent, p.type, H, false, k * H}, 0, products, sum_type(), H, precision(), parts, N * H);
    }
    store_layer_norm_lstm_initial<Real>(p.type, p_, products, static_cast<int>(parts), direct, dc, stream);
  }

  // All timesteps by the pass's kernel: launches one after the other, each for some of the sequences. Returns false
  // where there is none.
  bool run_resident(Pass pass) {
    constexpr int kMomentsDelay = 500;  // cycles
    if constexpr (sizeof(Real) != sizeof(float)) {
      return false;
    } else {
      const ResidentShape& shape = plan.shape[pass];
      if (!shape.kernel.exists()) return false;
      const GridExchange exchange(p, plan, pass);
      LayerNormLstmGridParams params{};
      static_cast<LayerNormLstmParams<float>&>(params) = p_;
      params.padded = static_cast<int>(padded);
      params.blocks = shape.blocks;
      params.sizes.columns_per_replica = static_cast<int>(shape.columns());
      params.poll_delay_cycles = shape.poll_delay_cycles;
      params.moments_delay_cycles = kMomentsDelay;
      params.states = work.gates.states;
      params.moments = work.gates.moments;
      params.kept_sums = work.gates.kept_sums;
      const std::string name = std::string("the LSTM's ") + row_of(shape.kernel->engine).name + " kernel";
      for (int64_t first = 0; first < N; first += shape.batch_per_pass()) {
        params.first_column = static_cast<int>(first);
        params.columns = static_cast<int>(std::min(shape.batch_per_pass(), N - first));
        params.sizes.replicas = static_cast<int>(ceil_div(params.columns, shape.columns()));
        if (exchange.states > 0) fill_empty(params.states, exchange.states / element);
        if (exchange.moments > 0) fill_empty(params.moments, exchange.moments * sizeof(float) / element);
        require_launch(launch_kernel(shape, params, stream), name.c_str());
        params.first_partial += params.sizes.replicas;
      }
      return true;
    }
  }

  void store_sums(void* out, int first, int count) {
    if (out == nullptr) return;
    store_layer_norm_lstm_sums(p.type, p_, ceil_div(N, partial_columns()), first, count, out, stream);
  }
  // Sequences of one partial sum.
  int64_t partial_columns() const { return plan.shape.backward.kernel.exists() ? plan.shape.backward.columns() : 1; }

  static Real* reals(char* bytes) { return reinterpret_cast<Real*>(bytes); }
  prnnDataType_t sum_type() const { return sizeof(Real) == 8 ? PRNN_DATA_DOUBLE : PRNN_DATA_FLOAT; }

  const int64_t N = p.max_batch(), H = p.hidden;
  LayerNormLstmParams<Real> p_{};
};

}  // namespace

void ResidentBackend::forward_gates(prnnHandle_t handle, const RnnProblem& p, const RnnForwardArgs& args) const {
  with_real(p.type, [&](auto real) { GatesRun<decltype(real)>(handle, p, plan_, args).forward(args); });
}

void ResidentBackend::backward(prnnHandle_t handle, const RnnProblem& p, const RnnBackwardArgs& args) const {
  with_real(p.type, [&](auto real) { GatesRun<decltype(real)>(handle, p, plan_, args).backward(args); });
}

void multiply_gates_cuda(prnnContext& context, prnnDataType_t type, bool tf32, const GatesProduct& p) {
  check_earlier_calls(context);
  run_gemm(context, p.m, p.n, p.k, 1, {p.a, type, p.a_stride(), p.a_transposed},
           {p.b, type, p.b_stride(), p.b_transposed}, 0, p.c, type, p.n,
           tf32 ? FloatProduct::kTf32 : FloatProduct::kFloat32);
}

}  // namespace prnn
