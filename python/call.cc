// Binds prnn_call.h for LSTMs on the input of their gates, normalised or not.
#include "prnn_call.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "errors.h"
#include "handle.h"

namespace py = pybind11;

namespace prnn_python {
namespace {

using Address = uintptr_t;  // of an array; 0 is NULL

// x, hx, cx, w, the members of prnnRNNNorm_t, the masks of zoneout and of the recurrence, and lengths.
using Arrays = std::array<Address, 11>;
// dx, dhx, dcx, dw and the members of prnnRNNNormGradients_t.
using Gradients = std::array<Address, 8>;

// A layer of one direction, and its sizes.
class LayerNormLstm {
 public:
  LayerNormLstm(int dtype, int normalize, int steps, int batch, int hidden, bool reverse, double epsilon,
                double zoneout, bool has_zoneout_mask, bool has_recurrent_mask, bool tf32)
      : normalizes_(normalize != PRNN_NORMALIZE_NONE),
        steps_(steps),
        batch_(batch),
        hidden_(hidden),
        type_(static_cast<prnnDataType_t>(dtype)),
        zoneout_(zoneout) {
    prnnRNNDescriptor_t rnn = nullptr;
    check(prnnCreateRNNDescriptor(&rnn));
    rnn_.reset(rnn);
    check(prnnSetRNNDescriptor(rnn, hidden, 1, nullptr, PRNN_GATES_INPUT, reverse ? PRNN_REVERSE : PRNN_UNIDIRECTIONAL,
                               PRNN_LSTM, type_));
    check(prnnSetRNNNormalization(rnn, static_cast<prnnNormalization_t>(normalize), epsilon));
    check(prnnSetRNNMatrixMathType(rnn, tf32 ? PRNN_TENSOR_OP_MATH_ALLOW_CONVERSION : PRNN_DEFAULT_MATH));
    // Which masks there are; each run gives its own.
    const prnnRNNMasks_t masks = masks_of(has_recurrent_mask, has_zoneout_mask);
    check(prnnSetRNNMasks(rnn, &masks));
  }

  prnnRNNDescriptor_t get() const { return rnn_.get(); }
  bool normalizes() const { return normalizes_; }
  int gates() const { return 4 * hidden_; }
  std::vector<int> batch_sizes() const { return std::vector<int>(static_cast<size_t>(steps_), batch_); }

  // The masks of a run in place of the expectation of zoneout, which a mask has.
  prnnRNNMasks_t masks_of(Address recurrent, Address zoneout) const {
    return {pointer(recurrent), pointer(zoneout), zoneout == 0 ? zoneout_ : 0};
  }

  // The engines forward and backward, the copies of the weights, the blocks of each; and why there are none, or "".
  std::tuple<std::string, std::string, int, int, std::string> query(const Handle& handle,
                                                                    const std::optional<std::string>& gpu) const {
    prnnTensorDescriptor_t input = nullptr;
    check(prnnCreateTensorDescriptor(&input));
    const int dims[] = {batch_, gates(), 1}, strides[] = {gates(), 1, 1};
    prnnRNNInfo_t info{};
    prnnStatus_t status = prnnSetTensorNdDescriptor(input, type_, 3, dims, strides);
    if (status == PRNN_STATUS_SUCCESS) {
      status =
          gpu ? prnnQueryRNNForGPU(gpu->c_str(), get(), input, &info) : prnnQueryRNN(handle.get(), get(), input, &info);
    }
    prnnDestroyTensorDescriptor(input);
    check(status, gpu ? nullptr : handle.get());
    return {info.forwardEngine, info.backwardEngine, info.replicas, info.blocks,
            info.supported != 0 ? "" : info.reason};
  }

 private:
  bool normalizes_;
  int steps_, batch_, hidden_;
  prnnDataType_t type_;
  double zoneout_;
  std::unique_ptr<prnnRNNStruct, decltype(&prnnDestroyRNNDescriptor)> rnn_{nullptr, prnnDestroyRNNDescriptor};
};

// A call of a layer, prepared for inference or for a training step.
class Call {
 public:
  Call(const LayerNormLstm& layer, const Handle& handle, bool training) : layer_(layer), handle_(handle) {
    const prnnForwardMode_t mode = training ? PRNN_FWD_MODE_TRAINING : PRNN_FWD_MODE_INFERENCE;
    const std::vector<int> sizes = layer.batch_sizes();
    prnnRNNCall_t call = nullptr;
    check(prnnPrepareRNN(handle.get(), layer.get(), mode, layer.gates(), static_cast<int>(sizes.size()), sizes.data(),
                         &call),
          handle.get());
    call_.reset(call);
    check(prnnGetRNNCallInfo(call, &info_), handle.get());
  }

  size_t workspace_size() const { return info_.workspaceSize; }
  size_t reserve_size() const { return info_.reserveSize; }

  void forward(const Arrays& a, Address y, Address cy, Address workspace, Address reserve, size_t reserve_size) const {
    const Given given(*this, a);
    prnnRNNForwardArgs_t args{};
    given.fill(&args);
    args.y = pointer(y);
    args.cy = pointer(cy);
    set_spaces(workspace, reserve, reserve_size, &args);
    run(handle_, [&](prnnHandle_t) { return prnnRunRNNForward(call_.get(), &args); });
  }

