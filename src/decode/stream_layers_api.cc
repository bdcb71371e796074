// prnnRunStreamLayers and its kin: checks every argument, then calls what computes on a CPU.
#include "core/with_real.h"
#include "decode/checks.h"
#include "decode/cpu/stream_layers.h"

namespace prnn {
namespace {

constexpr int64_t kMost = std::numeric_limits<int>::max();

void check_layers(prnnHandle_t handle, const prnnStreamLayers_t* layers) {
  require_handle(handle);
  require_not_null(layers, "layers");
  const prnnStreamLayers_t& o = *layers;
  require_known_type(o.dataType, "dataType");
  require_enumerator(o.mode, {PRNN_RNN_RELU, PRNN_RNN_TANH, PRNN_LSTM, PRNN_GRU}, "mode");
  require_in_range(o.layers, 1, 1000, "layers");
  require_in_range(o.inputSize, 1, kMost, "inputSize");
  require_in_range(o.hiddenSize, 1, kMost, "hiddenSize");
  require_in_range(o.projectionSize, 0, o.mode == PRNN_LSTM ? o.hiddenSize - 1 : 0, "projectionSize");
  product_of_sizes({o.layers, 4, o.hiddenSize, std::max(o.inputSize, o.hiddenSize)});
  if (!handle->is_cpu())
    fail(PRNN_STATUS_NOT_SUPPORTED,
         "layers of streams are for CPU handles; on a GPU prnnRNNForwardInference runs them");
  if (o.dataType != PRNN_DATA_FLOAT && o.dataType != PRNN_DATA_DOUBLE)
    fail(PRNN_STATUS_NOT_SUPPORTED, "dataType is %s; layers of streams take PRNN_DATA_FLOAT and PRNN_DATA_DOUBLE",
         name_of(o.dataType));
  if (o.mode != PRNN_LSTM && o.mode != PRNN_GRU)
    fail(PRNN_STATUS_NOT_SUPPORTED, "mode is %d; layers of streams are PRNN_LSTM (%d) or PRNN_GRU (%d)", o.mode,
         PRNN_LSTM, PRNN_GRU);
}

size_t prepared_size(const prnnStreamLayers_t& o) {
  return with_real(o.dataType,
                   [&](auto real) { return PreparedStreamLayers<decltype(real)>(o, nullptr).arena.size(); });
}

WorkspaceSize workspace_size(const prnnStreamLayers_t& o, int64_t batch, int64_t frames) {
  require_in_range(batch, 1, kMost, "batch");
  require_in_range(frames, 1, kMost, "maxFrames");
  product_of_sizes({batch, frames, std::max(o.inputSize, o.hiddenSize)});
  return with_real(o.dataType,
                   [&](auto real) { return stream_layers_workspace_cpu<decltype(real)>(o, batch, frames); });
}

void check_weights(const prnnStreamLayers_t& o, const prnnStreamLayerWeights_t* weights) {
  require_not_null(weights, "weights");
  for (int64_t i = 0; i < o.layers; ++i) {
    const prnnStreamLayerWeights_t& w = weights[i];
    require_not_null(w.input, "weights[layer].input");
    require_not_null(w.recurrent, "weights[layer].recurrent");
    require_only_if(o.projectionSize > 0, w.projection, "weights[layer].projection", "without a projection");
    require_aligned(type_size(o.dataType), {{w.input, "weights[layer].input"},
                                            {w.recurrent, "weights[layer].recurrent"},
                                            {w.inputBias, "weights[layer].inputBias"},
                                            {w.recurrentBias, "weights[layer].recurrentBias"},
                                            {w.projection, "weights[layer].projection"}});
  }
}

void check_data(const prnnStreamLayers_t& o, const StreamLayersArgs& args) {
  require_not_null(args.x, "x");
  require_not_null(args.h, "h");
  require_not_null(args.y, "y");
  require_only_if(o.mode == PRNN_LSTM, args.c, "c", "unless mode is PRNN_LSTM");
  require_aligned(type_size(o.dataType), {{args.x, "x"}, {args.h, "h"}, {args.c, "c"}, {args.y, "y"}});
  require_aligned(sizeof(int), {{args.lengths, "lengths"}, {args.slots, "slots"}});
  if (args.lengths != nullptr) require_lengths(args.lengths, args.batch, 0, args.frames, "lengths");
  for (int64_t n = 0; args.slots != nullptr && n < args.batch; ++n) {
    if (args.slots[n] < 0)
      fail(PRNN_STATUS_BAD_PARAM, "slots[%" PRId64 "] is %d; it must be at least 0", n, args.slots[n]);
  }
  require_different(args.slots, args.batch, "slots");
}

}  // namespace
}  // namespace prnn

using namespace prnn;

extern "C" prnnStatus_t prnnInitStreamLayers(prnnStreamLayers_t* layers) {
  return guarded(nullptr, [&] {
    require_not_null(layers, "layers");
    *layers = prnnStreamLayers_t{};
    layers->mode = PRNN_LSTM;
    layers->layers = 1;
  });
}

extern "C" prnnStatus_t prnnGetStreamLayersPreparedSize(prnnHandle_t handle, const prnnStreamLayers_t* layers,
                                                        size_t* sizeInBytes) {
  return guarded(handle, [&] {
    check_layers(handle, layers);
    write_size(prepared_size(*layers), sizeInBytes);
  });
}

extern "C" prnnStatus_t prnnPrepareStreamLayers(prnnHandle_t handle, const prnnStreamLayers_t* layers,
                                                const prnnStreamLayerWeights_t* weights, void* prepared,
                                                size_t preparedSizeInBytes) {
  return guarded(handle, [&] {
    check_layers(handle, layers);
    check_weights(*layers, weights);
    require_space(prepared, preparedSizeInBytes, prepared_size(*layers), "prepared");
    with_real(layers->dataType, [&](auto real) {
      PreparedStreamLayers<decltype(real)> own(*layers, prepared);
      for (int64_t i = 0; i < layers->layers; ++i) {
        const prnnStreamLayerWeights_t& w = weights[i];
        own.layers[i].write({w.input, w.recurrent, w.inputBias, w.recurrentBias, w.projection});
      }
    });
  });
}

extern "C" prnnStatus_t prnnGetStreamLayersWorkspaceSize(prnnHandle_t handle, const prnnStreamLayers_t* layers,
                                                         int64_t batch, int64_t maxFrames, size_t* sizeInBytes) {
  return guarded(handle, [&] {
    check_layers(handle, layers);
    write_size(workspace_size(*layers, batch, maxFrames), sizeInBytes);
  });
}

extern "C" prnnStatus_t prnnRunStreamLayers(prnnHandle_t handle, const prnnStreamLayers_t* layers, const void* prepared,
                                            int64_t batch, int64_t maxFrames, const void* x, const int* lengths,
                                            const int* slots, void* h, void* c, void* y, void* workspace,
                                            size_t workspaceSizeInBytes) {
  return guarded(handle, [&] {
    check_layers(handle, layers);
    check_prepared(prepared);
    const WorkspaceSize size = workspace_size(*layers, batch, maxFrames);
    const StreamLayersArgs args{batch,     maxFrames,           prepared, x, lengths, slots, h, c, y,
                                workspace, workspaceSizeInBytes};
    check_data(*layers, args);
    require_space(workspace, workspaceSizeInBytes, size.least, "workspace");
    with_real(layers->dataType, [&](auto real) { run_stream_layers_cpu<decltype(real)>(*layers, args); });
  });
}
