#include "rnn/cpu/half_passes.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/cpu/gemm/gemm.h"
#include "core/cpu/threads.h"
#include "rnn/cpu/buffers.h"
#include "rnn/cpu/passes.h"

namespace prnn {
namespace {

// Elements of a call's arrays; h and c are states of all layers.
struct Counts {
  explicit Counts(const RnnProblem& p)
      : x(p.rows * p.input),
        y(p.rows * p.recurrences() * p.state()),
        h(p.layers * p.recurrences() * p.max_batch() * p.state()),
        c(p.layers * p.recurrences() * p.cell_states() * p.max_batch() * p.hidden),
        cells(p.rows * p.recurrences() * p.hidden) {}
  int64_t x, y, h, c, cells;
};

// Float copies of one call's arrays, as many as any pass has, and behind them the workspace of the pass. In training y
// is in the reserve space, and dx comes where dy was: it is written when dy has been read.
struct Copies {
  Copies(const RnnProblem& p, void* base) {
    constexpr int64_t kStates = 5;  // hx, dhx, dhy, resetHx, dresetHx
    const Counts counts(p);
    Carver carver(base);
    x = carver.take<float>(p.training ? std::max(counts.x, counts.y) : counts.x);
    y = p.training ? x : carver.take<float>(counts.y);
    h = carver.take<float>(kStates * counts.h);
    c = carver.take<float>(kStates * counts.c);
    cells = carver.take<float>(p.extras.cells != nullptr || p.extras.dcells != nullptr ? counts.cells : 0);
    mask = carver.take<float>(p.masks.recurrent != nullptr ? counts.h : 0);
    pass = carver.take<char>(0);
    size = carver.size() + rnn_workspace_size<float>(p);
  }

  float *x, *y, *h, *c, *cells, *mask;
  char* pass;
  size_t size;
};

struct HalfReserve {
  HalfReserve(const RnnProblem& p, bool keeps_gates, void* base) {
    Carver carver(base);
    y = carver.take<float>(Counts(p).y);
    pass = carver.take<char>(0);
    size = carver.size() + Reserve<float>(p, keeps_gates, nullptr).size;
  }

  float* y;
  char* pass;
  size_t size;
};

// One call: `problem` and what the functions below return are its data in float. NULL stays NULL.
template <class S>
class HalfCall {
 public:
  template <class Args>
  HalfCall(const RnnProblem& given, const Args& args)
      : problem(given), counts(given), copies(given, args.workspace), kept(given, args.keeps_gates, args.reserve) {
    results_.reserve(kMostResults);
    problem.extras.resetHx = read_h(given.extras.resetHx);
    problem.extras.resetCx = read_c(given.extras.resetCx);
    problem.masks.recurrent = read(given.masks.recurrent, counts.h, copies.mask);
  }

  float* read(const void* from, int64_t count, float* to) const {
    if (from == nullptr) return nullptr;
    in_parts(count, [&](Range part) {
      kernels_.widen(static_cast<const S*>(from) + part.begin, part.size(), to + part.begin);
    });
    return to;
  }
  float* read_h(const void* from) { return read(from, counts.h, next(from, counts.h, &next_h_)); }
  float* read_c(const void* from) { return read(from, counts.c, next(from, counts.c, &next_c_)); }

  // The array that the pass writes in the place of `to`, which finish() rounds.
  float* write(void* to, int64_t count, float* from) {
    if (to == nullptr) return nullptr;
    results_.push_back({from, count, static_cast<S*>(to)});
    return from;
  }
  float* write_h(void* to) { return write(to, counts.h, next(to, counts.h, &next_h_)); }
  float* write_c(void* to) { return write(to, counts.c, next(to, counts.c, &next_c_)); }
  void finish() const {
    for (const Result& result : results_) {
      in_parts(result.count,
               [&](Range part) { kernels_.narrow(result.from + part.begin, part.size(), result.to + part.begin); });
    }
  }

  // Rounds m of an sLSTM's states, whose c e^m and n e^m stay as they were; but for m that are rounded by more than 1.
  void round_exponents(float* states) const {
    const int64_t count = problem.max_batch() * problem.hidden;
    for (float* c = states; c < states + counts.c; c += 3 * count) {
      for (int64_t i = 0; i < count; ++i) {
        float& m = c[2 * count + i];
        S half;
        kernels_.narrow(&m, 1, &half);
        const float before = m;
        kernels_.widen(&half, 1, &m);
        const float factor = std::exp(std::clamp(before - m, -1.0f, 1.0f));
        c[i] *= factor;
        c[count + i] *= factor;
      }
    }
  }

