// The CTC backend of CUDA handles: cuts workspace and reserve space into arrays and enqueues the kernels.
#include "core/cuda/arena.h"
#include "core/cuda/reduce_costs.h"
#include "core/with_real.h"
#include "ctc/ctc.h"
#include "ctc/cuda/ctc_kernels.h"

namespace prnn {
namespace {

using namespace ctc_cuda;

// The arrays that the recursions read. The sequences of a loss lie in its reserve space when there is one.
template <class Real>
Arrays<Real> cut_emissions(const prnnCTCLossOptions_t& o, Arena& arena) {
  const int64_t rows = o.batch * o.maxFrames, width = o.maxTargets + 1;
  Arrays<Real> arrays{};
  arrays.sequences = arena.take<Sequence>(o.batch);
  arrays.blanks = arena.take<Real>(rows);
  arrays.labels = arena.take<Real>(rows * width);
  return arrays;
}

template <class Real>
Arrays<Real> cut_workspace(const prnnCTCLossOptions_t& o, Arena& arena, bool with_beta) {
  const int64_t states = o.batch * o.maxFrames * (o.maxTargets + 1);
  Arrays<Real> arrays = cut_emissions<Real>(o, arena);
  arrays.totals = arena.take<Scaled<Real>>(o.batch);
  arrays.alpha = arena.take<States<Real>>(states);
  if (with_beta) arrays.beta = arena.take<States<Real>>(states);
  return arrays;
}

template <class Real>
Reserve<Real> cut_reserve(const prnnCTCLossOptions_t& o, Arena& arena) {
  const int64_t rows = o.batch * o.maxFrames, width = o.maxTargets + 1;
  Reserve<Real> reserve{};
  reserve.sequences = arena.take<Sequence>(o.batch);
  if (o.input == PRNN_LOSS_LOGITS) reserve.normalisers = arena.take<Real>(rows);
  reserve.shares = arena.take<Real>(rows * (width + 1));
  reserve.repeats.next = arena.take<int>(o.batch * width);
  reserve.repeats.first = arena.take<bool>(o.batch * width);
  return reserve;
}

// The workspace of an alignment.
template <class Real>
struct AlignWorkspace {
  Arrays<Real> arrays;
  BestStates* best;
  unsigned char* moves;

  AlignWorkspace(const prnnCTCLossOptions_t& o, Arena& arena) : arrays(cut_emissions<Real>(o, arena)) {
    const int64_t states = o.batch * o.maxFrames * (o.maxTargets + 1);
    best = arena.take<BestStates>(states);
    moves = arena.take<unsigned char>(2 * states);
  }
};

class CudaCtcBackend final : public CtcBackend {
 public:
  void require_supported(prnnDataType_t) const override {}

  size_t loss_workspace_size(const prnnCTCLossOptions_t& o) const override {
    Arena arena(nullptr);
    with_real(o.dataType, [&](auto real) { cut_workspace<decltype(real)>(o, arena, true); });
    return arena.size();
  }
  size_t loss_reserve_size(const prnnCTCLossOptions_t& o) const override {
    Arena arena(nullptr);
    with_real(o.dataType, [&](auto real) { cut_reserve<decltype(real)>(o, arena); });
    return arena.size();
  }
  size_t align_workspace_size(const prnnCTCLossOptions_t& o) const override {
    Arena arena(nullptr);
    with_real(o.dataType, [&](auto real) { AlignWorkspace<decltype(real)>(o, arena); });
    return arena.size();
  }

  void loss(prnnHandle_t handle, const CtcParams& params, void* costs, void* gradients,
            void* reserve_space) const override {
    with_real(params.options.dataType, [&](auto real) {
      using Real = decltype(real);
      Arena workspace(params.workspace), reserve_arena(reserve_space);
      Arrays<Real> arrays = cut_workspace<Real>(params.options, workspace, reserve_space != nullptr);
      const Reserve<Real> reserve = cut_reserve<Real>(params.options, reserve_arena);
      if (reserve_space) arrays.sequences = reserve.sequences;
      run_setup(params, arrays.sequences, handle->stream);
      run_emissions(params, arrays, reserve.normalisers, handle->stream);
      run_recursion(params, arrays, reserve.repeats, static_cast<Real*>(costs), handle->stream);
      const auto reduced = reduced_costs<Real>(params.options, costs);
      reserve_space ? run_shares(params, arrays, reserve.shares, reduced, handle->stream)
                    : run_reduction(reduced, handle->stream);
    });
    if (gradients) loss_backward(handle, params, nullptr, gradients, reserve_space);
  }

  void loss_backward(prnnHandle_t handle, const CtcParams& params, const void* cost_gradients, void* gradients,
                     const void* reserve_space) const override {
    with_real(params.options.dataType, [&](auto real) {
      using Real = decltype(real);
      Arena arena(const_cast<void*>(reserve_space));
      run_gradients(params, cut_reserve<Real>(params.options, arena),
                    prnn::cost_gradients<Real>(params.options, cost_gradients), gradients, handle->stream);
    });
  }

  void align(prnnHandle_t handle, const CtcParams& params, void* scores, int* begins, int* ends) const override {
    with_real(params.options.dataType, [&](auto real) {
      using Real = decltype(real);
      Arena arena(params.workspace);
      const AlignWorkspace<Real> workspace(params.options, arena);
      run_setup(params, workspace.arrays.sequences, handle->stream);
      run_emissions(params, workspace.arrays, static_cast<Real*>(nullptr), handle->stream);
      run_best_path(params, workspace.arrays, workspace.best, workspace.moves, static_cast<Real*>(scores), begins, ends,
                    handle->stream);
    });
  }
};

}  // namespace

const CtcBackend& cuda_ctc_backend() {
  static const CudaCtcBackend backend;
  return backend;
}

}  // namespace prnn
