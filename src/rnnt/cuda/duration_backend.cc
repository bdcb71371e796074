// The backend of CUDA handles for TDT and multi-blank: cuts workspace and reserve space into arrays and enqueues the
// kernels.
#include "core/cuda/reduce_costs.h"
#include "core/with_real.h"
#include "rnnt/cuda/duration_arrays.h"

namespace prnn {
namespace {

using namespace duration_cuda;

Problem problem_of(const prnnDurationRNNTLossOptions_t& options) {
  DurationParams params{};
  params.options = options;
  return Problem(params);
}

// Arrays in the workspace. The sequences lie in the reserve space when there is one.
template <class Real>
Lattices<Real> cut_workspace(const Problem& problem, Arena& arena, bool with_beta) {
  Lattices<Real> lattices{};
  take_scores(problem, arena, lattices);
  take_sums(problem, arena, with_beta, lattices);
  return lattices;
}

class CudaDurationBackend final : public DurationBackend {
 public:
  void require_supported(prnnDataType_t) const override {}

  size_t workspace_size(const prnnDurationRNNTLossOptions_t& options) const override {
    const Problem problem = problem_of(options);
    Arena arena(nullptr);
    with_real(problem.type, [&](auto real) { cut_workspace<decltype(real)>(problem, arena, true); });
    return arena.size();
  }

  size_t reserve_size(const prnnDurationRNNTLossOptions_t& options) const override {
    const Problem problem = problem_of(options);
    Arena arena(nullptr);
    with_real(problem.type, [&](auto real) { Reserve<decltype(real)>(problem, arena); });
    return arena.size();
  }

  void forward(prnnHandle_t handle, const DurationParams& params, void* costs, void* reserve_space) const override {
    const Problem problem(params);
    with_real(problem.type, [&](auto real) {
      using Real = decltype(real);
      Arena workspace(params.workspace), reserve_arena(reserve_space);
      Lattices<Real> lattices = cut_workspace<Real>(problem, workspace, reserve_space != nullptr);
      const Reserve<Real> reserve(problem, reserve_arena);
      if (reserve_space) lattices.sequences = reserve.sequences;
      run_setup(problem, lattices.sequences, handle->stream);
      run_emissions(problem, lattices, reserve.shares, handle->stream);
      run_recursion(problem, lattices, static_cast<Real*>(costs), handle->stream);
      const auto reduced = reduced_costs<Real>(params.options, costs);
      reserve_space ? run_shares(problem, lattices, reserve.shares.records, reduced, handle->stream)
                    : run_reduction(reduced, handle->stream);
    });
  }

  void backward(prnnHandle_t handle, const DurationParams& params, const void* cost_gradients, void* token_gradients,
                void* duration_gradients, const void* reserve_space) const override {
    const Problem problem(params);
    with_real(problem.type, [&](auto real) {
      using Real = decltype(real);
      Arena arena(const_cast<void*>(reserve_space));
      const Reserve<Real> reserve(problem, arena);
      run_gradients(problem, reserve.sequences, reserve.shares,
                    prnn::cost_gradients<Real>(params.options, cost_gradients), token_gradients, duration_gradients,
                    handle->stream);
    });
  }
};

}  // namespace

const DurationBackend& cuda_duration_backend() {
  static const CudaDurationBackend backend;
  return backend;
}

}  // namespace prnn
