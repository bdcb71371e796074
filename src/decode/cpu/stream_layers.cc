#include "decode/cpu/stream_layers.h"

#include <algorithm>

namespace prnn {
namespace {

constexpr int64_t kRows = 64;  // timesteps of all lanes that go through a layer before the next one

LayerShape layer_shape(const prnnStreamLayers_t& o, int64_t layer) {
  const int64_t state = o.projectionSize > 0 ? o.projectionSize : o.hiddenSize;
  return {o.mode, layer == 0 ? o.inputSize : state, o.hiddenSize, o.projectionSize};
}

// The buffers of a thread. Rows of frames and gates are those of timestep 0, then those of timestep 1 and so on.
template <class T>
struct LaneArrays {
  LaneArrays(Arena& arena, const prnnStreamLayers_t& o) {
    const LayerShape last = layer_shape(o, 1);
    frames = arena.take<T>(kRows * std::max(o.inputSize, last.state()));
    out = arena.take<T>(kRows * last.state());
    gates = arena.take<T>(kRows * last.gates() * o.hiddenSize);
    unprojected = arena.take<T>(o.projectionSize > 0 ? kLanes * o.hiddenSize : 0);
    h = arena.take<T>(o.layers * kLanes * last.state());
    c = arena.take<T>(o.mode == PRNN_LSTM ? o.layers * kLanes * o.hiddenSize : 0);
  }

  T *frames, *out, *gates, *unprojected;
  T *h, *c;  // {layers, lanes, size}
};

template <class T>
size_t lane_bytes(const prnnStreamLayers_t& o) {
  Arena arena(nullptr);
  LaneArrays<T>(arena, o);
  return (arena.size() + 63) / 64 * 64;
}

template <class T>
class Thread {
 public:
  Thread(const prnnStreamLayers_t& o, const PreparedStreamLayers<T>& prepared, const StreamLayersArgs& args,
         void* arrays, char* scratch)
      : o_(o), layers_(prepared.layers), args_(args), arena_(arrays), arrays_(arena_, o), scratch_(scratch) {}

  // Streams [first, first + lanes) of the batch, at most kLanes.
  void run(int64_t first, int64_t lanes) {
    lanes_ = lanes;
    for (int64_t i = 0; i < lanes; ++i) {
      int64_t place = i;
      for (; place > 0 && length(rows_[place - 1]) < length(first + i); --place) rows_[place] = rows_[place - 1];
      rows_[place] = first + i;
    }
    load_states();
    const int64_t longest = length(rows_[0]), steps = kRows / lanes;
    for (int64_t begin = 0; begin < longest; begin += steps) run_steps(begin, std::min(begin + steps, longest));
    store_states();
  }

 private:
  int64_t length(int64_t row) const { return args_.lengths != nullptr ? args_.lengths[row] : args_.frames; }
  int64_t slot(int64_t row) const { return args_.slots != nullptr ? args_.slots[row] : row; }
  int64_t state_size() const { return layers_[0].shape.state(); }

  template <class Copy>
  void for_each_state(const Copy& copy) const {
    const int64_t P = state_size(), H = o_.hiddenSize;
    for (int64_t i = 0; i < lanes_; ++i) {
      for (int64_t layer = 0; layer < o_.layers; ++layer) {
        const int64_t from = slot(rows_[i]) * o_.layers + layer, to = layer * kLanes + i;
        copy(static_cast<T*>(args_.h) + from * P, arrays_.h + to * P, P);
        if (o_.mode == PRNN_LSTM) copy(static_cast<T*>(args_.c) + from * H, arrays_.c + to * H, H);
      }
    }
  }
  void load_states() const {
    for_each_state([](const T* pool, T* own, int64_t size) { std::copy_n(pool, size, own); });
  }
  void store_states() const {
    for_each_state([](T* pool, const T* own, int64_t size) { std::copy_n(own, size, pool); });
  }

  // Timesteps [begin, end) through all layers. The lanes that have a timestep are the first ones.
  void run_steps(int64_t begin, int64_t end) {
    int64_t counts[kRows], rows = 0;
    for (int64_t t = begin; t < end; ++t) {
      int64_t count = 0;
      while (count < lanes_ && length(rows_[count]) > t) {
        const T* const x = static_cast<const T*>(args_.x) + (rows_[count] * args_.frames + t) * o_.inputSize;
        std::copy_n(x, o_.inputSize, arrays_.frames + (rows + count++) * o_.inputSize);
      }
      counts[t - begin] = count;
      rows += count;
    }
    const int64_t P = state_size();
    T *in = arrays_.frames, *out = arrays_.out;
    for (int64_t layer = 0; layer < o_.layers; ++layer, std::swap(in, out)) {
      run_layer(layer, in, counts, end - begin, rows, out);
    }
    T* row = in;
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = 0; i < counts[t - begin]; ++i, row += P) {
        std::copy_n(row, P, static_cast<T*>(args_.y) + (rows_[i] * args_.frames + t) * P);
      }
    }
  }

