// Binds persistent_rnn.h: a recurrent layer or stack as one object that keeps its descriptors.
#include "persistent_rnn.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <climits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "errors.h"
#include "handle.h"
#include "sequences.h"

namespace py = pybind11;

namespace prnn_python {
namespace {

template <class Descriptor, prnnStatus_t (*create)(Descriptor*), prnnStatus_t (*destroy)(Descriptor)>
class Owned {
 public:
  Owned() { check(create(&descriptor_)); }
  Owned(Owned&& other) noexcept : descriptor_(other.descriptor_) { other.descriptor_ = nullptr; }
  Owned& operator=(Owned&&) = delete;
  ~Owned() { destroy(descriptor_); }
  Descriptor get() const { return descriptor_; }

 private:
  Descriptor descriptor_ = nullptr;
};

using Tensor = Owned<prnnTensorDescriptor_t, prnnCreateTensorDescriptor, prnnDestroyTensorDescriptor>;
using Filter = Owned<prnnFilterDescriptor_t, prnnCreateFilterDescriptor, prnnDestroyFilterDescriptor>;
using DropoutDescriptor = Owned<prnnDropoutDescriptor_t, prnnCreateDropoutDescriptor, prnnDestroyDropoutDescriptor>;
using RnnDescriptor = Owned<prnnRNNDescriptor_t, prnnCreateRNNDescriptor, prnnDestroyRNNDescriptor>;

using Descriptors = std::vector<prnnTensorDescriptor_t>;  // one a timestep

py::dict to_dict(const prnnRNNInfo_t& info) {
  using namespace py::literals;
  return py::dict("supported"_a = info.supported != 0, "backend"_a = static_cast<int>(info.backend),
                  "inference_backend"_a = static_cast<int>(info.inferenceBackend), "device"_a = info.device,
                  "measured"_a = info.measured != 0, "forward_engine"_a = info.forwardEngine,
                  "backward_engine"_a = info.backwardEngine, "blocks"_a = info.blocks, "replicas"_a = info.replicas,
                  "units_per_block"_a = info.unitsPerBlock, "batch_per_pass"_a = info.batchPerPass,
                  "layers_together"_a = info.layersTogether, "layers_together_backward"_a = info.layersTogetherBackward,
                  "layers_together_inference"_a = info.layersTogetherInference, "register_bytes"_a = info.registerBytes,
                  "shared_bytes"_a = info.sharedBytes, "largest_hidden_size"_a = info.largestHiddenSize,
                  "reason"_a = info.reason, "engine_reason"_a = info.engineReason,
                  "layers_reason"_a = info.layersReason, "workspace_size"_a = info.workspaceSize,
                  "reserve_size"_a = info.reserveSize);
}

std::vector<std::string> gpu_names() {
  std::vector<std::string> names;
  for (const char* name; (name = prnnGetGPUName(static_cast<int>(names.size()))) != nullptr;) names.emplace_back(name);
  return names;
}

std::string describe_gpu(const Handle& handle) {
  char text[256];
  check(prnnDescribeGPU(handle.get(), text, sizeof text), handle.get());
  return text;
}

const int* order_of(const BatchSizes& batch_sizes, const std::optional<std::vector<int>>& order) {
  if (!order) return nullptr;
  if (batch_sizes.empty() || order->size() != static_cast<size_t>(batch_sizes[0])) {
    throw py::value_error("order has " + std::to_string(order->size()) + " entries; it must have batch_sizes[0]");
  }
  return order->data();
}

void pack_sequences(const Handle& handle, const BatchSizes& batch_sizes, const std::optional<std::vector<int>>& order,
                    size_t row_bytes, uintptr_t padded, size_t step_stride, size_t sequence_stride, uintptr_t packed) {
  check(prnnPackSequences(handle.get(), static_cast<int>(batch_sizes.size()), batch_sizes.data(),
                          order_of(batch_sizes, order), row_bytes, pointer(padded), step_stride, sequence_stride,
                          pointer(packed)),
        handle.get());
}

void unpack_sequences(const Handle& handle, const BatchSizes& batch_sizes, const std::optional<std::vector<int>>& order,
                      size_t row_bytes, uintptr_t packed, uintptr_t padded, int padded_length, size_t step_stride,
                      size_t sequence_stride) {
  check(prnnUnpackSequences(handle.get(), static_cast<int>(batch_sizes.size()), batch_sizes.data(),
                            order_of(batch_sizes, order), row_bytes, pointer(packed), pointer(padded), padded_length,
                            step_stride, sequence_stride),
        handle.get());
}

// A stack of recurrent layers: what prnnSetRNNDescriptor takes, and the input size. Pointers are integers, 0 is NULL.
class Rnn {
 public:
  // Offsets in elements into the packed weights of a layer's input matrices, recurrent matrices, projection, input
  // biases and recurrent biases; -1 where it has none.
  using Offsets = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>;

