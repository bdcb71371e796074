// The CTC backend of CUDA handles: cuts workspace and reserve space into arrays and enqueues the kernels.
#include "core/cuda/arena.h"
#include "ctc/ctc.h"
#include "ctc/cuda/ctc_kernels.h"

namespace prnn {
namespace {

using namespace ctc_cuda;

// Arrays in the workspace. The sequences of a loss lie in its reserve space when there is one.
template <class Real>
Arrays<Real> cut_workspace(const prnnCTCLossOptions_t& o, Arena& arena, bool with_beta) {
  const int64_t rows = o.batch * o.maxFrames, width = o.maxTargets + 1;
  Arrays<Real> arrays{};
  arrays.sequences = arena.take<Sequence>(o.batch);
  arrays.scores = arena.take<double>(o.batch);
  arrays.blanks = arena.take<Real>(rows);
  arrays.labels = arena.take<Real>(rows * width);
  arrays.alpha = arena.take<States>(rows * width);
  if (with_beta) arrays.beta = arena.take<States>(rows * width);
  return arrays;
}

template <class Real>
Reserve<Real> cut_reserve(const prnnCTCLossOptions_t& o, Arena& arena) {
  const int64_t rows = o.batch * o.maxFrames, width = o.maxTargets + 1;
  Reserve<Real> reserve{};
  reserve.sequences = arena.take<Sequence>(o.batch);
  if (o.input == PRNN_LOSS_LOGITS) reserve.normalisers = arena.take<Real>(rows);
  reserve.shares = arena.take<Real>(rows * (width + 1));
  reserve.next = arena.take<int>(o.batch * width);
  reserve.first = arena.take<bool>(o.batch * width);
  return reserve;
}

unsigned char* cut_moves(const prnnCTCLossOptions_t& o, Arena& arena) {
  return arena.take<unsigned char>(2 * o.batch * o.maxFrames * (o.maxTargets + 1));
}

// Calls function(Real()) with the type in which the recursion's inputs are computed.
template <class Function>
void with_real(prnnDataType_t type, Function&& function) {
  type == PRNN_DATA_DOUBLE ? function(double()) : function(float());
}

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
    with_real(o.dataType, [&](auto real) { cut_workspace<decltype(real)>(o, arena, false); });
    cut_moves(o, arena);
    return arena.size();
  }

  void loss_forward(prnnHandle_t handle, const CtcParams& params, void* costs, void* reserve_space) const override {
    with_real(params.options.dataType, [&](auto real) {
      using Real = decltype(real);
      Arena workspace(params.workspace), reserve_arena(reserve_space);
      Arrays<Real> arrays = cut_workspace<Real>(params.options, workspace, reserve_space != nullptr);
      const Reserve<Real> reserve = cut_reserve<Real>(params.options, reserve_arena);
      if (reserve_space) arrays.sequences = reserve.sequences;
      run_setup(params, arrays.sequences, handle->stream);
      run_emissions(params, arrays, reserve.normalisers, handle->stream);
      run_recursion(params, arrays, static_cast<Real*>(costs), handle->stream);
      if (!reserve_space) return;
      run_shares(params, arrays, reserve.shares, handle->stream);
      run_repeats(params, arrays.sequences, reserve.next, reserve.first, handle->stream);
    });
  }

  void loss_backward(prnnHandle_t handle, const CtcParams& params, const void* cost_gradients, void* gradients,
                     const void* reserve_space) const override {
    with_real(params.options.dataType, [&](auto real) {
      using Real = decltype(real);
      Arena arena(const_cast<void*>(reserve_space));
      run_gradients(params, cut_reserve<Real>(params.options, arena), static_cast<const Real*>(cost_gradients),
                    gradients, handle->stream);
    });
  }

  void align(prnnHandle_t handle, const CtcParams& params, void* scores, int* begins, int* ends) const override {
    with_real(params.options.dataType, [&](auto real) {
      using Real = decltype(real);
      Arena workspace(params.workspace);
      const Arrays<Real> arrays = cut_workspace<Real>(params.options, workspace, false);
      unsigned char* moves = cut_moves(params.options, workspace);
      run_setup(params, arrays.sequences, handle->stream);
      run_emissions(params, arrays, static_cast<Real*>(nullptr), handle->stream);
      run_best_path(params, arrays, moves, static_cast<Real*>(scores), begins, ends, handle->stream);
    });
  }
};

}  // namespace

const CtcBackend& cuda_ctc_backend() {
  static const CudaCtcBackend backend;
  return backend;
}

}  // namespace prnn
