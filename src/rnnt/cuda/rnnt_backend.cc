// The RNN-T backend of CUDA handles: cuts workspace and reserve space into arrays and enqueues the kernels.
#include "core/cuda/reduce_costs.h"
#include "rnnt/cuda/arrays.h"
#include "rnnt/cuda/mutual_information.h"
#include "rnnt/rnnt.h"

namespace prnn {
namespace {

using namespace rnnt_cuda;

Problem make_problem(const RnntParams& params) { return problem_of(params.options, params, params.activations); }

Problem make_problem(const prnnRNNTLossOptions_t& options) {
  RnntParams params{};
  params.options = options;
  return make_problem(params);
}

// Arrays in the workspace. The sequences of a loss lie in its reserve space when there is one.
template <class Real>
Lattice<Real> cut_workspace(const Problem& problem, Arena& arena, bool with_beta) {
  Lattice<Real> lattice{};
  lattice.sequences = arena.take<Sequence>(problem.batch);
  lattice.totals = arena.take<Scaled<Real>>(problem.batch);
  lattice.arcs = arena.take<Arcs<Real>>(problem.lattice_cells());
  lattice.alpha = arena.take<Scaled<Real>>(problem.lattice_cells());
  if (with_beta) lattice.beta = arena.take<Scaled<Real>>(problem.lattice_cells());
  return lattice;
}

// The arrays of an alignment, and the scores of the best ways.
template <class Real>
Lattice<Real> cut_align_workspace(const Problem& problem, Arena& arena, double*& best) {
  Lattice<Real> lattice{};
  lattice.sequences = arena.take<Sequence>(problem.batch);
  lattice.arcs = arena.take<Arcs<Real>>(problem.lattice_cells());
  best = arena.take<double>(problem.lattice_cells());
  return lattice;
}

size_t lattice_size(const Problem& problem) {
  Arena arena(nullptr);
  with_real(problem.dataType, [&](auto real) { cut_workspace<decltype(real)>(problem, arena, true); });
  return arena.size();
}

class CudaRnntBackend final : public RnntBackend {
 public:
  void require_supported(prnnDataType_t) const override {}

  size_t loss_workspace_size(const prnnRNNTLossOptions_t& options) const override {
    return lattice_size(make_problem(options));
  }
  size_t loss_reserve_size(const prnnRNNTLossOptions_t& options) const override {
    Arena arena(nullptr);
    const Problem problem = make_problem(options);
    with_real(problem.dataType, [&](auto real) { Reserve<decltype(real)>(problem, arena); });
    return arena.size();
  }
  size_t align_workspace_size(const prnnRNNTLossOptions_t& options) const override {
    Arena arena(nullptr);
    const Problem problem = make_problem(options);
    double* best;
    with_real(problem.dataType, [&](auto real) { cut_align_workspace<decltype(real)>(problem, arena, best); });
    return arena.size();
  }
  size_t mutual_information_workspace_size(const prnnMutualInformationOptions_t& options) const override {
    return lattice_size(mutual_information_problem(options));
  }

  void loss(prnnHandle_t handle, const RnntParams& params, void* costs, void* gradients,
            void* reserve_space) const override {
    const Problem problem = make_problem(params);
    with_real(problem.dataType, [&](auto real) {
      using Real = decltype(real);
      Arena workspace(params.workspace), reserve_arena(reserve_space);
      Lattice<Real> lattice = cut_workspace<Real>(problem, workspace, reserve_space != nullptr);
      const Reserve<Real> reserve(problem, reserve_arena);
      if (reserve_space) lattice.sequences = reserve.sequences;
      if (problem.has_offsets()) run_setup(problem, lattice.sequences, handle->stream);
      run_emissions(problem, lattice, reserve.shares.normalisers, handle->stream);
      run_recursion(problem, lattice, static_cast<Real*>(costs), handle->stream);
      const auto reduced = reduced_costs<Real>(params.options, costs);
      reserve_space ? run_shares(problem, lattice, reserve.shares.arcs, reduced, handle->stream)
                    : run_reduction(reduced, handle->stream);
    });
    if (gradients) loss_backward(handle, params, nullptr, gradients, reserve_space);
  }

  void loss_backward(prnnHandle_t handle, const RnntParams& params, const void* cost_gradients, void* gradients,
                     const void* reserve_space) const override {
    const Problem problem = make_problem(params);
    with_real(problem.dataType, [&](auto real) {
      using Real = decltype(real);
      Arena arena(const_cast<void*>(reserve_space));
      const Reserve<Real> reserve(problem, arena);
      run_gradients(problem, reserve.sequences, reserve.shares,
                    prnn::cost_gradients<Real>(params.options, cost_gradients), gradients, handle->stream);
    });
  }

  void align(prnnHandle_t handle, const RnntParams& params, void* scores, int* frames) const override {
    const Problem problem = make_problem(params);
    with_real(problem.dataType, [&](auto real) {
      using Real = decltype(real);
      Arena workspace(params.workspace);
      double* best;
      const Lattice<Real> lattice = cut_align_workspace<Real>(problem, workspace, best);
      if (problem.has_offsets()) run_setup(problem, lattice.sequences, handle->stream);
      run_emissions(problem, lattice, static_cast<Real*>(nullptr), handle->stream);
      run_best_path(problem, lattice, best, static_cast<Real*>(scores), frames, handle->stream);
    });
  }

  void mutual_information(prnnHandle_t handle, const MutualInformationParams& params) const override {
    const Problem problem = mutual_information_problem(params.options);
    with_real(problem.dataType, [&](auto real) {
      using Real = decltype(real);
      Arena workspace(params.workspace);
      const Lattice<Real> lattice = cut_workspace<Real>(problem, workspace, params.py_gradients != nullptr);
      run_mutual_information(params, lattice, handle->stream);
    });
  }

  void prune_ranges(prnnHandle_t handle, const PruneRangesParams& params) const override {
    with_real(params.options.dataType, [&](auto real) { run_prune_ranges<decltype(real)>(params, handle->stream); });
  }
};

}  // namespace

const RnntBackend& cuda_rnnt_backend() {
  static const CudaRnntBackend backend;
  return backend;
}

}  // namespace prnn
