// Binds prnn_call.h for LSTMs on the input of their gates, normalised or not.
#include "call.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <vector>

#include "errors.h"

namespace py = pybind11;

namespace prnn_python {

GatesCall::GatesCall(const Handle& handle, prnnRNNDescriptor_t rnn, bool training, int input, int steps, int batch,
                     bool normalizes, double zoneout)
    : handle_(handle), normalizes_(normalizes), zoneout_(zoneout) {
  const prnnForwardMode_t mode = training ? PRNN_FWD_MODE_TRAINING : PRNN_FWD_MODE_INFERENCE;
  const std::vector<int> sizes(static_cast<size_t>(steps), batch);
  prnnRNNCall_t call = nullptr;
  check(prnnPrepareRNN(handle.get(), rnn, mode, input, steps, sizes.data(), &call), handle.get());
  call_.reset(call);
  check(prnnGetRNNCallInfo(call, &info_), handle.get());
}

// Arrays that both runs read.
struct GatesCall::Given {
  Given(const GatesCall& call, const Arrays& arrays)
      : a(arrays),
        norm{pointer(a[4]), pointer(a[5]), pointer(a[6]), pointer(a[7])},
        masks{pointer(a[9]), pointer(a[8]), a[8] == 0 ? call.zoneout_ : 0},
        normalizes(call.normalizes_) {}

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

void GatesCall::forward(const Arrays& arrays, Address y, Address cy, Address workspace, Address reserve,
                        size_t reserve_size) const {
  const Given given(*this, arrays);
  prnnRNNForwardArgs_t args{};
  given.fill(&args);
  args.y = pointer(y);
  args.cy = pointer(cy);
  set_spaces(workspace, reserve, reserve_size, &args);
  run(handle_, [&](prnnHandle_t) { return prnnRunRNNForward(call_.get(), &args); });
}

void GatesCall::backward(const Arrays& arrays, Address y, Address dy, Address dcy, const Gradients& gradients,
                         Address workspace, Address reserve, size_t reserve_size) const {
  const Given given(*this, arrays);
  const Gradients& d = gradients;
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
  args.normGradients = normalizes_ ? &norm : nullptr;
  set_spaces(workspace, reserve, reserve_size, &args);
  run(handle_, [&](prnnHandle_t) { return prnnRunRNNBackward(call_.get(), &args); });
}

template <class Args>
void GatesCall::set_spaces(Address workspace, Address reserve, size_t reserve_size, Args* args) const {
  args->workspace = pointer(workspace);
  args->workspaceSize = info_.workspaceSize;
  args->reserve = pointer(reserve);
  args->reserveSize = reserve_size;
}

void bind_call(py::module_& module) {
  using namespace py::literals;
  module.attr("NORMALIZE_GATES") = static_cast<int>(PRNN_NORMALIZE_GATES);
  module.attr("NORMALIZE_PRODUCTS") = static_cast<int>(PRNN_NORMALIZE_PRODUCTS);
  module.attr("NORMALIZE_NONE") = static_cast<int>(PRNN_NORMALIZE_NONE);
  module.def("canonical_length", &prnnGetRNNCanonicalLength, "length"_a,
             "The least number of timesteps of which the library decides everything as for `length`.");
  py::class_<GatesCall>(module, "GatesCall",
                        "A prepared call of an LSTM on the input of its gates, which takes addresses.")
      .def_property_readonly("workspace_size", &GatesCall::workspace_size, "Bytes.")
      .def_property_readonly("reserve_size", &GatesCall::reserve_size, "Bytes.")
      .def("forward", &GatesCall::forward)
      .def("backward", &GatesCall::backward);
}

}  // namespace prnn_python
