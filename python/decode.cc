// Binds prnn_decode.h.
#include "prnn_decode.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "errors.h"
#include "handle.h"

namespace py = pybind11;

namespace prnn_python {
namespace {

using Model = prnnTransducerModel_t;
using Address = uintptr_t;                            // of an array; 0 is NULL
using Sizes = std::tuple<int64_t, int64_t, int64_t>;  // the members of prnnTransducerSearchOptions_t

prnnTransducerSearchOptions_t options_of(const Sizes& sizes) {
  return {std::get<0>(sizes), std::get<1>(sizes), std::get<2>(sizes)};
}

// layers: of each the input's weight, the recurrent one, and their biases. others: the other members in their order.
prnnTransducerWeights_t weights_of(const std::array<Address, 7>& others,
                                   const std::vector<std::array<Address, 4>>& layers) {
  prnnTransducerWeights_t weights{};
  weights.encoderWeight = pointer(others[0]);
  weights.encoderBias = pointer(others[1]);
  weights.embedding = pointer(others[2]);
  weights.predictorWeight = pointer(others[3]);
  weights.predictorBias = pointer(others[4]);
  weights.outputWeight = pointer(others[5]);
  weights.outputBias = pointer(others[6]);
  for (size_t i = 0; i < std::min<size_t>(layers.size(), PRNN_MAX_PREDICTOR_LAYERS); ++i) {
    weights.inputWeights[i] = pointer(layers[i][0]);
    weights.recurrentWeights[i] = pointer(layers[i][1]);
    weights.inputBiases[i] = pointer(layers[i][2]);
    weights.recurrentBiases[i] = pointer(layers[i][3]);
  }
  return weights;
}

// The members of prnnTransducerState_t and prnnTransducerOutputs_t in their order.
prnnTransducerState_t state_of(const std::array<Address, 7>& a) {
  return {pointer<int>(a[0]), pointer<int>(a[1]), pointer(a[2]),        pointer(a[3]),
          pointer<int>(a[4]), pointer<int>(a[5]), pointer<double>(a[6])};
}
prnnTransducerOutputs_t outputs_of(const std::array<Address, 7>& a) {
  return {pointer<int>(a[0]), pointer<int>(a[1]), pointer<int>(a[2]),   pointer<int>(a[3]),
          pointer(a[4]),      pointer(a[5]),      pointer<double>(a[6])};
}

// The members of prnnTransducerBeamOptions_t, prnnTransducerBeamState_t and prnnTransducerBeamOutputs_t in their order.
using BeamSizes = std::tuple<int64_t, int64_t, int64_t, int64_t, int>;
prnnTransducerBeamOptions_t beam_options_of(const BeamSizes& sizes) {
  return {std::get<0>(sizes), std::get<1>(sizes), std::get<2>(sizes), std::get<3>(sizes),
          static_cast<prnnTransducerBeamMode_t>(std::get<4>(sizes))};
}
prnnTransducerBeamState_t beam_state_of(const std::array<Address, 8>& a) {
  return {pointer<int>(a[0]), pointer<int>(a[1]), pointer(a[2]),         pointer(a[3]),
          pointer<int>(a[4]), pointer<int>(a[5]), pointer<double>(a[6]), pointer<uint64_t>(a[7])};
}
prnnTransducerBeamOutputs_t beam_outputs_of(const std::array<Address, 6>& a) {
  return {pointer<int>(a[0]), pointer<int>(a[1]), pointer<int>(a[2]),
          pointer<int>(a[3]), pointer(a[4]),      pointer<double>(a[5])};
}

prnnTransducerBias_t bias_of(const std::optional<std::tuple<int64_t, Address, Address>>& bias) {
  if (!bias) return {};
  return {std::get<0>(*bias), pointer<int>(std::get<1>(*bias)), pointer(std::get<2>(*bias))};
}

}  // namespace

void bind_decode(py::module_& module) {
  module.attr("PREDICTOR_STATELESS") = static_cast<int>(PRNN_PREDICTOR_STATELESS);
  module.attr("PREDICTOR_LSTM") = static_cast<int>(PRNN_PREDICTOR_LSTM);
  module.attr("PREDICTOR_GRU") = static_cast<int>(PRNN_PREDICTOR_GRU);
  py::class_<Model>(module, "TransducerModel", "prnnTransducerModel_t.")
      .def(py::init([](int dtype, int predictor, int64_t layers, int64_t context, bool predictor_relu,
                       int64_t embedding, int64_t hidden, int64_t encoder, int64_t joiner, bool relu, int64_t classes,
                       int64_t blank, const std::vector<int>& durations) {
        Model model{};
        model.dataType = static_cast<prnnDataType_t>(dtype);
        model.predictor = static_cast<prnnPredictorKind_t>(predictor);
        model.layers = layers;
        model.context = context;
        model.predictorRelu = predictor_relu;
        model.embeddingSize = embedding;
        model.hiddenSize = hidden;
        model.encoderSize = encoder;
        model.joinerSize = joiner;
        model.activation = relu ? PRNN_JOINT_RELU : PRNN_JOINT_TANH;
        model.classes = classes;
        model.blank = blank;
        model.durationCount = static_cast<int64_t>(durations.size());
        std::copy_n(durations.begin(), std::min<size_t>(durations.size(), PRNN_MAX_DURATIONS), model.durations);
        return model;
      }));
  module.def("transducer_prepared_size", [](const Handle& handle, const Model& model) {
    size_t size = 0;
    check(prnnGetTransducerPreparedSize(handle.get(), &model, &size), handle.get());
    return size;
  });
  module.def("transducer_prepare",
             [](const Handle& handle, const Model& model, const std::array<Address, 7>& others,
                const std::vector<std::array<Address, 4>>& layers, Address prepared, size_t size) {
               const prnnTransducerWeights_t weights = weights_of(others, layers);
               run(handle, [&](prnnHandle_t library) {
                 return prnnPrepareTransducer(library, &model, &weights, pointer(prepared), size);
               });
             });
  module.def("transducer_workspace_size", [](const Handle& handle, const Model& model, const Sizes& sizes) {
    const prnnTransducerSearchOptions_t options = options_of(sizes);
    size_t size = 0;
    check(prnnGetTransducerSearchWorkspaceSize(handle.get(), &model, &options, &size), handle.get());
    return size;
  });
  module.def("transducer_search",
             [](const Handle& handle, const Model& model, Address prepared, const Sizes& sizes, Address frames,
                Address lengths, const std::optional<std::tuple<int64_t, Address, Address>>& bias,
                const std::optional<std::array<Address, 7>>& state, const std::array<Address, 7>& outputs,
                Address workspace, size_t workspace_size) {
               const prnnTransducerSearchOptions_t options = options_of(sizes);
               const prnnTransducerBias_t scores = bias_of(bias);
               const prnnTransducerInputs_t inputs{pointer(frames), pointer<int>(lengths), bias ? &scores : nullptr};
               const prnnTransducerState_t states = state ? state_of(*state) : prnnTransducerState_t{};
               const prnnTransducerOutputs_t found = outputs_of(outputs);
               run(handle, [&](prnnHandle_t library) {
                 return prnnTransducerSearch(library, &model, pointer(prepared), &options, &inputs,
                                             state ? &states : nullptr, &found, pointer(workspace), workspace_size);
               });
             });
  module.attr("BEAM_MODIFIED") = static_cast<int>(PRNN_BEAM_MODIFIED);
  module.attr("BEAM_STANDARD") = static_cast<int>(PRNN_BEAM_STANDARD);
  module.def("transducer_beam_workspace_size", [](const Handle& handle, const Model& model, const BeamSizes& sizes) {
    const prnnTransducerBeamOptions_t options = beam_options_of(sizes);
    size_t size = 0;
    check(prnnGetTransducerBeamSearchWorkspaceSize(handle.get(), &model, &options, &size), handle.get());
    return size;
  });
  module.def("transducer_beam_search",
             [](const Handle& handle, const Model& model, Address prepared, const BeamSizes& sizes, Address frames,
                Address lengths, const std::optional<std::tuple<int64_t, Address, Address>>& bias,
                const std::optional<std::array<Address, 8>>& state, const std::array<Address, 6>& outputs,
                Address workspace, size_t workspace_size) {
               const prnnTransducerBeamOptions_t options = beam_options_of(sizes);
               const prnnTransducerBias_t scores = bias_of(bias);
               const prnnTransducerInputs_t inputs{pointer(frames), pointer<int>(lengths), bias ? &scores : nullptr};
               const prnnTransducerBeamState_t states = state ? beam_state_of(*state) : prnnTransducerBeamState_t{};
               const prnnTransducerBeamOutputs_t found = beam_outputs_of(outputs);
               run(handle, [&](prnnHandle_t library) {
                 return prnnTransducerBeamSearch(library, &model, pointer(prepared), &options, &inputs,
                                                 state ? &states : nullptr, &found, pointer(workspace), workspace_size);
               });
             });
  py::class_<prnnStreamLayers_t>(module, "StreamLayers", "prnnStreamLayers_t.")
      .def(py::init([](int dtype, int mode, int64_t layers, int64_t input, int64_t hidden, int64_t projection) {
        return prnnStreamLayers_t{
            static_cast<prnnDataType_t>(dtype), static_cast<prnnRNNMode_t>(mode), layers, input, hidden, projection};
      }));
  module.def("stream_layers_prepared_size", [](const Handle& handle, const prnnStreamLayers_t& layers) {
    size_t size = 0;
    check(prnnGetStreamLayersPreparedSize(handle.get(), &layers, &size), handle.get());
    return size;
  });
  module.def(
      "stream_layers_prepare", [](const Handle& handle, const prnnStreamLayers_t& layers,
                                  const std::vector<std::array<Address, 5>>& addresses, Address prepared, size_t size) {
        if (static_cast<int64_t>(addresses.size()) != layers.layers)
          throw py::value_error("weights must be those of every layer");
        std::vector<prnnStreamLayerWeights_t> weights;
        for (const auto& a : addresses) {
          weights.push_back({pointer(a[0]), pointer(a[1]), pointer(a[2]), pointer(a[3]), pointer(a[4])});
        }
        check(prnnPrepareStreamLayers(handle.get(), &layers, weights.data(), pointer(prepared), size), handle.get());
      });
  module.def("stream_layers_workspace_size",
             [](const Handle& handle, const prnnStreamLayers_t& layers, int64_t batch, int64_t frames) {
               size_t size = 0;
               check(prnnGetStreamLayersWorkspaceSize(handle.get(), &layers, batch, frames, &size), handle.get());
               return size;
             });
  // arrays: x, lengths, slots, h, c and y.
  module.def("stream_layers_run",
             [](const Handle& handle, const prnnStreamLayers_t& layers, Address prepared, int64_t batch, int64_t frames,
                const std::array<Address, 6>& a, Address workspace, size_t size) {
               run(handle, [&](prnnHandle_t library) {
                 return prnnRunStreamLayers(library, &layers, pointer(prepared), batch, frames, pointer(a[0]),
                                            pointer<int>(a[1]), pointer<int>(a[2]), pointer(a[3]), pointer(a[4]),
                                            pointer(a[5]), pointer(workspace), size);
               });
             });
}

}  // namespace prnn_python
