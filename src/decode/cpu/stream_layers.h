// Layers of streams on the CPU: the streams are shared out among threads, of which each takes kLanes at a time through
// some timesteps of all layers. T: float or double.
#pragma once

#include <vector>

#include "core/workspace_size.h"
#include "decode/cpu/layer.h"
#include "prnn_decode.h"

namespace prnn {

template <class T>
struct PreparedStreamLayers {
  PreparedStreamLayers(const prnnStreamLayers_t& options, void* base);

  Arena arena;
  std::vector<PreparedLayer<T>> layers;
};

struct StreamLayersArgs {
  int64_t batch, frames;
  const void* prepared;
  const void* x;
  const int* lengths;
  const int* slots;
  void *h, *c, *y;
  void* workspace;
  size_t workspace_size;
};

template <class T>
WorkspaceSize stream_layers_workspace_cpu(const prnnStreamLayers_t& options, int64_t batch, int64_t frames);
template <class T>
void run_stream_layers_cpu(const prnnStreamLayers_t& options, const StreamLayersArgs& args);

}  // namespace prnn