  void backward(const Arrays& a, Address y, Address dy, Address dcy, const Gradients& d, Address workspace,
                Address reserve, size_t reserve_size) const {
    const Given given(*this, a);
    const prnnRNNNormGradients_t norm{pointer(d[4]), pointer(d[5]), pointer(d[6]), pointer(d[7])};
    prnnRNNBackwardArgs_t args{};
    given.fill(&args);
    args.y = pointer(y);
    args.dy = pointer(dy);
    args.dcy = pointer(dcy);
    args.dx = pointer(d[0]);
    args.dhx = pointer(d[1]);
    args.dcx = pointer(d[2]);
    args.dw = pointer(d[3]);
    args.normGradients = layer_.normalizes() ? &norm : nullptr;
    set_spaces(workspace, reserve, reserve_size, &args);
    run(handle_, [&](prnnHandle_t) { return prnnRunRNNBackward(call_.get(), &args); });
  }

 private:
  // Arrays that both runs read.
  struct Given {
    Given(const Call& call, const Arrays& arrays)
        : a(arrays),
          norm{pointer(a[4]), pointer(a[5]), pointer(a[6]), pointer(a[7])},
          masks(call.layer_.masks_of(a[9], a[8])),
          normalizes(call.layer_.normalizes()) {}

    template <class Args>
    void fill(Args* args) const {
      args->x = pointer(a[0]);
      args->hx = pointer(a[1]);
      args->cx = pointer(a[2]);
      args->w = pointer(a[3]);
      args->norm = normalizes ? &norm : nullptr;
      args->masks = &masks;
      args->lengths = pointer<int>(a[10]);
    }

    const Arrays& a;
    prnnRNNNorm_t norm;
    prnnRNNMasks_t masks;
    bool normalizes;
  };

  template <class Args>
  void set_spaces(Address workspace, Address reserve, size_t reserve_size, Args* args) const {
    args->workspace = pointer(workspace);
    args->workspaceSize = info_.workspaceSize;
    args->reserve = pointer(reserve);
    args->reserveSize = reserve_size;
  }

  const LayerNormLstm& layer_;
  const Handle& handle_;
  std::unique_ptr<prnnRNNCallStruct, decltype(&prnnDestroyRNNCall)> call_{nullptr, prnnDestroyRNNCall};
  prnnRNNCallInfo_t info_{};
};

}  // namespace

void bind_call(py::module_& module) {
  using namespace py::literals;
  module.attr("NORMALIZE_GATES") = static_cast<int>(PRNN_NORMALIZE_GATES);
  module.attr("NORMALIZE_PRODUCTS") = static_cast<int>(PRNN_NORMALIZE_PRODUCTS);
  module.attr("NORMALIZE_NONE") = static_cast<int>(PRNN_NORMALIZE_NONE);
  py::class_<Call>(module, "LayerNormLstmCall", "A prepared call, which takes addresses.")
      .def_property_readonly("workspace_size", &Call::workspace_size, "Bytes.")
      .def_property_readonly("reserve_size", &Call::reserve_size, "Bytes.")
      .def("forward", &Call::forward)
      .def("backward", &Call::backward);
  py::class_<LayerNormLstm>(module, "LayerNormLstm", "An LSTM on the input of its gates, and the sizes of its calls.")
      .def(py::init<int, int, int, int, int, bool, double, double, bool, bool, bool>(), "dtype"_a, "normalize"_a,
           "steps"_a, "batch"_a, "hidden"_a, "reverse"_a, "epsilon"_a, "zoneout"_a, "has_zoneout_mask"_a,
           "has_recurrent_mask"_a, "tf32"_a)
      .def(
          "prepare",
          [](const LayerNormLstm& layer, const Handle& handle, bool training) {
            return std::make_unique<Call>(layer, handle, training);
          },
          "handle"_a, "training"_a, py::keep_alive<0, 1>(), py::keep_alive<0, 2>())
      .def("query", &LayerNormLstm::query, "handle"_a, "gpu"_a,
           "The engines (\"cpu\", \"steps\", \"cluster\", \"grid\") forward and backward, the copies of the weights, "
           "the blocks of each; and why there are none, or \"\".")
      .def("input_forward",
           [](const LayerNormLstm& layer, const Handle& handle, int64_t rows, int64_t input_size, Address input,
              Address weight, Address x) {
             run(handle, [&](prnnHandle_t) {
               return prnnRNNGatesInputForward(handle.get(), layer.get(), rows, input_size, pointer(input),
                                               pointer(weight), pointer(x));
             });
           })
      .def("input_backward", [](const LayerNormLstm& layer, const Handle& handle, int64_t rows, int64_t input_size,
                                Address input, Address weight, Address dx, Address dinput, Address dweight) {
        run(handle, [&](prnnHandle_t library) {
          return prnnRNNGatesInputBackward(library, layer.get(), rows, input_size, pointer(input), pointer(weight),
                                           pointer(dx), pointer(dinput), pointer(dweight));
        });
      });
}

}  // namespace prnn_python