  Rnn(int mode, int dtype, int hidden, int layers, int input, bool bidirectional, bool skip_input, int projection,
      float dropout, int heads, bool gates_input)
      : mode_(mode),
        type_(dtype),
        hidden_(hidden),
        layers_(layers),
        input_(input),
        directions_(bidirectional ? 2 : 1),
        skip_input_(skip_input),
        projection_(projection),
        dropout_(dropout),
        heads_(heads),
        gates_input_(gates_input) {
    configure(nullptr);
    const Handle handle = Handle::cpu();  // the weights' layout is the same on every device
    size_t bytes = 0;
    check(prnnGetRNNParamsSize(handle.get(), rnn_.get(), tensor(1, input_, 1), &bytes, data_type()), handle.get());
    params_size_ = static_cast<int64_t>(bytes / element_size());
    // The hidden size divides the number of elements, which may be too large for one dimension.
    const int dims[] = {hidden_, static_cast<int>(params_size_ / hidden_), 1};
    check(prnnSetFilterNdDescriptor(weights_.get(), data_type(), PRNN_TENSOR_NCHW, 3, dims));
  }

  int64_t params_size() const { return params_size_; }

  Offsets layer_offsets(int layer, int direction) {
    if (direction < 0 || direction >= recurrences()) {
      throw py::value_error("direction is " + std::to_string(direction) + "; the layer has " +
                            std::to_string(recurrences()));
    }
    const Handle handle = Handle::cpu();
    const int gates = mode_ == PRNN_LSTM || is_slstm() ? 4 : mode_ == PRNN_GRU ? 3 : 1;
    const int pseudo_layer = layer * recurrences() + direction;
    const auto offset = [&](auto get, int id) -> int64_t {
      const uintptr_t base = 4096;  // any address but NULL, which stands for "no such matrix"
      const Filter block;
      void* found = nullptr;
      check(get(handle.get(), rnn_.get(), pseudo_layer, tensor(1, input_, 1), weights_.get(), pointer(base), id,
                block.get(), &found),
            handle.get());
      if (found == nullptr) return -1;
      return static_cast<int64_t>((reinterpret_cast<uintptr_t>(found) - base) / element_size());
    };
    return {offset(prnnGetRNNLinLayerMatrixParams, 0), offset(prnnGetRNNLinLayerMatrixParams, gates),
            projection_ > 0 ? offset(prnnGetRNNLinLayerMatrixParams, 8) : -1, offset(prnnGetRNNLinLayerBiasParams, 0),
            offset(prnnGetRNNLinLayerBiasParams, gates)};
  }

  void set_backend(int backend) {
    check(prnnSetRNNBackend(rnn_.get(), static_cast<prnnRNNBackend_t>(backend)));
    backend_ = backend;
  }

  void set_math(int math) {
    check(prnnSetRNNMatrixMathType(rnn_.get(), static_cast<prnnMathType_t>(math)));
    math_ = math;
  }

  void set_wgrad_mode(int mode) {
    check(prnnSetRNNWgradMode(rnn_.get(), static_cast<prnnWgradMode_t>(mode)));
    wgrad_mode_ = mode;
  }
  void set_frozen_layers(int layers) {
    check(prnnSetRNNFrozenLayers(rnn_.get(), layers));
    frozen_layers_ = layers;
  }

  // {engine, units per block, blocks of a cluster, replicas, poll delay in cycles}; none: the library's own.
  using Plan = std::optional<std::array<int, 5>>;
  void set_plan(const Plan& forward, const Plan& backward) {
    const auto plan_of = [](const Plan& plan) {
      if (!plan) return prnnRNNPlan_t{};
      const auto [engine, units, cluster, replicas, delay] = *plan;
      return prnnRNNPlan_t{static_cast<prnnRNNEngine_t>(engine), units, cluster, replicas, delay};
    };
    const prnnRNNPlan_t first = plan_of(forward), second = plan_of(backward);
    check(prnnSetRNNPlan(rnn_.get(), forward ? &first : nullptr, backward ? &second : nullptr));
  }

  // Sets the extras of the calls and queries that follow.
  void set_extras(uintptr_t reset, uintptr_t cells, uintptr_t dcells, uintptr_t reset_hx, uintptr_t reset_cx,
                  uintptr_t dreset_hx, uintptr_t dreset_cx) {
    const prnnRNNExtras_t extras{static_cast<const unsigned char*>(pointer(reset)),
                                 pointer(cells),
                                 pointer(dcells),
                                 pointer(reset_hx),
                                 pointer(reset_cx),
                                 pointer(dreset_hx),
                                 pointer(dreset_cx)};
    check(prnnSetRNNExtras(rnn_.get(), &extras));
  }

  // Sets the masks of the calls and queries that follow.
  void set_masks(uintptr_t recurrent, uintptr_t zoneout, double zoneout_expectation) {
    const prnnRNNMasks_t masks{pointer(recurrent), static_cast<const unsigned char*>(pointer(zoneout)),
                               zoneout_expectation};
    check(prnnSetRNNMasks(rnn_.get(), &masks));
  }