  void run_layer(int64_t number, const T* in, const int64_t* counts, int64_t steps, int64_t rows, T* out) const {
    const PreparedLayer<T>& layer = layers_[number];
    const int64_t P = state_size(), H = o_.hiddenSize, gates = layer.shape.gates() * H;
    T* const states = arrays_.h + number * kLanes * P;
    T* const c = o_.mode == PRNN_LSTM ? arrays_.c + number * kLanes * H : nullptr;
    layer.multiply_input(in, rows, arrays_.gates, scratch_);
    const T* before = states;
    int64_t row = 0;
    for (int64_t t = 0; t < steps; row += counts[t++]) {
      layer.step(before, counts[t], arrays_.gates + row * gates, c, arrays_.unprojected, out + row * P);
      before = out + row * P;
    }
    row = 0;
    for (int64_t t = 0; t < steps; row += counts[t++]) {  // the last states of the lanes that end with this timestep
      const int64_t kept = t + 1 < steps ? counts[t + 1] : 0;
      std::copy(out + (row + kept) * P, out + (row + counts[t]) * P, states + kept * P);
    }
  }

  const prnnStreamLayers_t& o_;
  const std::vector<PreparedLayer<T>>& layers_;
  const StreamLayersArgs& args_;
  Arena arena_;
  LaneArrays<T> arrays_;
  char* scratch_;
  int64_t lanes_ = 0;
  int64_t rows_[kLanes];  // of the batch, the longest first
};

// Threads worth starting: each has at least one stream.
template <class T>
int threads_of(const prnnStreamLayers_t& o, int64_t batch, int64_t frames) {
  double macs = 0;
  for (int64_t i = 0; i < o.layers; ++i) {
    const LayerShape shape = layer_shape(o, i);
    macs += static_cast<double>(shape.gates() * shape.hidden) * static_cast<double>(shape.input + shape.state());
  }
  return std::min<int64_t>(team_size(2 * macs * static_cast<double>(batch * frames)), batch);
}

}  // namespace

template <class T>
PreparedStreamLayers<T>::PreparedStreamLayers(const prnnStreamLayers_t& o, void* base) : arena(base) {
  layers.reserve(o.layers);
  for (int64_t i = 0; i < o.layers; ++i) layers.emplace_back(arena, layer_shape(o, i));
}

template <class T>
WorkspaceSize stream_layers_workspace_cpu(const prnnStreamLayers_t& o, int64_t batch, int64_t frames) {
  const size_t lanes = lane_bytes<T>(o);
  return {static_cast<size_t>(threads_of<T>(o, batch, frames)) * lanes, lanes};
}

template <class T>
void run_stream_layers_cpu(const prnnStreamLayers_t& o, const StreamLayersArgs& args) {
  const PreparedStreamLayers<T> prepared(o, const_cast<void*>(args.prepared));
  const size_t lanes = lane_bytes<T>(o);
  const auto room = static_cast<int64_t>(args.workspace_size / lanes);
  const int threads = static_cast<int>(std::min<int64_t>(threads_of<T>(o, args.batch, args.frames), room));
  char* const scratch = gemm_scratch<T>(threads);
  run_team(threads, [&](const Team& team) {
    const auto rank = static_cast<size_t>(team.rank());
    Thread<T> thread(o, prepared, args, static_cast<char*>(args.workspace) + rank * lanes,
                     scratch + rank * gemm_kernels<T>().scratch_bytes);
    const Range share = team.share_of(args.batch);
    for (int64_t first = share.begin; first < share.end; first += kLanes) {
      thread.run(first, std::min(kLanes, share.end - first));
    }
  });
}

template struct PreparedStreamLayers<float>;
template struct PreparedStreamLayers<double>;
template WorkspaceSize stream_layers_workspace_cpu<float>(const prnnStreamLayers_t&, int64_t, int64_t);
template WorkspaceSize stream_layers_workspace_cpu<double>(const prnnStreamLayers_t&, int64_t, int64_t);
template void run_stream_layers_cpu<float>(const prnnStreamLayers_t&, const StreamLayersArgs&);
template void run_stream_layers_cpu<double>(const prnnStreamLayers_t&, const StreamLayersArgs&);

}  // namespace prnn
