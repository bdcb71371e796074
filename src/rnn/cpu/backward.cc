// The backward passes: data gradients timestep by timestep, weight gradients as one matrix product each.
#include <algorithm>
#include <vector>

#include "core/cpu/gemm/gemm.h"
#include "core/cpu/threads.h"
#include "rnn/cpu/buffers.h"
#include "rnn/cpu/cells.h"
#include "rnn/cpu/dropout.h"
#include "rnn/cpu/passes.h"
#include "rnn/cpu/steps.h"

namespace prnn {
namespace {

template <class T>
void multiply(const Gemm<T>& gemm) {
  const int threads = team_size(2.0 * gemm.m * gemm.n * gemm.k);
  run_team(threads, [&](const Team& team) { team_gemm(team, gemm); });
}

template <class T>
Gemm<T> product(int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, bool ta, const T* b, int64_t ldb, T* c,
                int64_t ldc, bool add) {
  Gemm<T> g;
  g.m = m, g.n = n, g.k = k, g.a = a, g.lda = lda, g.a_transposed = ta, g.b = b, g.ldb = ldb, g.c = c, g.ldc = ldc,
  g.accumulate = add;
  return g;
}

}  // namespace

template <class T>
void cpu_rnn_backward_data(const RnnProblem& p, const RnnBackwardDataArgs& args) {
  const int64_t G = p.gates(), H = p.hidden, P = p.state(), N = p.max_batch(), ldy = p.directions * P;
  const Reserve<T> reserve(p, args.reserve);
  const BackwardDataWorkspace<T> ws(p, args.workspace);
  std::fill_n(ws.zeros, N * H, T(0));
  const T* w = static_cast<const T*>(args.w);
  const T* dy = static_cast<const T*>(args.dy);
  std::vector<T> dh(N * P), dcell(N * H);
  for (int64_t layer = p.layers - 1; layer >= 0; --layer) {
    const T* output = layer == p.layers - 1 ? static_cast<const T*>(args.y) : reserve.outputs[layer];
    T* dx = layer == 0 ? static_cast<T*>(args.dx) : ws.dy[layer % 2 == 1 ? 0 : 1];
    if (layer > 0 && p.layers == 2) dx = ws.dy[0];
    for (int64_t index = 0; index < p.directions; ++index) {
      const int64_t pseudo = layer * p.directions + index;
      const RnnLayerOffsets at = rnn_layer_offsets(p, layer, index);
      const DirectionReserve<T>& r = reserve.directions[pseudo];
      const std::vector<Step> steps = direction_steps(p, index);
      const auto pick = [&](const void* state, int64_t width) {
        return state == nullptr ? nullptr : static_cast<const T*>(state) + pseudo * N * width;
      };
      const T *dhy = pick(args.dhy, P), *dcy = p.mode == PRNN_LSTM ? pick(args.dcy, H) : nullptr;
      const T *hx = pick(args.hx, P), *cx = p.mode == PRNN_LSTM ? pick(args.cx, H) : nullptr;
      T* dhx = args.dhx == nullptr ? nullptr : static_cast<T*>(args.dhx) + pseudo * N * P;
      T* dcx = args.dcx == nullptr || p.mode != PRNN_LSTM ? nullptr : static_cast<T*>(args.dcx) + pseudo * N * H;
      for (int64_t s = p.steps() - 1; s >= 0; --s) {
        const Step& step = steps[s];
        for (int64_t n = step.kept; n < step.batch; ++n) {
          for (int64_t u = 0; u < P; ++u) dh[n * P + u] = dhy == nullptr ? 0 : dhy[n * P + u];
          if (ws.carry != nullptr)
            for (int64_t u = 0; u < H; ++u) ws.carry[n * H + u] = dcy == nullptr ? 0 : dcy[n * H + u];
        }
        const T* dy_step = dy + step.row * ldy + index * P;
        const T* dout = dy_step;
        int64_t ld_dout = ldy;
        const T* dnext = dh.data();
        if (p.projection > 0) {
          for (int64_t n = 0; n < step.batch; ++n)
            for (int64_t u = 0; u < P; ++u) r.dh[(step.row + n) * P + u] = dy_step[n * ldy + u] + dh[n * P + u];
          multiply(product<T>(step.batch, H, P, r.dh + step.row * P, P, false, w + at.projection, H, dcell.data(), H,
                              false));
          dout = dcell.data(), ld_dout = H, dnext = nullptr;
        }
        for (int64_t n = 0; n < step.batch; ++n) {
          const bool carried = n < step.carried;
          const int64_t row = step.row + n;
          BackwardCell<T> cell;
          cell.n = 1, cell.units = H, cell.hidden = H;
          cell.dy = dout + n * ld_dout, cell.ld_dy = ld_dout;
          cell.dh = dnext == nullptr ? nullptr : dnext + n * P, cell.ld_dh = P;
          cell.gates = r.gates + row * G * H;
          cell.h = output + row * ldy + index * P, cell.ld_h = ldy;
          cell.h_prev = carried         ? output + (step.prev_row + n) * ldy + index * P
                        : hx == nullptr ? ws.zeros
                                        : hx + n * P;
          cell.ld_h_prev = carried ? ldy : P;
          cell.c = r.cells + row * H;
          cell.c_prev = carried ? r.cells + (step.prev_row + n) * H : cx == nullptr ? ws.zeros : cx + n * H;
          cell.candidate = r.cells + row * H;
          cell.carry = ws.carry + n * H;
          cell.has_carry = false;
          cell.dgates = r.dgates + row * G * H;
          cell.dcandidate = r.dcandidate + row * H;
          cell_kernels<T>().backward[p.mode](cell);
        }
        multiply(product<T>(step.batch, P, G * H, r.dgates + step.row * G * H, G * H, false, w + at.recurrent, P,
                            dh.data(), P, false));
        if (p.mode == PRNN_GRU)
          for (int64_t i = 0; i < step.batch * H; ++i) dh[i] += ws.carry[i];
        for (int64_t n = step.carried; n < step.batch; ++n) {
          if (dhx != nullptr) std::copy_n(&dh[n * P], P, dhx + n * P);
          if (dcx != nullptr) std::copy_n(ws.carry + n * H, H, dcx + n * H);
        }
      }
      if (dx == nullptr) continue;
      const int64_t I = p.layer_input(layer);
      const bool add = index > 0;
      if (at.input < 0) {
        for (int64_t row = 0; row < p.rows; ++row)
          for (int64_t u = 0; u < H; ++u) {
            T sum = add ? dx[row * H + u] : T(0);
            for (int64_t g = 0; g < G; ++g)
              sum += p.mode == PRNN_GRU && g == 2 ? r.dcandidate[row * H + u] : r.dgates[(row * G + g) * H + u];
            dx[row * H + u] = sum;
          }
        continue;
      }
      const int64_t shared = p.mode == PRNN_GRU ? 2 * H : G * H;
      multiply(product<T>(p.rows, I, shared, r.dgates, G * H, false, w + at.input, I, dx, I, add));
      if (p.mode == PRNN_GRU)
        multiply(product<T>(p.rows, I, H, r.dcandidate, H, false, w + at.input + 2 * H * I, I, dx, I, true));
    }
    if (layer > 0 && p.dropout.probability > 0)
      run_team(1, [&](const Team& team) {
        apply_dropout<T>(team, p.dropout.probability, p.rows * ldy, dx, reserve.masks[layer - 1], dx);
      });
    dy = dx;
  }
}

template <class T>
void cpu_rnn_backward_weights(const RnnProblem& p, const RnnBackwardWeightsArgs& args) {
  const int64_t G = p.gates(), H = p.hidden, P = p.state(), N = p.max_batch(), ldy = p.directions * P;
  const Reserve<T> reserve(p, args.reserve);
  const BackwardWeightsWorkspace<T> ws(p, args.workspace);
  T* dw = static_cast<T*>(args.dw);
  for (int64_t layer = 0; layer < p.layers; ++layer) {
    const T* output = layer == p.layers - 1 ? static_cast<const T*>(args.y) : reserve.outputs[layer];
    const T* input = layer == 0 ? static_cast<const T*>(args.x) : reserve.outputs[layer - 1];
    if (layer > 0 && p.dropout.probability > 0) {
      run_team(1, [&](const Team& team) {
        apply_dropout<T>(team, p.dropout.probability, p.rows * ldy, input, reserve.masks[layer - 1], ws.dropped);
      });
      input = ws.dropped;
    }
    for (int64_t index = 0; index < p.directions; ++index) {
      const int64_t pseudo = layer * p.directions + index, I = p.layer_input(layer);
      const RnnLayerOffsets at = rnn_layer_offsets(p, layer, index);
      const DirectionReserve<T>& r = reserve.directions[pseudo];
      const T* hx = args.hx == nullptr ? nullptr : static_cast<const T*>(args.hx) + pseudo * N * P;
      for (const Step& step : direction_steps(p, index))
        for (int64_t n = 0; n < step.batch; ++n)
          for (int64_t u = 0; u < P; ++u)
            ws.h_prev[(step.row + n) * P + u] = n < step.carried ? output[(step.prev_row + n) * ldy + index * P + u]
                                                : hx == nullptr  ? T(0)
                                                                 : hx[n * P + u];
      const int64_t shared = p.mode == PRNN_GRU ? 2 * H : G * H;
      if (at.input >= 0) {
        multiply(product<T>(shared, I, p.rows, r.dgates, G * H, true, input, I, dw + at.input, I, true));
        if (p.mode == PRNN_GRU)
          multiply(product<T>(H, I, p.rows, r.dcandidate, H, true, input, I, dw + at.input + 2 * H * I, I, true));
      }
      multiply(product<T>(G * H, P, p.rows, r.dgates, G * H, true, ws.h_prev, P, dw + at.recurrent, P, true));
      if (p.projection > 0)
        multiply(product<T>(P, H, p.rows, r.dh, P, true, r.unprojected, H, dw + at.projection, H, true));
      for (int64_t row = 0; row < p.rows; ++row)
        for (int64_t i = 0; i < G * H; ++i) {
          dw[at.input_bias + i] += i < shared ? r.dgates[row * G * H + i] : r.dcandidate[row * H + i - 2 * H];
          dw[at.recurrent_bias + i] += r.dgates[row * G * H + i];
        }
    }
  }
}

template void cpu_rnn_backward_data<float>(const RnnProblem&, const RnnBackwardDataArgs&);
template void cpu_rnn_backward_data<double>(const RnnProblem&, const RnnBackwardDataArgs&);
template void cpu_rnn_backward_weights<float>(const RnnProblem&, const RnnBackwardWeightsArgs&);
template void cpu_rnn_backward_weights<double>(const RnnProblem&, const RnnBackwardWeightsArgs&);

}  // namespace prnn