  void set_dropout(const Handle& handle, float dropout, uintptr_t states, size_t states_size, unsigned long long seed) {
    check(
        prnnSetDropoutDescriptor(dropout_descriptor_.get(), handle.get(), dropout, pointer(states), states_size, seed),
        handle.get());
    use_dropout(dropout);
  }

  void restore_dropout(const Handle& handle, float dropout, uintptr_t states, size_t states_size) {
    check(
        prnnRestoreDropoutDescriptor(dropout_descriptor_.get(), handle.get(), dropout, pointer(states), states_size, 0),
        handle.get());
    use_dropout(dropout);
  }

  size_t workspace_size(const Handle& handle, const Sequences& sequences) {
    return size(prnnGetRNNWorkspaceSize, handle, sequences);
  }

  size_t reserve_size(const Handle& handle, const Sequences& sequences) {
    return size(prnnGetRNNTrainingReserveSize, handle, sequences);
  }

  // {workspace, reserve space} of inference, or of a training step.
  std::pair<size_t, size_t> temp_space_sizes(const Handle& handle, bool training, const Sequences& sequences) {
    const Descriptors xs = sequence(sequences.sizes, input_);
    const prnnForwardMode_t mode = training ? PRNN_FWD_MODE_TRAINING : PRNN_FWD_MODE_INFERENCE;
    size_t workspace = 0, reserve = 0;
    check(prnnGetRNNTempSpaceSizes(handle.get(), rnn_.get(), mode, static_cast<int>(xs.size()), xs.data(), &workspace,
                                   &reserve),
          handle.get());
    return {workspace, reserve};
  }

  // Sequences of one length, by their number, or the number in every timestep.
  using Batch = std::variant<int, BatchSizes>;

  // The plan on the handle's device.
  py::dict query(const Handle& handle, const Batch& batch) {
    const Descriptors xs = sequence(sizes_of(batch), input_);
    prnnRNNInfo_t info;
    check(prnnQueryRNNSequence(handle.get(), nullptr, rnn_.get(), static_cast<int>(xs.size()), xs.data(), &info),
          handle.get());
    return to_dict(info);
  }

  // The plan on a GPU of the table, which need not be there.
  py::dict query_gpu(const std::string& gpu, const Batch& batch) {
    const Descriptors xs = sequence(sizes_of(batch), input_);
    prnnRNNInfo_t info;
    check(prnnQueryRNNSequence(nullptr, gpu.c_str(), rnn_.get(), static_cast<int>(xs.size()), xs.data(), &info));
    return to_dict(info);
  }

  void forward(const Handle& handle, const Sequences& sequences, uintptr_t x, uintptr_t hx, uintptr_t cx, uintptr_t w,
               uintptr_t y, uintptr_t hy, uintptr_t cy, uintptr_t workspace, size_t workspace_size, uintptr_t reserve,
               size_t reserve_size) {
    if (reserve != 0) require_dropout_states();
    const Descriptors xs = sequence(sequences.sizes, input_);
    const Descriptors ys = sequence(sequences.sizes, output());
    const auto [h, c] = states(sequences.sizes);
    const int steps = sequences.steps();
    run(handle, [&, h = h, c = c] {
      if (reserve == 0) {
        return prnnRNNForwardInference(handle.get(), rnn_.get(), steps, xs.data(), pointer(x), h, pointer(hx), c,
                                       pointer(cx), weights_.get(), pointer(w), ys.data(), pointer(y), h, pointer(hy),
                                       c, pointer(cy), pointer(workspace), workspace_size);
      }
      return prnnRNNForwardTraining(handle.get(), rnn_.get(), steps, xs.data(), pointer(x), h, pointer(hx), c,
                                    pointer(cx), weights_.get(), pointer(w), ys.data(), pointer(y), h, pointer(hy), c,
                                    pointer(cy), pointer(workspace), workspace_size, pointer(reserve), reserve_size);
    });
  }

  // Padded data, {timesteps, N, ...}: of x with strides in bytes, of y and its kin contiguous. It is packed into
  // `scratch`, of scratch_size() bytes, and unpacked from there; states are sorted on their way.
  void forward_padded(const Handle& handle, const Sequences& sequences, uintptr_t x, size_t step_stride,
                      size_t sequence_stride, uintptr_t hx, uintptr_t cx, uintptr_t w, uintptr_t y, uintptr_t hy,
                      uintptr_t cy, uintptr_t scratch, uintptr_t workspace, size_t workspace_size, uintptr_t reserve,
                      size_t reserve_size) {
    Scratch space{scratch};
    const Padded padded{handle, sequences};
    const size_t rows = static_cast<size_t>(sequences.rows());
    const uintptr_t packed_x = space.take(rows * row_bytes(input_)), packed_y = space.take(rows * row_bytes(output()));
    padded.pack(x, step_stride, sequence_stride, packed_x, row_bytes(input_));
    const uintptr_t own_hx = sorted(padded, space, hx, h_states()), own_cx = sorted(padded, space, cx, c_states());
    const uintptr_t own_hy = unsorted(padded, space, hy, h_states()), own_cy = unsorted(padded, space, cy, c_states());
    forward(handle, sequences, packed_x, own_hx, own_cx, w, packed_y, own_hy, own_cy, workspace, workspace_size,
            reserve, reserve_size);
    padded.unpack(packed_y, y, row_bytes(output()));
    restore(padded, own_hy, hy, h_states());
    restore(padded, own_cy, cy, c_states());
  }

