// The transducer search on a GPU: cuts prepared models and workspaces into arrays and launches the resident search.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "core/cuda/cublas.h"
#include "core/cuda/cuda_state.h"
#include "core/cuda/launch.h"
#include "decode/cuda/call.h"

namespace prnn {
namespace {

using namespace decode_cuda;

constexpr int kLeastArch = 80;        // mma.sync of bfloat16 and tf32
constexpr int kMostFrames = 1 << 30;  // of an utterance, and of a duration: both together are an int

SearchPlan plan_of(prnnHandle_t handle, const TransducerModel& model) {
  const GpuRow& row = cuda_gpu_row(*handle);
  if (model.dataType == PRNN_DATA_DOUBLE) {
    fail(PRNN_STATUS_NOT_SUPPORTED,
         "dataType is PRNN_DATA_DOUBLE; the transducer search on a GPU takes FLOAT, HALF and BFLOAT16");
  }
  if (row.arch < kLeastArch) {
    fail(PRNN_STATUS_NOT_SUPPORTED, "the GPU has compute capability %d.%d; the transducer search needs at least 8.0",
         row.arch / 10, row.arch % 10);
  }
  if (model.classes > kMostClasses) {
    fail(PRNN_STATUS_NOT_SUPPORTED, "classes is %lld; the transducer search on a GPU takes at most %d",
         static_cast<long long>(model.classes), kMostClasses);
  }
  for (int64_t i = 0; i < model.durationCount; ++i) {
    if (model.durations[i] > kMostFrames) {
      fail(PRNN_STATUS_NOT_SUPPORTED, "durations[%lld] is %d; the transducer search on a GPU takes at most %d",
           static_cast<long long>(i), model.durations[i], kMostFrames);
    }
  }
  SearchPlan plan;
  if (!plan_search(model, row.multiprocessors, row.shared_bytes, plan)) {
    fail(PRNN_STATUS_NOT_SUPPORTED,
         "hiddenSize is %lld and joinerSize %lld; states and activations of that size do not fit the %lld bytes of "
         "shared memory of a block",
         static_cast<long long>(model.hiddenSize), static_cast<long long>(model.joinerSize),
         static_cast<long long>(row.shared_bytes));
  }
  return plan;
}

BatchPlan beam_plan_of(const TransducerModel& model, const SearchPlan& plan, const prnnTransducerBeamOptions_t& o) {
  if (o.beam > kMostBeam) {
    fail(PRNN_STATUS_NOT_SUPPORTED, "beam is %lld; a beam search on a GPU takes at most %d",
         static_cast<long long>(o.beam), kMostBeam);
  }
  constexpr int kMostSymbols = kMostFrames / kMostBeam / 2;  // their numbers are ints
  if (most_symbols(o) > kMostSymbols) {
    fail(PRNN_STATUS_NOT_SUPPORTED,
         "maxFrames is %lld and maxSymbols %lld; a beam search on a GPU takes at most %d symbols an utterance",
         static_cast<long long>(o.maxFrames), static_cast<long long>(o.maxSymbols), kMostSymbols);
  }
  const int64_t waiting = is_by_levels(model, o) ? o.beam * (o.maxSymbols + 1) : 0;
  const BatchPlan batch = plan_batch(plan, o.batch, static_cast<int>(o.beam), waiting);
  if (batch.blocks == 0) {
    fail(PRNN_STATUS_NOT_SUPPORTED,
         "beam is %lld, maxSymbols %lld, hiddenSize %lld and joinerSize %lld; the hypotheses do not fit the shared "
         "memory "
         "of a block",
         static_cast<long long>(o.beam), static_cast<long long>(o.maxSymbols), static_cast<long long>(model.hiddenSize),
         static_cast<long long>(model.joinerSize));
  }
  return batch;
}

class CudaDecodeBackend final : public DecodeBackend {
 public:
  void require_supported(prnnHandle_t handle, const TransducerModel& model) const override { plan_of(handle, model); }

  size_t prepared_size(prnnHandle_t handle, const TransducerModel& model) const override {
    Arena arena(nullptr);
    cut_prepared(model, plan_of(handle, model), arena);
    return arena.size();
  }