  RnnProblem problem;
  const Counts counts;
  const Copies copies;
  const HalfReserve kept;

 private:
  struct Result {
    const float* from;
    int64_t count;
    S* to;
  };

  template <class Body>
  static void in_parts(int64_t count, const Body& body) {
    run_team(team_size(static_cast<double>(count)), [&](const Team& team) { body(team.share_of(count)); });
  }
  static float* next(const void* of, int64_t count, float** place) {
    float* const taken = *place;
    if (of != nullptr) *place += count;
    return taken;
  }

  static constexpr size_t kMostResults = 5;  // dx, dhx, dcx, dresetHx, dresetCx
  const GemmKernels<S>& kernels_ = gemm_kernels<S>();
  float *next_h_ = copies.h, *next_c_ = copies.c;
  std::vector<Result> results_;
};

}  // namespace

size_t half_rnn_workspace_size(const RnnProblem& problem) { return Copies(problem, nullptr).size; }
size_t half_rnn_reserve_size(const RnnProblem& problem, bool keeps_gates) {
  return HalfReserve(problem, keeps_gates, nullptr).size;
}

template <class S>
void half_rnn_forward(const RnnProblem& problem, const RnnForwardArgs& args) {
  HalfCall<S> call(problem, args);
  const bool training = args.reserve != nullptr;
  RnnForwardArgs inner = args;
  inner.x = call.read(args.x, call.counts.x, call.copies.x);
  inner.hx = call.read_h(args.hx);
  inner.cx = call.read_c(args.cx);
  inner.y = call.write(args.y, call.counts.y, training ? call.kept.y : call.copies.y);
  inner.hy = call.write_h(args.hy);
  inner.cy = call.write_c(args.cy);
  inner.workspace = call.copies.pass;
  inner.reserve = training ? call.kept.pass : nullptr;
  call.problem.extras.cells = call.write(problem.extras.cells, call.counts.cells, call.copies.cells);
  cpu_rnn_forward<S>(call.problem, inner);
  if (problem.is_slstm() && args.cy != nullptr) call.round_exponents(static_cast<float*>(inner.cy));
  call.finish();
}

template <class S>
void half_rnn_backward_data(const RnnProblem& problem, const RnnBackwardDataArgs& args) {
  HalfCall<S> call(problem, args);
  RnnBackwardDataArgs inner = args;
  inner.y = call.kept.y;
  inner.dy = call.read(args.dy, call.counts.y, call.copies.y);
  inner.dhy = call.read_h(args.dhy);
  inner.dcy = call.read_c(args.dcy);
  inner.hx = call.read_h(args.hx);
  inner.cx = call.read_c(args.cx);
  inner.dx = call.write(args.dx, call.counts.x, call.copies.x);
  inner.dhx = call.write_h(args.dhx);
  inner.dcx = call.write_c(args.dcx);
  inner.workspace = call.copies.pass;
  inner.reserve = call.kept.pass;
  prnnRNNExtras_t& extras = call.problem.extras;
  extras.dcells = call.read(extras.dcells, call.counts.cells, call.copies.cells);
  extras.dresetHx = call.write_h(extras.dresetHx);
  extras.dresetCx = call.write_c(extras.dresetCx);
  cpu_rnn_backward_data<S>(call.problem, inner);
  call.finish();
}

template <class S>
void half_rnn_backward_weights(const RnnProblem& problem, const RnnBackwardWeightsArgs& args) {
  HalfCall<S> call(problem, args);
  RnnBackwardWeightsArgs inner = args;
  inner.x = call.read(args.x, call.counts.x, call.copies.x);
  inner.hx = call.read_h(args.hx);
  inner.y = call.kept.y;
  inner.workspace = call.copies.pass;
  inner.reserve = call.kept.pass;
  cpu_rnn_backward_weights<S>(call.problem, inner);
}

template void half_rnn_forward<Half>(const RnnProblem&, const RnnForwardArgs&);
template void half_rnn_forward<Bfloat16>(const RnnProblem&, const RnnForwardArgs&);
template void half_rnn_backward_data<Half>(const RnnProblem&, const RnnBackwardDataArgs&);
template void half_rnn_backward_data<Bfloat16>(const RnnProblem&, const RnnBackwardDataArgs&);
template void half_rnn_backward_weights<Half>(const RnnProblem&, const RnnBackwardWeightsArgs&);
template void half_rnn_backward_weights<Bfloat16>(const RnnProblem&, const RnnBackwardWeightsArgs&);

}  // namespace prnn
