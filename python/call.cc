// Runs prepared calls of prnn_call.h for persistent_rnn.cc, and binds its constants.
#include "call.h"

#include <pybind11/pybind11.h>

#include "errors.h"

namespace py = pybind11;

namespace prnn_python {
namespace {

// Options as the forward and the backward run take them.
struct Given {
  Given(const Options& options, double zoneout_expectation) {
    const uintptr_t zoneout = options.at(kZoneout);
    masks = {pointer(options.at(kRecurrent)), pointer<const unsigned char>(zoneout),
             zoneout == 0 ? zoneout_expectation : 0};
    normalizes = options.size() > kNorm;
    if (normalizes) {
      const auto of_norm = [&](size_t place) { return pointer(options.at(kNorm + place)); };
      norm = {of_norm(0), of_norm(1), of_norm(2), of_norm(3)};
    }
    lengths = pointer<const int>(options.at(kLengths));
  }

  template <class Args>
  void fill(Args* args) const {
    args->norm = normalizes ? &norm : nullptr;
    args->masks = &masks;
    args->lengths = lengths;
  }

  prnnRNNNorm_t norm{};
  prnnRNNMasks_t masks{};
  const int* lengths;
  bool normalizes;
};

}  // namespace

GatesCall::GatesCall(const Handle& handle, prnnRNNDescriptor_t rnn, bool training, int input, int steps, int batch,
                     double zoneout)
    : zoneout_(zoneout) {
  const prnnForwardMode_t mode = training ? PRNN_FWD_MODE_TRAINING : PRNN_FWD_MODE_INFERENCE;
  const std::vector<int> sizes(static_cast<size_t>(steps), batch);
  prnnRNNCall_t call = nullptr;
  check(prnnPrepareRNN(handle.get(), rnn, mode, input, steps, sizes.data(), &call), handle.get());
  call_.reset(call);
  check(prnnGetRNNCallInfo(call, &info_), handle.get());
}

void GatesCall::forward(const Handle& handle, prnnRNNForwardArgs_t args, const Options& options) const {
  const Given given(options, zoneout_);
  given.fill(&args);
  run(handle, [&](prnnHandle_t) { return prnnRunRNNForward(call_.get(), &args); });
}

void GatesCall::backward(const Handle& handle, prnnRNNBackwardArgs_t args, const Options& options, int hidden,
                         size_t element_size) const {
  const Given given(options, zoneout_);
  given.fill(&args);
  prnnRNNNormGradients_t norm{};
  if (given.normalizes && args.dw != nullptr) {
    const size_t units = static_cast<size_t>(hidden), row = units * element_size;
    char* const behind = static_cast<char*>(args.dw) + 4 * units * row;
    norm = {behind, behind + 4 * row, behind + 8 * row, behind + 9 * row};
  }
  if (given.normalizes) args.normGradients = &norm;
  run(handle, [&](prnnHandle_t) { return prnnRunRNNBackward(call_.get(), &args); });
}

void bind_call(py::module_& module) {
  using namespace py::literals;
  module.attr("NORMALIZE_GATES") = static_cast<int>(PRNN_NORMALIZE_GATES);
  module.attr("NORMALIZE_PRODUCTS") = static_cast<int>(PRNN_NORMALIZE_PRODUCTS);
  module.attr("NORMALIZE_NONE") = static_cast<int>(PRNN_NORMALIZE_NONE);
  module.def("canonical_length", &prnnGetRNNCanonicalLength, "length"_a,
             "The least number of timesteps of which the library decides everything as for `length`.");
}

}  // namespace prnn_python
