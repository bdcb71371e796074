// Binds prnn_layer_norm_lstm.h.
#include "prnn_layer_norm_lstm.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "errors.h"
#include "handle.h"

namespace py = pybind11;

namespace prnn_python {
namespace {

using Options = prnnLayerNormLSTMOptions_t;
using Address = uintptr_t;  // of an array; 0 is NULL

// The members of prnnLayerNormLSTMInputs_t and prnnLayerNormLSTMGradients_t in their order.
prnnLayerNormLSTMInputs_t inputs_of(const std::array<Address, 11>& a) {
  return {pointer(a[0]), pointer(a[1]), pointer(a[2]), pointer(a[3]), pointer(a[4]),      pointer(a[5]),
          pointer(a[6]), pointer(a[7]), pointer(a[8]), pointer(a[9]), pointer<int>(a[10])};
}
prnnLayerNormLSTMGradients_t gradients_of(const std::array<Address, 8>& a) {
  return {pointer(a[0]), pointer(a[1]), pointer(a[2]), pointer(a[3]),
          pointer(a[4]), pointer(a[5]), pointer(a[6]), pointer(a[7])};
}

}  // namespace

void bind_layer_norm_lstm(py::module_& module) {
  module.attr("NORMALIZE_GATES") = static_cast<int>(PRNN_NORMALIZE_GATES);
  module.attr("NORMALIZE_PRODUCTS") = static_cast<int>(PRNN_NORMALIZE_PRODUCTS);
  module.attr("NORMALIZE_NONE") = static_cast<int>(PRNN_NORMALIZE_NONE);
  py::class_<Options>(module, "LayerNormLstmOptions", "prnnLayerNormLSTMOptions_t.")
      .def(py::init([](int dtype, int normalize, int64_t steps, int64_t batch, int64_t hidden, bool reverse,
                       double epsilon, double zoneout, bool allow_tf32) {
        return Options{static_cast<prnnDataType_t>(dtype),
                       static_cast<prnnLayerNormLSTMKind_t>(normalize),
                       steps,
                       batch,
                       hidden,
                       reverse,
                       epsilon,
                       zoneout,
                       allow_tf32};
      }));
  module.def(
      "layer_norm_lstm_sizes",
      [](const Handle& handle, const Options& options) {
        std::pair<size_t, size_t> sizes;
        check(prnnGetLayerNormLSTMWorkspaceSize(handle.get(), &options, &sizes.first), handle.get());
        check(prnnGetLayerNormLSTMReserveSize(handle.get(), &options, &sizes.second), handle.get());
        return sizes;
      },
      "Bytes of workspace and of reserve space.");
  module.def(
      "layer_norm_lstm_query",
      [](const Handle& handle, const std::optional<std::string>& gpu, const Options& options) {
        prnnLayerNormLSTMInfo_t info{};
        const char* const name = gpu ? gpu->c_str() : nullptr;
        check(prnnQueryLayerNormLSTM(handle.get(), name, &options, &info), gpu ? nullptr : handle.get());
        const char* const names[] = {"cpu", "steps", "cluster", "grid"};
        return std::make_tuple(names[info.engine], names[info.backwardEngine], info.clusters, info.blocks);
      },
      "The engines (\"cpu\", \"steps\", \"cluster\", \"grid\") forward and backward, the clusters and their blocks.");
  module.def("layer_norm_lstm_forward",
             [](const Handle& handle, const Options& options, const std::array<Address, 11>& arrays, Address y,
                Address cy, Address workspace, size_t workspace_size, Address reserve, size_t reserve_size) {
               const prnnLayerNormLSTMInputs_t inputs = inputs_of(arrays);
               prnnStatus_t status;
               {
                 py::gil_scoped_release release;
                 status = prnnLayerNormLSTMForward(handle.get(), &options, &inputs, pointer(y), pointer(cy),
                                                   pointer(workspace), workspace_size, pointer(reserve), reserve_size);
               }
               check(status, handle.get());
             });
  module.def("layer_norm_lstm_input_forward", [](const Handle& handle, const Options& options, int64_t input_size,
                                                 Address input, Address weight, Address x) {
    prnnStatus_t status;
    {
      py::gil_scoped_release release;
      status = prnnLayerNormLSTMInputForward(handle.get(), &options, input_size, pointer(input), pointer(weight),
                                             pointer(x));
    }
    check(status, handle.get());
  });
  module.def(
      "layer_norm_lstm_input_backward", [](const Handle& handle, const Options& options, int64_t input_size,
                                           Address input, Address weight, Address dx, Address dinput, Address dweight) {
        prnnStatus_t status;
        {
          py::gil_scoped_release release;
          status = prnnLayerNormLSTMInputBackward(handle.get(), &options, input_size, pointer(input), pointer(weight),
                                                  pointer(dx), pointer(dinput), pointer(dweight));
        }
        check(status, handle.get());
      });
  module.def("layer_norm_lstm_backward",
             [](const Handle& handle, const Options& options, const std::array<Address, 11>& arrays, Address y,
                Address dy, Address dcy, const std::array<Address, 8>& outputs, Address workspace,
                size_t workspace_size, Address reserve, size_t reserve_size) {
               const prnnLayerNormLSTMInputs_t inputs = inputs_of(arrays);
               const prnnLayerNormLSTMGradients_t gradients = gradients_of(outputs);
               prnnStatus_t status;
               {
                 py::gil_scoped_release release;
                 status = prnnLayerNormLSTMBackward(handle.get(), &options, &inputs, pointer(y), pointer(dy),
                                                    pointer(dcy), &gradients, pointer(workspace), workspace_size,
                                                    pointer(reserve), reserve_size);
               }
               check(status, handle.get());
             });
}

}  // namespace prnn_python