  // A backward pass over padded data; dw 0: without the weights' gradients. dy has strides in bytes, too.
  void backward_padded(const Handle& handle, const Sequences& sequences, uintptr_t x, size_t step_stride,
                       size_t sequence_stride, uintptr_t hx, uintptr_t cx, uintptr_t w, uintptr_t y, uintptr_t dy,
                       size_t dy_step_stride, size_t dy_sequence_stride, uintptr_t dhy, uintptr_t dcy, uintptr_t dx,
                       uintptr_t dhx, uintptr_t dcx, uintptr_t initial, uintptr_t dw, uintptr_t scratch,
                       uintptr_t workspace, size_t workspace_size, uintptr_t reserve, size_t reserve_size) {
    Scratch space{scratch};
    const Padded padded{handle, sequences};
    const size_t rows = static_cast<size_t>(sequences.rows());
    const size_t x_bytes = row_bytes(input_), y_bytes = row_bytes(output());
    const uintptr_t packed_x = space.take(rows * x_bytes), packed_y = space.take(rows * y_bytes),
                    packed_dy = space.take(rows * y_bytes), packed_dx = dx == 0 ? 0 : space.take(rows * x_bytes);
    const size_t y_sequence = y_bytes, y_step = y_bytes * static_cast<size_t>(sequences.batch());
    padded.pack(x, step_stride, sequence_stride, packed_x, x_bytes);
    padded.pack(y, y_step, y_sequence, packed_y, y_bytes);
    padded.pack(dy, dy_step_stride, dy_sequence_stride, packed_dy, y_bytes);
    const uintptr_t own_hx = sorted(padded, space, hx, h_states()), own_cx = sorted(padded, space, cx, c_states()),
                    own_dhy = sorted(padded, space, dhy, h_states()), own_dcy = sorted(padded, space, dcy, c_states());
    const uintptr_t own_dhx = unsorted(padded, space, dhx, h_states()),
                    own_dcx = unsorted(padded, space, dcx, c_states());
    backward_data(handle, sequences, packed_y, packed_dy, own_dhy, own_dcy, w, own_hx, own_cx, packed_dx, own_dhx,
                  own_dcx, workspace, workspace_size, reserve, reserve_size);
    if (dw != 0) {
      const uintptr_t own_initial = initial == hx ? own_hx : initial;
      backward_weights(handle, sequences, packed_x, own_initial, packed_y, dw, workspace, workspace_size, reserve,
                       reserve_size);
    }
    if (dx != 0) padded.unpack(packed_dx, dx, x_bytes);
    restore(padded, own_dhx, dhx, h_states());
    restore(padded, own_dcx, dcx, c_states());
  }

  // Bytes of `scratch`.
  size_t scratch_size(const Sequences& sequences, bool is_backward) const {
    const size_t rows = static_cast<size_t>(sequences.rows());
    const size_t x = Scratch::whole(rows * row_bytes(input_)), y = Scratch::whole(rows * row_bytes(output()));
    const size_t h = Scratch::whole(bytes_of(sequences, h_states())),
                 c = Scratch::whole(bytes_of(sequences, c_states()));
    const size_t sorted = sequences.order.empty() ? 0 : (is_backward ? 3 : 2) * (h + c);
    return (is_backward ? 2 : 1) * (x + y) + sorted;
  }

  // {scratch, workspace, reserve space} of forward_padded(), of inference or of a training step.
  std::tuple<size_t, size_t, size_t> padded_spaces(const Handle& handle, bool training, const Sequences& sequences) {
    const auto [workspace, reserve] = temp_space_sizes(handle, training, sequences);
    return {scratch_size(sequences, false), workspace, reserve};
  }

  void backward_data(const Handle& handle, const Sequences& sequences, uintptr_t y, uintptr_t dy, uintptr_t dhy,
                     uintptr_t dcy, uintptr_t w, uintptr_t hx, uintptr_t cx, uintptr_t dx, uintptr_t dhx, uintptr_t dcx,
                     uintptr_t workspace, size_t workspace_size, uintptr_t reserve, size_t reserve_size) {
    const Descriptors xs = sequence(sequences.sizes, input_);
    const Descriptors ys = sequence(sequences.sizes, output());
    const auto [h, c] = states(sequences.sizes);
    const int steps = sequences.steps();
    run(handle, [&, h = h, c = c] {
      return prnnRNNBackwardData(handle.get(), rnn_.get(), steps, ys.data(), pointer(y), ys.data(), pointer(dy), h,
                                 pointer(dhy), c, pointer(dcy), weights_.get(), pointer(w), h, pointer(hx), c,
                                 pointer(cx), xs.data(), pointer(dx), h, pointer(dhx), c, pointer(dcx),
                                 pointer(workspace), workspace_size, pointer(reserve), reserve_size);
    });
  }

