// Binds persistent_rnn.h: a recurrent layer or stack as one object that keeps its descriptors.
#include "persistent_rnn.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <climits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "arrays.h"
#include "call.h"
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

// A stack of recurrent layers: what prnnSetRNNDescriptor takes, and the input size. Pointers are integers, 0 is NULL.
class Rnn {
 public:
  // Offsets in elements into the packed weights of a layer's input matrices, recurrent matrices, projection, input
  // biases and recurrent biases; -1 where it has none.
  using Offsets = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>;

  Rnn(int mode, int dtype, int hidden, int layers, int input, bool bidirectional, bool skip_input, int projection,
      float dropout, int heads, bool gates_input, bool reverse, int normalize, double epsilon)
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
        gates_input_(gates_input),
        reverse_(reverse),
        normalize_(normalize),
        epsilon_(epsilon) {
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

  // Sets the extras of the calls and queries that follow, whose addresses run_forward() and run_backward() replace.
  void set_extras(uintptr_t reset, uintptr_t cells, uintptr_t dcells) {
    extras_.reset = static_cast<const unsigned char*>(pointer(reset));
    extras_.cells = pointer(cells);
    extras_.dcells = pointer(dcells);
    check(prnnSetRNNExtras(rnn_.get(), &extras_));
  }

  // Sets the masks of the calls and queries that follow, likewise.
  void set_masks(uintptr_t recurrent, uintptr_t zoneout, double zoneout_expectation) {
    masks_ =
        prnnRNNMasks_t{pointer(recurrent), static_cast<const unsigned char*>(pointer(zoneout)), zoneout_expectation};
    check(prnnSetRNNMasks(rnn_.get(), &masks_));
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
    run(handle, [&, h = h, c = c](prnnHandle_t) {
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

  // Packed data, or padded {timesteps, N, ...}, x with strides in bytes. Padded data is packed into the beginning of
  // `workspace` and unpacked from there; states are sorted on their way.
  void run_forward(const Handle& handle, const Sequences& sequences, uintptr_t x, size_t step_stride,
                   size_t sequence_stride, uintptr_t hx, uintptr_t cx, uintptr_t w, uintptr_t y, uintptr_t hy,
                   uintptr_t cy, uintptr_t cells, uintptr_t workspace, size_t workspace_size, uintptr_t reserve,
                   size_t reserve_size, const std::optional<Options>& options) {
    if (takes_gates()) {
      const prnnRNNForwardArgs_t args{pointer(x),     pointer(hx),      pointer(cx),  pointer(w),
                                      pointer(y),     pointer(hy),      pointer(cy),  pointer(workspace),
                                      workspace_size, pointer(reserve), reserve_size, nullptr,
                                      nullptr,        nullptr,          nullptr};
      return gates_call(handle, reserve != 0, sequences).forward(handle, args, options.value());
    }
    Arrays arrays{handle, sequences, workspace};
    const uintptr_t own_x = arrays.rows(x, row_bytes(input_), step_stride, sequence_stride),
                    own_y = arrays.new_rows(y, row_bytes(output())),
                    own_cells = arrays.new_rows(cells, row_bytes(directions_ * hidden_)),
                    own_hx = arrays.states(hx, h_states()), own_cx = arrays.states(cx, c_states()),
                    own_hy = arrays.new_states(hy, h_states()), own_cy = arrays.new_states(cy, c_states());
    const Restored restored{*this, options.has_value()};
    if (options) use_options(arrays, *options, {hx, cx, 0, 0, own_cells, 0});
    forward(handle, sequences, own_x, own_hx, own_cx, w, own_y, own_hy, own_cy, arrays.end(),
            workspace_size - arrays.size(), reserve, reserve_size);
    arrays.finish();
  }

  // A backward pass over such data; dw 0: without the weights' gradients. dy has strides in bytes, too. initial: the
  // states that these gradients begin with.
  void run_backward(const Handle& handle, const Sequences& sequences, uintptr_t x, size_t step_stride,
                    size_t sequence_stride, uintptr_t hx, uintptr_t cx, uintptr_t w, uintptr_t y, uintptr_t dy,
                    size_t dy_step_stride, size_t dy_sequence_stride, uintptr_t dhy, uintptr_t dcy, uintptr_t dcells,
                    uintptr_t dx, uintptr_t dhx, uintptr_t dcx, uintptr_t initial, uintptr_t dw, uintptr_t workspace,
                    size_t workspace_size, uintptr_t reserve, size_t reserve_size,
                    const std::optional<Options>& options) {
    if (takes_gates()) {
      const prnnRNNBackwardArgs_t args{pointer(x),     pointer(hx),      pointer(cx),  pointer(w),
                                       pointer(y),     pointer(dy),      pointer(dcy), pointer(dx),
                                       pointer(dhx),   pointer(dcx),     pointer(dw),  pointer(workspace),
                                       workspace_size, pointer(reserve), reserve_size, nullptr,
                                       nullptr,        nullptr,          nullptr};
      return gates_call(handle, true, sequences).backward(handle, args, options.value(), hidden_, element_size());
    }
    Arrays arrays{handle, sequences, workspace};
    const size_t x_bytes = row_bytes(input_), y_bytes = row_bytes(output());
    const uintptr_t own_x = arrays.rows(x, x_bytes, step_stride, sequence_stride), own_y = arrays.rows(y, y_bytes),
                    own_dy = arrays.rows(dy, y_bytes, dy_step_stride, dy_sequence_stride),
                    own_dcells = arrays.rows(dcells, row_bytes(directions_ * hidden_)),
                    own_dx = arrays.new_rows(dx, x_bytes);
    const uintptr_t own_hx = arrays.states(hx, h_states()), own_cx = arrays.states(cx, c_states()),
                    own_dhy = arrays.states(dhy, h_states()), own_dcy = arrays.states(dcy, c_states());
    const uintptr_t own_dhx = arrays.new_states(dhx, h_states()), own_dcx = arrays.new_states(dcx, c_states());
    // The backward pass looks at `cells` no further than whether it is NULL.
    const Restored restored{*this, options.has_value()};
    if (options) use_options(arrays, *options, {hx, cx, dhx, dcx, address(extras_.cells), own_dcells});
    const uintptr_t rest = arrays.end();
    const size_t rest_size = workspace_size - arrays.size();
    backward_data(handle, sequences, own_y, own_dy, own_dhy, own_dcy, w, own_hx, own_cx, own_dx, own_dhx, own_dcx, rest,
                  rest_size, reserve, reserve_size);
    if (dw != 0) {
      backward_weights(handle, sequences, own_x, initial == hx ? own_hx : initial, own_y, dw, rest, rest_size, reserve,
                       reserve_size);
    }
    arrays.finish();
  }

  // {workspace, reserve space} of run_forward(), of inference or of a training step.
  std::pair<size_t, size_t> spaces(const Handle& handle, bool training, const Sequences& sequences) {
    if (takes_gates()) {
      const prnnRNNCallInfo_t& info = gates_call(handle, training, sequences).info();
      return {info.workspaceSize, info.reserveSize};
    }
    const auto [workspace, reserve] = temp_space_sizes(handle, training, sequences);
    return {workspace + packed_size(sequences, 1), reserve};
  }

  // Bytes of run_backward()'s workspace. Without the input's gradient, for which it wants room, cuDNN has another.
  size_t backward_space(const Handle& handle, const Sequences& sequences, bool has_dcells, bool has_dx) {
    if (takes_gates()) return spaces(handle, true, sequences).first;
    prnnRNNExtras_t extras = extras_;
    if (has_dcells) extras.dcells = pointer(1);
    check(prnnSetRNNExtras(rnn_.get(), &extras));
    const bool is_cudnn = backend_ == PRNN_CUDNN_BACKEND && !has_dx;
    const size_t workspace =
        is_cudnn ? workspace_size(handle, sequences) : temp_space_sizes(handle, true, sequences).first;
    check(prnnSetRNNExtras(rnn_.get(), &extras_));
    return workspace + packed_size(sequences, 2);
  }

  // The products of the input of an LSTM on the input of its gates.
  void gates_input_forward(const Handle& handle, int64_t rows, int64_t input_size, uintptr_t input, uintptr_t weight,
                           uintptr_t x) const {
    run(handle, [&](prnnHandle_t library) {
      return prnnRNNGatesInputForward(library, rnn_.get(), rows, input_size, pointer(input), pointer(weight),
                                      pointer(x));
    });
  }
  void gates_input_backward(const Handle& handle, int64_t rows, int64_t input_size, uintptr_t input, uintptr_t weight,
                            uintptr_t dx, uintptr_t dinput, uintptr_t dweight) const {
    run(handle, [&](prnnHandle_t library) {
      return prnnRNNGatesInputBackward(library, rnn_.get(), rows, input_size, pointer(input), pointer(weight),
                                       pointer(dx), pointer(dinput), pointer(dweight));
    });
  }

  void backward_data(const Handle& handle, const Sequences& sequences, uintptr_t y, uintptr_t dy, uintptr_t dhy,
                     uintptr_t dcy, uintptr_t w, uintptr_t hx, uintptr_t cx, uintptr_t dx, uintptr_t dhx, uintptr_t dcx,
                     uintptr_t workspace, size_t workspace_size, uintptr_t reserve, size_t reserve_size) {
    const Descriptors xs = sequence(sequences.sizes, input_);
    const Descriptors ys = sequence(sequences.sizes, output());
    const auto [h, c] = states(sequences.sizes);
    const int steps = sequences.steps();
    run(handle, [&, h = h, c = c](prnnHandle_t) {
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
    run(handle, [&](prnnHandle_t) {
      return prnnRNNBackwardWeights(handle.get(), rnn_.get(), steps, xs.data(), pointer(x), h, pointer(hx), ys.data(),
                                    pointer(y), pointer(workspace), workspace_size, weights_.get(), pointer(dw),
                                    pointer(reserve), reserve_size);
    });
  }

 private:
  // Bytes that Arrays takes of a buffer, at most. passes: 1 of a forward pass, 2 of a backward pass, which has the
  // gradients of most arrays, too.
  size_t packed_size(const Sequences& sequences, int passes) const {
    if (!sequences.is_padded()) return 0;
    const size_t rows = static_cast<size_t>(sequences.rows()), times = static_cast<size_t>(passes);
    const auto of_rows = [&](size_t row) { return Arrays::whole(rows * row); };
    const auto of_states = [&](const States& states) {
      if (sequences.order.empty()) return size_t{0};
      return Arrays::whole(static_cast<size_t>(states.count) * static_cast<size_t>(sequences.batch()) * states.row);
    };
    const size_t states = of_states(h_states()) + of_states(c_states());
    size_t size = times * (of_rows(row_bytes(input_)) + of_rows(row_bytes(output()))) + (times + 1) * states;
    if (extras_.reset != nullptr) size += of_rows(1) + times * states;
    if (extras_.cells != nullptr) size += of_rows(row_bytes(directions_ * hidden_));
    if (masks_.zoneout != nullptr && passes == 1) size += of_rows(zoneout_row());
    if (masks_.recurrent != nullptr) size += of_states(mask_states());
    return size;
  }

  // Arrays of a call with options as its caller has them, but for those of cells.
  struct Optional {
    uintptr_t hx, cx, dhx, dcx, cells, dcells;
  };

  void use_options(Arrays& arrays, const Options& options, const Optional& given) {
    const uintptr_t zoneout = options.at(kZoneout);
    // The second halves of states.
    const auto at_reset = [&](uintptr_t is_given, uintptr_t array, const States& states, bool is_new) {
      if (is_given == 0 || array == 0) return static_cast<void*>(nullptr);
      const uintptr_t second = array + arrays.bytes_of(states);
      return pointer(is_new ? arrays.new_states(second, states) : arrays.states(second, states));
    };
    const prnnRNNExtras_t extras{static_cast<const unsigned char*>(pointer(arrays.rows(options.at(kReset), 1))),
                                 pointer(given.cells),
                                 pointer(given.dcells),
                                 at_reset(options.at(kHxAtReset), given.hx, h_states(), false),
                                 at_reset(options.at(kCxAtReset), given.cx, c_states(), false),
                                 at_reset(options.at(kHxAtReset), given.dhx, h_states(), true),
                                 at_reset(options.at(kCxAtReset), given.dcx, c_states(), true)};
    check(prnnSetRNNExtras(rnn_.get(), &extras));
    prnnRNNMasks_t masks = masks_;
    masks.recurrent = pointer(arrays.states(options.at(kRecurrent), mask_states()));
    // A backward pass, which has no mask of zoneout, looks no further than whether it is NULL.
    if (zoneout != 0) masks.zoneout = static_cast<const unsigned char*>(pointer(arrays.rows(zoneout, zoneout_row())));
    check(prnnSetRNNMasks(rnn_.get(), &masks));
  }

  // Takes back what use_options() sets: sizes depend on what is NULL.
  struct Restored {
    ~Restored() {
      if (!is_used) return;
      prnnSetRNNExtras(rnn.rnn_.get(), &rnn.extras_);
      prnnSetRNNMasks(rnn.rnn_.get(), &rnn.masks_);
    }
    const Rnn& rnn;
    bool is_used;
  };

  bool takes_gates() const { return gates_input_ && mode_ == PRNN_LSTM; }

  // The prepared call of an LSTM on the input of its gates. Nothing but the precision changes between such calls.
  const GatesCall& gates_call(const Handle& handle, bool training, const Sequences& sequences) {
    constexpr size_t kMost = 256;
    if (gates_calls_.size() >= kMost) gates_calls_.clear();
    const GatesKey key{handle.get(), training, sequences.steps(), sequences.batch(), math_};
    const auto found = gates_calls_.find(key);
    if (found != gates_calls_.end()) return found->second;
    GatesCall call(handle, rnn_.get(), training, input_, sequences.steps(), sequences.batch(),
                   masks_.zoneoutExpectation);
    return gates_calls_.emplace(key, std::move(call)).first->second;
  }

  static uintptr_t address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

  States h_states() const { return {layers_ * recurrences(), row_bytes(output() / recurrences())}; }
  // c; an sLSTM's c, n and m.
  States c_states() const { return {layers_ * recurrences() * (is_slstm() ? 3 : 1), row_bytes(hidden_ / heads_)}; }
  States mask_states() const { return {layers_ * recurrences(), row_bytes(hidden_ / heads_)}; }
  size_t zoneout_row() const { return static_cast<size_t>(layers_ * directions_) * static_cast<size_t>(hidden_); }

  size_t row_bytes(int width) const { return static_cast<size_t>(width) * element_size(); }

  // Sets the RNN descriptor, which takes back what the other functions set.
  void configure(prnnDropoutDescriptor_t dropout) {
    const prnnRNNInputMode_t input_mode = gates_input_  ? PRNN_GATES_INPUT
                                          : skip_input_ ? PRNN_SKIP_INPUT
                                                        : PRNN_LINEAR_INPUT;
    check(prnnSetRNNDescriptor(rnn_.get(), hidden_, layers_, dropout, input_mode,
                               reverse_           ? PRNN_REVERSE
                               : directions_ == 2 ? PRNN_BIDIRECTIONAL
                                                  : PRNN_UNIDIRECTIONAL,
                               static_cast<prnnRNNMode_t>(mode_), static_cast<prnnDataType_t>(type_)));
    check(prnnSetRNNProjectionSize(rnn_.get(), projection_));
    check(prnnSetRNNHeads(rnn_.get(), heads_));
    check(prnnSetRNNBackend(rnn_.get(), static_cast<prnnRNNBackend_t>(backend_)));
    check(prnnSetRNNMatrixMathType(rnn_.get(), static_cast<prnnMathType_t>(math_)));
    check(prnnSetRNNWgradMode(rnn_.get(), static_cast<prnnWgradMode_t>(wgrad_mode_)));
    check(prnnSetRNNFrozenLayers(rnn_.get(), frozen_layers_));
    check(prnnSetRNNNormalization(rnn_.get(), static_cast<prnnNormalization_t>(normalize_), epsilon_));
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

  // Enumerations as integers: they are the caller's, and an enumeration may not hold what is none of its values.
  int mode_, type_;
  int hidden_, layers_, input_, directions_;
  bool skip_input_;
  int projection_;
  float dropout_;
  int heads_;
  bool gates_input_, reverse_;
  int normalize_;
  double epsilon_;
  bool has_dropout_ = false;
  int backend_ = PRNN_BEST_BACKEND;
  int math_ = PRNN_DEFAULT_MATH;
  int wgrad_mode_ = PRNN_WGRAD_MODE_ADD;
  int frozen_layers_ = 0;
  int64_t params_size_ = 0;
  prnnRNNExtras_t extras_{};
  prnnRNNMasks_t masks_{};
  RnnDescriptor rnn_;
  DropoutDescriptor dropout_descriptor_;
  Filter weights_;
  std::map<std::array<int, 3>, Tensor> tensors_;
  using GatesKey = std::tuple<prnnHandle_t, bool, int, int, int>;
  std::map<GatesKey, GatesCall> gates_calls_;  // by handle, training, timesteps, sequences and precision
};

}  // namespace

void bind_persistent_rnn(py::module_& module) {
  using namespace py::literals;
  py::class_<Rnn>(module, "Rnn",
                  "A stack of recurrent layers. Data is packed as persistent_rnn.h says, by batch_sizes.")
      .def(py::init<int, int, int, int, int, bool, bool, int, float, int, bool, bool, int, double>(), "mode"_a,
           "dtype"_a, "hidden"_a, "layers"_a, "input"_a, "bidirectional"_a, "skip_input"_a = false, "projection"_a = 0,
           "dropout"_a = 0.0f, "heads"_a = 1, "gates_input"_a = false, "reverse"_a = false,
           "normalize"_a = static_cast<int>(PRNN_NORMALIZE_NONE), "epsilon"_a = 0.0)
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
      .def("set_extras", &Rnn::set_extras, "reset"_a, "cells"_a, "dcells"_a, "Of the calls and queries that follow.")
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
      .def("run_forward", &Rnn::run_forward, "handle"_a, "sequences"_a, "x"_a, "step_stride"_a, "sequence_stride"_a,
           "hx"_a, "cx"_a, "w"_a, "y"_a, "hy"_a, "cy"_a, "cells"_a, "workspace"_a, "workspace_size"_a, "reserve"_a,
           "reserve_size"_a, "options"_a, "Packed data, or padded, with strides in bytes.")
      .def("run_backward", &Rnn::run_backward, "handle"_a, "sequences"_a, "x"_a, "step_stride"_a, "sequence_stride"_a,
           "hx"_a, "cx"_a, "w"_a, "y"_a, "dy"_a, "dy_step_stride"_a, "dy_sequence_stride"_a, "dhy"_a, "dcy"_a,
           "dcells"_a, "dx"_a, "dhx"_a, "dcx"_a, "initial"_a, "dw"_a, "workspace"_a, "workspace_size"_a, "reserve"_a,
           "reserve_size"_a, "options"_a, "Likewise; dw 0: not wanted.")
      .def("spaces", &Rnn::spaces, "handle"_a, "training"_a, "sequences"_a,
           "(workspace, reserve space) of run_forward in bytes.")
      .def("backward_space", &Rnn::backward_space, "handle"_a, "sequences"_a, "has_dcells"_a, "has_dx"_a,
           "The workspace of run_backward in bytes.")
      .def("gates_input_forward", &Rnn::gates_input_forward, "handle"_a, "rows"_a, "input_size"_a, "input"_a,
           "weight"_a, "x"_a)
      .def("gates_input_backward", &Rnn::gates_input_backward, "handle"_a, "rows"_a, "input_size"_a, "input"_a,
           "weight"_a, "dx"_a, "dinput"_a, "dweight"_a)
      .def("backward_data", &Rnn::backward_data, "handle"_a, "batch_sizes"_a, "y"_a, "dy"_a, "dhy"_a, "dcy"_a, "w"_a,
           "hx"_a, "cx"_a, "dx"_a, "dhx"_a, "dcx"_a, "workspace"_a, "workspace_size"_a, "reserve"_a, "reserve_size"_a)
      .def("backward_weights", &Rnn::backward_weights, "handle"_a, "batch_sizes"_a, "x"_a, "hx"_a, "y"_a, "dw"_a,
           "workspace"_a, "workspace_size"_a, "reserve"_a, "reserve_size"_a, "Adds to dw.");
}

}  // namespace prnn_python
