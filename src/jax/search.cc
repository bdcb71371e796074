// The handler of greedy search, prnnJaxTransducerSearch: it prepares the model and searches in one call.
//
// Inputs: frames {N, T, E}, lengths {N}; the encoder's weight {J, E} and bias, embeddings, the weight {J, H} and bias
// of the predictor's projection, the output's weight {V + D, J} and bias; then for each layer of the predictor, of
// PRNN_MAX_PREDICTOR_LAYERS, input weight, recurrent weight, input bias and recurrent bias. Results: symbols, frames,
// durations, log-probabilities and confidences {N, L}, counts and scores {N}, the prepared model and workspace. Without
// elements may be: the encoder's weight, biases, layers that the predictor has not, durations.
#include "handler.h"
#include "prnn_decode.h"

namespace prnn_jax {
namespace {

prnnTransducerModel_t model_of(const Attributes& given, const Array& frames, const Array& embedding,
                               const Array& projection, const Array& output) {
  prnnTransducerModel_t model;
  check(prnnInitTransducerModel(&model));
  model.dataType = type_of(frames);
  model.predictor = static_cast<prnnPredictorKind_t>(attribute<int64_t>(given, "predictor"));
  model.layers = attribute<int64_t>(given, "layers");
  model.context = attribute<int64_t>(given, "context");
  model.embeddingSize = dimension_from_end(embedding, 1);
  model.hiddenSize = dimension_from_end(projection, 1);
  model.encoderSize = dimension_from_end(frames, 1);
  model.joinerSize = dimension_from_end(projection, 2);
  model.activation = static_cast<prnnJointActivation_t>(attribute<int64_t>(given, "activation"));
  set_durations(given, &model);
  model.classes = dimension_from_end(output, 2) - model.durationCount;
  model.blank = attribute<int64_t>(given, "blank");
  return model;
}

void run_search(prnnHandle_t handle, Attributes given, Array frames, Array lengths, Array encoder_weight,
                Array encoder_bias, Array embedding, Array projection, Array projection_bias, Array output,
                Array output_bias, Array input_weight0, Array recurrent_weight0, Array input_bias0,
                Array recurrent_bias0, Array input_weight1, Array recurrent_weight1, Array input_bias1,
                Array recurrent_bias1, Result symbols, Result stamps, Result durations, Result log_probs,
                Result confidences, Result counts, Result scores, Result prepared, Result workspace) {
  static_assert(PRNN_MAX_PREDICTOR_LAYERS == 2, "the handler has the weights of so many layers");
  const prnnTransducerModel_t model = model_of(given, frames, embedding, projection, output);
  const prnnTransducerWeights_t weights{
      data(encoder_weight),
      data(encoder_bias),
      data(embedding),
      {data(input_weight0), data(input_weight1)},
      {data(recurrent_weight0), data(recurrent_weight1)},
      {data(input_bias0), data(input_bias1)},
      {data(recurrent_bias0), data(recurrent_bias1)},
      data(projection),
      data(projection_bias),
      data(output),
      data(output_bias),
  };
  const Space model_space = space(prepared), work = space(workspace);
  check(prnnPrepareTransducer(handle, &model, &weights, model_space.data, model_space.bytes), handle);
  const prnnTransducerSearchOptions_t options{dimension_from_end(frames, 3), dimension_from_end(frames, 2),
                                              attribute<int64_t>(given, "max_symbols")};
  const prnnTransducerInputs_t inputs{data(frames), static_cast<const int*>(data(lengths)), nullptr};
  const prnnTransducerOutputs_t outputs{static_cast<int*>(data(symbols)),
                                        static_cast<int*>(data(counts)),
                                        static_cast<int*>(data(stamps)),
                                        static_cast<int*>(data(durations)),
                                        data(log_probs),
                                        data(confidences),
                                        static_cast<double*>(data(scores))};
  check(prnnTransducerSearch(handle, &model, model_space.data, &options, &inputs, nullptr, &outputs, work.data,
                             work.bytes),
        handle);
}

}  // namespace
}  // namespace prnn_jax

PRNN_JAX_HANDLER(prnnJaxTransducerSearch, prnn_jax::run_search);