  void backward_weights(const Handle& handle, const Sequences& sequences, uintptr_t x, uintptr_t hx, uintptr_t y,
                        uintptr_t dw, uintptr_t workspace, size_t workspace_size, uintptr_t reserve,
                        size_t reserve_size) {
    const Descriptors xs = sequence(sequences.sizes, input_);
    const Descriptors ys = sequence(sequences.sizes, output());
    const prnnTensorDescriptor_t h = states(sequences.sizes).first;
    const int steps = sequences.steps();
    run(handle, [&] {
      return prnnRNNBackwardWeights(handle.get(), rnn_.get(), steps, xs.data(), pointer(x), h, pointer(hx), ys.data(),
                                    pointer(y), pointer(workspace), workspace_size, weights_.get(), pointer(dw),
                                    pointer(reserve), reserve_size);
    });
  }

 private:
  // Parts of a buffer, one after the other.
  struct Scratch {
    static size_t whole(size_t size) { return (size + 255) / 256 * 256; }
    uintptr_t take(size_t size) {
      const uintptr_t part = next;
      next += whole(size);
      return part;
    }
    uintptr_t next;
  };

  // Packs and unpacks the data of sequences, and sorts their states.
  struct Padded {
    void pack(uintptr_t padded, size_t step_stride, size_t sequence_stride, uintptr_t packed, size_t row) const {
      copy_in(sequences.steps(), sequences.sizes.data(), padded, step_stride, sequence_stride, packed, row);
    }
    void unpack(uintptr_t packed, uintptr_t padded, size_t row) const {
      copy_out(sequences.steps(), sequences.sizes.data(), packed, padded, sequences.padded_steps, row);
    }
    // {count, N, row}: all sequences in each of `count` timesteps.
    void sort(uintptr_t given, uintptr_t sorted, int count, size_t row) const {
      const BatchSizes sizes(static_cast<size_t>(count), sequences.batch());
      const size_t step = row * static_cast<size_t>(sequences.batch());
      copy_in(count, sizes.data(), given, step, row, sorted, row);
    }
    void unsort(uintptr_t sorted, uintptr_t given, int count, size_t row) const {
      const BatchSizes sizes(static_cast<size_t>(count), sequences.batch());
      copy_out(count, sizes.data(), sorted, given, count, row);
    }
    void copy_in(int steps, const int* sizes, uintptr_t padded, size_t step_stride, size_t sequence_stride,
                 uintptr_t packed, size_t row) const {
      check(prnnPackSequences(handle.get(), steps, sizes, sequences.order_or_null(), row, pointer(padded), step_stride,
                              sequence_stride, pointer(packed)),
            handle.get());
    }
    void copy_out(int steps, const int* sizes, uintptr_t packed, uintptr_t padded, int padded_steps, size_t row) const {
      check(prnnUnpackSequences(handle.get(), steps, sizes, sequences.order_or_null(), row, pointer(packed),
                                pointer(padded), padded_steps, row * static_cast<size_t>(sequences.batch()), row),
            handle.get());
    }

    const Handle& handle;
    const Sequences& sequences;
  };

  // The states of a call: so many, of N rows each.
  struct States {
    int count;
    size_t row;  // bytes
  };
  States h_states() const { return {layers_ * recurrences(), row_bytes(output() / recurrences())}; }
  // c; an sLSTM's c, n and m.
  States c_states() const { return {layers_ * recurrences() * (is_slstm() ? 3 : 1), row_bytes(hidden_ / heads_)}; }

  uintptr_t sorted(const Padded& padded, Scratch& space, uintptr_t state, const States& states) const {
    if (state == 0 || padded.sequences.order.empty()) return state;
    const uintptr_t own = unsorted(padded, space, state, states);
    padded.sort(state, own, states.count, states.row);
    return own;
  }

  // Where a state is written before restore() brings it to the caller's order.
  uintptr_t unsorted(const Padded& padded, Scratch& space, uintptr_t state, const States& states) const {
    if (state == 0 || padded.sequences.order.empty()) return state;
    return space.take(bytes_of(padded.sequences, states));
  }

  static size_t bytes_of(const Sequences& sequences, const States& states) {
    return static_cast<size_t>(states.count) * static_cast<size_t>(sequences.batch()) * states.row;
  }

  void restore(const Padded& padded, uintptr_t own, uintptr_t state, const States& states) const {
    if (own != state) padded.unsort(own, state, states.count, states.row);
  }

  size_t row_bytes(int width) const { return static_cast<size_t>(width) * element_size(); }

