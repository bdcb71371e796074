// The handlers of the losses: prnnJax{Ctc,Rnnt,Tdt,JointRnnt,JointTdt}{Forward,Backward}.
//
// Forward takes the loss's arrays, targets {N, U}, and the lengths of frames and targets {N}, and gives costs {N},
// reserve, which has no elements where no backward call follows, and workspace. Backward takes the same, reserve and
// the costs' gradients, and gives the gradients of the loss's arrays; a joint loss's also workspace.
#include "handler.h"

namespace prnn_jax {
namespace {

const int* integers(const Array& array) { return static_cast<const int*>(data(array)); }

// Sets the options that losses have in common, and those that a loss with the attribute has.
template <class Options>
void set_common(const Attributes& given, Options* options) {
  options->blank = attribute<int64_t>(given, "blank");
  options->zeroInfinity = attribute<bool>(given, "zero_infinity");
}

template <class Options>
void set_gradients(const Attributes& given, Options* options) {
  options->fastEmitLambda = attribute<double>(given, "fastemit_lambda");
  options->clamp = attribute<double>(given, "clamp");
}

template <class Options>
void set_rnnt(const Attributes& given, Options* options) {
  options->type = static_cast<prnnRNNTType_t>(attribute<int64_t>(given, "rnnt_type"));
  options->delayPenalty = attribute<double>(given, "delay_penalty");
}

template <class Options>
void set_tdt(const Attributes& given, Options* options) {
  set_durations(given, options);
  options->sigma = attribute<double>(given, "sigma");
  options->omega = attribute<double>(given, "omega");
}

// ---- CTC: logits {N, T, V} ----

prnnCTCLossOptions_t ctc_options(const Attributes& given, const Array& logits, const Array& targets) {
  prnnCTCLossOptions_t options;
  check(prnnInitCTCLossOptions(&options));
  options.dataType = type_of(logits);
  options.input = static_cast<prnnLossInput_t>(attribute<int64_t>(given, "input"));
  options.batch = dimension_from_end(logits, 3);
  options.maxFrames = dimension_from_end(logits, 2);
  options.classes = dimension_from_end(logits, 1);
  options.maxTargets = dimension_from_end(targets, 1);
  options.timeStride = options.classes;
  options.batchStride = options.maxFrames * options.classes;
  set_common(given, &options);
  return options;
}

void run_ctc_forward(prnnHandle_t handle, Attributes given, Array logits, Array targets, Array frames, Array lengths,
                     Result costs, Result reserve, Result workspace) {
  const prnnCTCLossOptions_t options = ctc_options(given, logits, targets);
  const Space work = space(workspace), kept = space(reserve);
  check(prnnCTCLossForward(handle, &options, data(logits), integers(targets), integers(frames), integers(lengths),
                           data(costs), work.data, work.bytes, kept.data, kept.bytes),
        handle);
}

void run_ctc_backward(prnnHandle_t handle, Attributes given, Array logits, Array targets, Array frames, Array lengths,
                      Array reserve, Array dcosts, Result gradients) {
  const prnnCTCLossOptions_t options = ctc_options(given, logits, targets);
  check(prnnCTCLossBackward(handle, &options, data(logits), integers(targets), integers(frames), integers(lengths),
                            data(dcosts), data(gradients), data(reserve), reserve.size_bytes()),
        handle);
}

// ---- RNN-T: logits {N, T, U + 1, V} ----

prnnRNNTLossOptions_t rnnt_options(const Attributes& given, const Array& logits) {
  prnnRNNTLossOptions_t options;
  check(prnnInitRNNTLossOptions(&options));
  options.dataType = type_of(logits);
  options.input = static_cast<prnnLossInput_t>(attribute<int64_t>(given, "input"));
  options.batch = dimension_from_end(logits, 4);
  options.maxFrames = dimension_from_end(logits, 3);
  options.maxTargets = dimension_from_end(logits, 2) - 1;
  options.classes = dimension_from_end(logits, 1);
  set_common(given, &options);
  set_gradients(given, &options);
  set_rnnt(given, &options);
  return options;
}

void run_rnnt_forward(prnnHandle_t handle, Attributes given, Array logits, Array targets, Array frames, Array lengths,
                      Result costs, Result reserve, Result workspace) {
  const prnnRNNTLossOptions_t options = rnnt_options(given, logits);
  const Space work = space(workspace), kept = space(reserve);
  check(prnnRNNTLossForward(handle, &options, data(logits), integers(targets), integers(frames), integers(lengths),
                            nullptr, data(costs), work.data, work.bytes, kept.data, kept.bytes),
        handle);
}

void run_rnnt_backward(prnnHandle_t handle, Attributes given, Array logits, Array targets, Array frames, Array lengths,
                       Array reserve, Array dcosts, Result gradients) {
  const prnnRNNTLossOptions_t options = rnnt_options(given, logits);
  check(prnnRNNTLossBackward(handle, &options, data(logits), integers(targets), integers(frames), integers(lengths),
                             nullptr, data(dcosts), data(gradients), data(reserve), reserve.size_bytes()),
        handle);
}

// ---- TDT: logits {N, T, U + 1, V + D}, those of the durations last ----

prnnDurationRNNTLossOptions_t tdt_options(const Attributes& given, const Array& logits) {
  prnnDurationRNNTLossOptions_t options;
  check(prnnInitDurationRNNTLossOptions(&options));
  options.dataType = type_of(logits);
  options.batch = dimension_from_end(logits, 4);
  options.maxFrames = dimension_from_end(logits, 3);
  options.maxTargets = dimension_from_end(logits, 2) - 1;
  set_common(given, &options);
  set_gradients(given, &options);
  set_tdt(given, &options);
  options.tokenStride = options.durationStride = dimension_from_end(logits, 1);
  options.classes = options.tokenStride - options.durationCount;
  return options;
}

void* durations_in(void* logits, const prnnDurationRNNTLossOptions_t& options, const Array& like) {
  const size_t element = like.size_bytes() / like.element_count();
  return static_cast<char*>(logits) + static_cast<size_t>(options.classes) * element;
}

void run_tdt_forward(prnnHandle_t handle, Attributes given, Array logits, Array targets, Array frames, Array lengths,
                     Result costs, Result reserve, Result workspace) {
  const prnnDurationRNNTLossOptions_t options = tdt_options(given, logits);
  const Space work = space(workspace), kept = space(reserve);
  check(prnnDurationRNNTLossForward(handle, &options, data(logits), durations_in(data(logits), options, logits),
                                    integers(targets), integers(frames), integers(lengths), data(costs), work.data,
                                    work.bytes, kept.data, kept.bytes),
        handle);
}

void run_tdt_backward(prnnHandle_t handle, Attributes given, Array logits, Array targets, Array frames, Array lengths,
                      Array reserve, Array dcosts, Result gradients) {
  const prnnDurationRNNTLossOptions_t options = tdt_options(given, logits);
  check(prnnDurationRNNTLossBackward(handle, &options, data(logits), durations_in(data(logits), options, logits),
                                     integers(targets), integers(frames), integers(lengths), data(dcosts),
                                     data(gradients), durations_in(data(gradients), options, logits), data(reserve),
                                     reserve.size_bytes()),
        handle);
}

// ---- With the joiner: encoder {N, T, J}, predictor {N, U + 1, J}, weight {rows, J}, bias {rows} or without elements

template <class Options>
void set_joiner(const Attributes& given, const Array& encoder, const Array& predictor, Options* options) {
  options->dataType = type_of(encoder);
  options->activation = static_cast<prnnJointActivation_t>(attribute<int64_t>(given, "activation"));
  options->batch = dimension_from_end(encoder, 3);
  options->maxFrames = dimension_from_end(encoder, 2);
  options->maxTargets = dimension_from_end(predictor, 2) - 1;
  options->joinerSize = dimension_from_end(encoder, 1);
  options->allowTf32 = attribute<bool>(given, "allow_tf32");
  set_common(given, options);
  set_gradients(given, options);
}

prnnJointRNNTLossOptions_t joint_rnnt_options(const Attributes& given, const Array& encoder, const Array& predictor,
                                              const Array& weight) {
  prnnJointRNNTLossOptions_t options;
  check(prnnInitJointRNNTLossOptions(&options));
  set_joiner(given, encoder, predictor, &options);
  set_rnnt(given, &options);
  options.classes = dimension_from_end(weight, 2);
  return options;
}

void run_joint_rnnt_forward(prnnHandle_t handle, Attributes given, Array encoder, Array predictor, Array weight,
                            Array bias, Array targets, Array frames, Array lengths, Result costs, Result reserve,
                            Result workspace) {
  const prnnJointRNNTLossOptions_t options = joint_rnnt_options(given, encoder, predictor, weight);
  const Space work = space(workspace), kept = space(reserve);
  check(prnnJointRNNTLossForward(handle, &options, data(encoder), data(predictor), data(weight), data(bias),
                                 integers(targets), integers(frames), integers(lengths), nullptr, nullptr, data(costs),
                                 work.data, work.bytes, kept.data, kept.bytes),
        handle);
}

void run_joint_rnnt_backward(prnnHandle_t handle, Attributes given, Array encoder, Array predictor, Array weight,
                             Array bias, Array targets, Array frames, Array lengths, Array reserve, Array dcosts,
                             Result dencoder, Result dpredictor, Result dweight, Result dbias, Result workspace) {
  const prnnJointRNNTLossOptions_t options = joint_rnnt_options(given, encoder, predictor, weight);
  const Space work = space(workspace);
  check(prnnJointRNNTLossBackward(handle, &options, data(encoder), data(predictor), data(weight), data(bias),
                                  integers(targets), integers(frames), integers(lengths), nullptr, nullptr,
                                  data(dcosts), data(dencoder), data(dpredictor), data(dweight), data(dbias), work.data,
                                  work.bytes, data(reserve), reserve.size_bytes()),
        handle);
}

prnnJointTDTLossOptions_t joint_tdt_options(const Attributes& given, const Array& encoder, const Array& predictor,
                                            const Array& weight) {
  prnnJointTDTLossOptions_t options;
  check(prnnInitJointTDTLossOptions(&options));
  set_joiner(given, encoder, predictor, &options);
  set_tdt(given, &options);
  options.classes = dimension_from_end(weight, 2) - options.durationCount;
  return options;
}

void run_joint_tdt_forward(prnnHandle_t handle, Attributes given, Array encoder, Array predictor, Array weight,
                           Array bias, Array targets, Array frames, Array lengths, Result costs, Result reserve,
                           Result workspace) {
  const prnnJointTDTLossOptions_t options = joint_tdt_options(given, encoder, predictor, weight);
  const Space work = space(workspace), kept = space(reserve);
  check(prnnJointTDTLossForward(handle, &options, data(encoder), data(predictor), data(weight), data(bias),
                                integers(targets), integers(frames), integers(lengths), nullptr, data(costs), work.data,
                                work.bytes, kept.data, kept.bytes),
        handle);
}

void run_joint_tdt_backward(prnnHandle_t handle, Attributes given, Array encoder, Array predictor, Array weight,
                            Array bias, Array targets, Array frames, Array lengths, Array reserve, Array dcosts,
                            Result dencoder, Result dpredictor, Result dweight, Result dbias, Result workspace) {
  const prnnJointTDTLossOptions_t options = joint_tdt_options(given, encoder, predictor, weight);
  const Space work = space(workspace);
  check(prnnJointTDTLossBackward(handle, &options, data(encoder), data(predictor), data(weight), data(bias),
                                 integers(targets), integers(frames), integers(lengths), nullptr, data(dcosts),
                                 data(dencoder), data(dpredictor), data(dweight), data(dbias), work.data, work.bytes,
                                 data(reserve), reserve.size_bytes()),
        handle);
}

}  // namespace
}  // namespace prnn_jax

PRNN_JAX_HANDLER(prnnJaxCtcForward, prnn_jax::run_ctc_forward);
PRNN_JAX_HANDLER(prnnJaxCtcBackward, prnn_jax::run_ctc_backward);
PRNN_JAX_HANDLER(prnnJaxRnntForward, prnn_jax::run_rnnt_forward);
PRNN_JAX_HANDLER(prnnJaxRnntBackward, prnn_jax::run_rnnt_backward);
PRNN_JAX_HANDLER(prnnJaxTdtForward, prnn_jax::run_tdt_forward);
PRNN_JAX_HANDLER(prnnJaxTdtBackward, prnn_jax::run_tdt_backward);
PRNN_JAX_HANDLER(prnnJaxJointRnntForward, prnn_jax::run_joint_rnnt_forward);
PRNN_JAX_HANDLER(prnnJaxJointRnntBackward, prnn_jax::run_joint_rnnt_backward);
PRNN_JAX_HANDLER(prnnJaxJointTdtForward, prnn_jax::run_joint_tdt_forward);
PRNN_JAX_HANDLER(prnnJaxJointTdtBackward, prnn_jax::run_joint_tdt_backward);