  void prepare(prnnHandle_t handle, const TransducerModel& model, const prnnTransducerWeights_t& weights,
               void* prepared) const override {
    if (weights.encoderWeight != nullptr) {
      fail(PRNN_STATUS_NOT_SUPPORTED,
           "encoderWeight is not NULL; the transducer search on a GPU takes frames that are projected already");
    }
    const SearchPlan plan = plan_of(handle, model);
    Arena arena(prepared);
    const Prepared cut = cut_prepared(model, plan, arena);
    const cudaError_t error = with_type(model.dataType, [&](auto type) {
      return run_prepare<decltype(type)>(model, weights, plan, cut, handle->stream);
    });
    require_success(error, PRNN_STATUS_EXECUTION_FAILED, "the preparation of a transducer could not be launched");
    if (plan.layers == 0) return;
    const int64_t rows = int64_t{plan.tiles[kRecurrent].count} * kTileRows, size = model.embeddingSize;
    run_gemm(*handle, model.classes, rows, size, 1, {weights.embedding, model.dataType, size},
             {cut.table_weights, model.dataType, size, true}, 1, cut.table, model.dataType, rows);
  }

  WorkspaceSize workspace_size(prnnHandle_t handle, const TransducerModel& model,
                               const prnnTransducerSearchOptions_t& options) const override {
    const SearchPlan plan = plan_of(handle, model);
    if (options.maxFrames > kMostFrames) {
      fail(PRNN_STATUS_NOT_SUPPORTED, "maxFrames is %lld; the transducer search on a GPU takes at most %d",
           static_cast<long long>(options.maxFrames), kMostFrames);
    }
    Arena arena(nullptr);
    SearchParams params{};
    cut_exchange(plan, plan_batch(plan, options.batch), arena, params);
    return arena.size();
  }

  void search(prnnHandle_t handle, const TransducerModel& model, const TransducerSearchArgs& args) const override {
    check_earlier_calls(*handle);
    const SearchPlan plan = plan_of(handle, model);
    const BatchPlan batch = plan_batch(plan, args.options.batch);
    auto params = params_of<SearchParams>(model, plan, batch, args);
    Arena arena(args.workspace);
    cut_exchange(plan, batch, arena, params);
    run(handle, model, params, args.workspace, arena.size(),
        [&](auto type) { return run_search<decltype(type)>(params, batch.column_tiles, handle->stream); });
  }

  WorkspaceSize beam_workspace_size(prnnHandle_t handle, const TransducerModel& model,
                                    const prnnTransducerBeamOptions_t& options) const override {
    const SearchPlan plan = plan_of(handle, model);
    const BatchPlan batch = beam_plan_of(model, plan, options);
    Arena arena(nullptr);
    BeamParams params{};
    cut_exchange(plan, batch, arena, params);
    cut_history(model, options, batch, arena, params);
    return arena.size();
  }

  void beam_search(prnnHandle_t handle, const TransducerModel& model, const TransducerBeamArgs& args) const override {
    check_earlier_calls(*handle);
    const SearchPlan plan = plan_of(handle, model);
    const BatchPlan batch = beam_plan_of(model, plan, args.options);
    auto params = params_of<BeamParams>(model, plan, batch, args);
    Arena arena(args.workspace);
    cut_exchange(plan, batch, arena, params);
    const size_t exchange_bytes = arena.size();
    cut_history(model, args.options, batch, arena, params);
    run(handle, model, params, args.workspace, exchange_bytes, [&](auto type) {
      using T = decltype(type);
      if (batch.waiting > 0) return run_level_beam_search<T>(params, batch.slot_tiles(), handle->stream);
      return run_beam_search<T>(params, batch.column_tiles, batch.slot_tiles(), handle->stream);
    });
  }

 private:
  // Clears what blocks exchange and launches a search.
  template <class PARAMS, class LAUNCH>
  static void run(prnnHandle_t handle, const TransducerModel& model, PARAMS& params, void* workspace,
                  size_t exchange_bytes, const LAUNCH& launch) {
    params.timed_out = cuda_state(*handle).timed_out_on_device;
    require_success(cudaMemsetAsync(workspace, 0, exchange_bytes, handle->stream), PRNN_STATUS_EXECUTION_FAILED,
                    "the workspace of the transducer search could not be cleared");
    require_success(with_type(model.dataType, launch), PRNN_STATUS_EXECUTION_FAILED,
                    "the transducer search could not be launched");
  }
};

}  // namespace

const DecodeBackend& cuda_decode_backend() {
  static const CudaDecodeBackend backend;
  return backend;
}

}  // namespace prnn