  // Sets the RNN descriptor, which takes back what the other functions set.
  void configure(prnnDropoutDescriptor_t dropout) {
    const prnnRNNInputMode_t input_mode = gates_input_  ? PRNN_GATES_INPUT
                                          : skip_input_ ? PRNN_SKIP_INPUT
                                                        : PRNN_LINEAR_INPUT;
    check(prnnSetRNNDescriptor(rnn_.get(), hidden_, layers_, dropout, input_mode,
                               directions_ == 2 ? PRNN_BIDIRECTIONAL : PRNN_UNIDIRECTIONAL,
                               static_cast<prnnRNNMode_t>(mode_), static_cast<prnnDataType_t>(type_)));
    check(prnnSetRNNProjectionSize(rnn_.get(), projection_));
    check(prnnSetRNNHeads(rnn_.get(), heads_));
    check(prnnSetRNNBackend(rnn_.get(), static_cast<prnnRNNBackend_t>(backend_)));
    check(prnnSetRNNMatrixMathType(rnn_.get(), static_cast<prnnMathType_t>(math_)));
    check(prnnSetRNNWgradMode(rnn_.get(), static_cast<prnnWgradMode_t>(wgrad_mode_)));
    check(prnnSetRNNFrozenLayers(rnn_.get(), frozen_layers_));
  }

  void use_dropout(float dropout) {
    dropout_ = dropout;
    if (!has_dropout_) configure(dropout_descriptor_.get());
    has_dropout_ = true;
  }

  void require_dropout_states() const {
    if (dropout_ > 0 && !has_dropout_) {
      throw py::value_error("dropout is " + std::to_string(dropout_) + " but set_dropout has not been called");
    }
  }

  prnnDataType_t data_type() const { return static_cast<prnnDataType_t>(type_); }
  size_t element_size() const { return type_ == PRNN_DATA_DOUBLE ? 8 : type_ == PRNN_DATA_FLOAT ? 4 : 2; }
  int recurrences() const { return directions_ * heads_; }  // of a layer
  bool is_slstm() const { return mode_ == PRNN_SLSTM || mode_ == PRNN_SLSTM_EXP; }
  int output() const { return directions_ * (projection_ > 0 ? projection_ : hidden_); }

  // The descriptor of a packed tensor. Made once and never changed, for a call of another thread may be reading it.
  prnnTensorDescriptor_t tensor(int first, int second, int third) {
    const auto [found, is_new] = tensors_.try_emplace({first, second, third});
    if (is_new) {
      const int64_t rows = int64_t{second} * third;
      const int dims[] = {first, second, third};
      const int strides[] = {rows > INT_MAX ? 1 : static_cast<int>(rows), third, 1};  // the library refuses the 1
      check(prnnSetTensorNdDescriptor(found->second.get(), data_type(), 3, dims, strides));
    }
    return found->second.get();
  }

  // A number alone is one of sequences of any length: long ones.
  // Timesteps as in prnnQueryRNN, where there is but a number.
  static BatchSizes sizes_of(const Batch& batch) {
    const int* const uniform = std::get_if<int>(&batch);
    if (uniform == nullptr) return std::get<BatchSizes>(batch);
    return BatchSizes(static_cast<size_t>(std::min(64, INT_MAX / std::max(*uniform, 1))), *uniform);
  }

  Descriptors sequence(const BatchSizes& batch_sizes, int width) {
    Descriptors descriptors(batch_sizes.size());
    for (size_t t = 0; t < batch_sizes.size(); ++t) {
      const bool repeated = t > 0 && batch_sizes[t] == batch_sizes[t - 1];
      descriptors[t] = repeated ? descriptors[t - 1] : tensor(batch_sizes[t], width, 1);
    }
    return descriptors;
  }

  // The descriptors of h and c.
  std::pair<prnnTensorDescriptor_t, prnnTensorDescriptor_t> states(const BatchSizes& batch_sizes) {
    if (batch_sizes.empty()) return {nullptr, nullptr};
    return {tensor(h_states().count, batch_sizes[0], output() / recurrences()),
            tensor(c_states().count, batch_sizes[0], hidden_ / heads_)};
  }

  template <class Query>
  size_t size(Query query, const Handle& handle, const Sequences& sequences) {
    const Descriptors xs = sequence(sequences.sizes, input_);
    size_t bytes = 0;
    check(query(handle.get(), rnn_.get(), static_cast<int>(xs.size()), xs.data(), &bytes), handle.get());
    return bytes;
  }

  template <class Call>
  void run(const Handle& handle, Call call) {
    prnnStatus_t status;
    {
      py::gil_scoped_release release;
      status = call();
    }
    check(status, handle.get());
  }

  // Enumerations as integers: they are the caller's, and an enumeration may not hold what is none of its values.
  int mode_, type_;
  int hidden_, layers_, input_, directions_;
  bool skip_input_;
  int projection_;
  float dropout_;
  int heads_;
  bool gates_input_;
  bool has_dropout_ = false;
  int backend_ = PRNN_BEST_BACKEND;
  int math_ = PRNN_DEFAULT_MATH;
  int wgrad_mode_ = PRNN_WGRAD_MODE_ADD;
  int frozen_layers_ = 0;
  int64_t params_size_ = 0;
  RnnDescriptor rnn_;
  DropoutDescriptor dropout_descriptor_;
  Filter weights_;
  std::map<std::array<int, 3>, Tensor> tensors_;
};

}  // namespace

void bind_persistent_rnn(py::module_& module) {
  module.attr("RNN_RELU") = static_cast<int>(PRNN_RNN_RELU);
  module.attr("RNN_TANH") = static_cast<int>(PRNN_RNN_TANH);
  module.attr("LSTM") = static_cast<int>(PRNN_LSTM);
  module.attr("GRU") = static_cast<int>(PRNN_GRU);
  module.attr("SLSTM") = static_cast<int>(PRNN_SLSTM);
  module.attr("SLSTM_EXP") = static_cast<int>(PRNN_SLSTM_EXP);
  module.attr("PERSISTENT_BACKEND") = static_cast<int>(PRNN_PERSISTENT_BACKEND);
  module.attr("CUDNN_BACKEND") = static_cast<int>(PRNN_CUDNN_BACKEND);
  module.attr("ENGINE_MMA") = static_cast<int>(PRNN_ENGINE_MMA);
  module.attr("ENGINE_WGMMA") = static_cast<int>(PRNN_ENGINE_WGMMA);
  module.attr("ENGINE_WGMMA_MULTICAST") = static_cast<int>(PRNN_ENGINE_WGMMA_MULTICAST);
  module.attr("ENGINE_WGMMA_SPLIT_K") = static_cast<int>(PRNN_ENGINE_WGMMA_SPLIT_K);
  module.attr("BEST_BACKEND") = static_cast<int>(PRNN_BEST_BACKEND);
  module.attr("DEFAULT_MATH") = static_cast<int>(PRNN_DEFAULT_MATH);
  module.attr("WGRAD_MODE_SET") = static_cast<int>(PRNN_WGRAD_MODE_SET);
  module.attr("TF32_MATH") = static_cast<int>(PRNN_TENSOR_OP_MATH_ALLOW_CONVERSION);

  module.def("gpu_names", &gpu_names, "The rows of the GPU table.");
  module.def("describe_gpu", &describe_gpu, "The GPU of a handle as a line of src/core/gpu_table.cc.");

  using namespace py::literals;
  module.def("pack_sequences", &pack_sequences, "handle"_a, "batch_sizes"_a, "order"_a, "row_bytes"_a, "padded"_a,
             "step_stride"_a, "sequence_stride"_a, "packed"_a, "Strides in bytes; order None: 0, 1, ...");
  module.def("unpack_sequences", &unpack_sequences, "handle"_a, "batch_sizes"_a, "order"_a, "row_bytes"_a, "packed"_a,
             "padded"_a, "padded_length"_a, "step_stride"_a, "sequence_stride"_a, "The way back, padded with zeros.");

  py::class_<Sequences>(module, "Sequences",
                        "The sequences of a call: so many in each timestep, and how padded data gets there.")
      .def(py::init<BatchSizes>(), "sizes"_a, "Packed, or padded and all of one length.")
      .def(py::init<std::vector<int64_t>, int>(), "lengths"_a, "steps"_a, "Padded data of so many timesteps.")
      .def_static(
          "even", [](int steps, int batch) { return Sequences(BatchSizes(static_cast<size_t>(steps), batch)); },
          "steps"_a, "batch"_a, "Sequences that all have `steps` timesteps.")
      .def("__len__", &Sequences::steps)
      .def("__getitem__",
           [](const Sequences& sequences, int index) {
             const int steps = sequences.steps(), place = index < 0 ? index + steps : index;
             if (place < 0 || place >= steps) throw py::index_error();
             return sequences.sizes[static_cast<size_t>(place)];
           })
      .def_readonly("sizes", &Sequences::sizes)
      .def_property_readonly("rows", &Sequences::rows, "Timesteps of all sequences.")
      .def_property_readonly(
          "order",
          [](const Sequences& sequences) {
            return sequences.order.empty() ? std::nullopt : std::optional<std::vector<int>>(sequences.order);
          },
          "Sequences of padded data from long to short; None: as they lie.")
      .def_property_readonly("batch", &Sequences::batch)
      .def_property_readonly("is_padded", &Sequences::is_padded, "Whether a sequence is shorter than the data.")
      .def_property_readonly("lengths", &Sequences::lengths);
  py::implicitly_convertible<py::list, Sequences>();

  py::class_<Rnn>(module, "Rnn",
                  "A stack of recurrent layers. Data is packed as persistent_rnn.h says, by batch_sizes.")
      .def(py::init<int, int, int, int, int, bool, bool, int, float, int, bool>(), "mode"_a, "dtype"_a, "hidden"_a,
           "layers"_a, "input"_a, "bidirectional"_a, "skip_input"_a = false, "projection"_a = 0, "dropout"_a = 0.0f,
           "heads"_a = 1, "gates_input"_a = false)
      .def("params_size", &Rnn::params_size, "Elements of the packed weights.")
      .def("layer_offsets", &Rnn::layer_offsets, "layer"_a, "direction"_a,
           "Element offsets (input, recurrent, projection, input_bias, recurrent_bias) in the packed weights; -1: "
           "none. A "
           "layer with K heads has K directions for each of a plain one.")
      .def("set_backend", &Rnn::set_backend, "backend"_a)
      .def("set_math", &Rnn::set_math, "math"_a)
      .def("set_wgrad_mode", &Rnn::set_wgrad_mode, "mode"_a)
      .def("set_frozen_layers", &Rnn::set_frozen_layers, "layers"_a)
      .def("set_plan", &Rnn::set_plan, "forward"_a, "backward"_a,
           "Each (engine, units per block, blocks of a cluster, replicas, poll delay in cycles), or None for the "
           "library's own.")
      .def("set_extras", &Rnn::set_extras, "reset"_a, "cells"_a, "dcells"_a, "reset_hx"_a = 0, "reset_cx"_a = 0,
           "dreset_hx"_a = 0, "dreset_cx"_a = 0, "Of the calls and queries that follow.")
      .def("set_masks", &Rnn::set_masks, "recurrent"_a, "zoneout"_a, "zoneout_expectation"_a,
           "Of the calls and queries that follow.")
      .def("set_dropout", &Rnn::set_dropout, "handle"_a, "dropout"_a, "states"_a, "states_size"_a, "seed"_a,
           "Writes the seed to `states`, which must outlive the training calls.")
      .def("restore_dropout", &Rnn::restore_dropout, "handle"_a, "dropout"_a, "states"_a, "states_size"_a,
           "Takes `states`, {seed, calls}, as they are; they must outlive the training calls.")
      .def("workspace_size", &Rnn::workspace_size, "handle"_a, "batch_sizes"_a, "Bytes.")
      .def("reserve_size", &Rnn::reserve_size, "handle"_a, "batch_sizes"_a, "Bytes.")
      .def("temp_space_sizes", &Rnn::temp_space_sizes, "handle"_a, "training"_a, "batch_sizes"_a,
           "(workspace, reserve space) in bytes: of inference, or of a training step.")
      .def("query", &Rnn::query, "handle"_a, "batch"_a,
           "prnnQueryRNNSequence's answer for this many sequences of one length, or so many in each timestep.")
      .def("query_gpu", &Rnn::query_gpu, "gpu"_a, "batch"_a, "The same for a GPU of the table, by name.")
      .def("forward", &Rnn::forward, "handle"_a, "batch_sizes"_a, "x"_a, "hx"_a, "cx"_a, "w"_a, "y"_a, "hy"_a, "cy"_a,
           "workspace"_a, "workspace_size"_a, "reserve"_a, "reserve_size"_a, "Inference where reserve is 0.")
      .def("forward_padded", &Rnn::forward_padded, "handle"_a, "sequences"_a, "x"_a, "step_stride"_a,
           "sequence_stride"_a, "hx"_a, "cx"_a, "w"_a, "y"_a, "hy"_a, "cy"_a, "scratch"_a, "workspace"_a,
           "workspace_size"_a, "reserve"_a, "reserve_size"_a, "Padded data, strides in bytes.")
      .def("backward_padded", &Rnn::backward_padded, "handle"_a, "sequences"_a, "x"_a, "step_stride"_a,
           "sequence_stride"_a, "hx"_a, "cx"_a, "w"_a, "y"_a, "dy"_a, "dy_step_stride"_a, "dy_sequence_stride"_a,
           "dhy"_a, "dcy"_a, "dx"_a, "dhx"_a, "dcx"_a, "initial"_a, "dw"_a, "scratch"_a, "workspace"_a,
           "workspace_size"_a, "reserve"_a, "reserve_size"_a, "Padded data, strides in bytes; dw 0: not wanted.")
      .def("scratch_size", &Rnn::scratch_size, "sequences"_a, "is_backward"_a, "Bytes.")
      .def("padded_spaces", &Rnn::padded_spaces, "handle"_a, "training"_a, "sequences"_a,
           "(scratch, workspace, reserve space) of forward_padded in bytes.")
      .def("backward_data", &Rnn::backward_data, "handle"_a, "batch_sizes"_a, "y"_a, "dy"_a, "dhy"_a, "dcy"_a, "w"_a,
           "hx"_a, "cx"_a, "dx"_a, "dhx"_a, "dcx"_a, "workspace"_a, "workspace_size"_a, "reserve"_a, "reserve_size"_a)
      .def("backward_weights", &Rnn::backward_weights, "handle"_a, "batch_sizes"_a, "x"_a, "hx"_a, "y"_a, "dw"_a,
           "workspace"_a, "workspace_size"_a, "reserve"_a, "reserve_size"_a, "Adds to dw.");
}

}  // namespace prnn_python
