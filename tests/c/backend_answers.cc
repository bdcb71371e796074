// Which backend serves a layer, as three parts of the product say it: reads layers from stdin, one a line, "mode type
// tf32 hidden layers directions projection batch timesteps dropout last" (last: sequences of the last timestep), and
// prints for each the backends of a training step and of inference on an H200 that a run takes, that
// prnnQueryRNNSequence says, and that the library in the place of cuDNN takes: "run 0 2, query 0 2, stand-in 0 2", as
// values of prnnRNNBackend_t.
#include <cstdio>
#include <vector>

#include "core/cuda/cuda_state.h"
#include "cudnn_standin/decision.h"
#include "cudnn_standin/device.h"
#include "rnn/cuda/backend.h"

namespace prnn {
namespace {

class Cudnn : public RnnBackend {
 public:
  prnnRNNBackend_t kind() const override { return PRNN_CUDNN_BACKEND; }
  size_t workspace_size(prnnHandle_t, const RnnProblem&) const override { return 0; }
  size_t reserve_size(prnnHandle_t, const RnnProblem&, bool) const override { return 0; }
  void forward(prnnHandle_t, const RnnProblem&, const RnnForwardArgs&) const override {}
  void backward_data(prnnHandle_t, const RnnProblem&, const RnnBackwardDataArgs&) const override {}
  void backward_weights(prnnHandle_t, const RnnProblem&, const RnnBackwardWeightsArgs&) const override {}
};

}  // namespace

// The resident kernels' backend, which makes plans and runs none.
size_t ResidentBackend::workspace_size(prnnHandle_t, const RnnProblem&) const { return 0; }
size_t ResidentBackend::reserve_size(prnnHandle_t, const RnnProblem&, bool) const { return 0; }
void ResidentBackend::forward(prnnHandle_t, const RnnProblem&, const RnnForwardArgs&) const {}
void ResidentBackend::backward_data(prnnHandle_t, const RnnProblem&, const RnnBackwardDataArgs&) const {}
void ResidentBackend::backward_weights(prnnHandle_t, const RnnProblem&, const RnnBackwardWeightsArgs&) const {}
void ResidentBackend::backward(prnnHandle_t, const RnnProblem&, const RnnBackwardArgs&) const {}

const GpuRow& cuda_gpu_row(const prnnContext& context) { return cuda_state(context).row; }

SharedRnnBackend require_cudnn_backend() {
  static const SharedRnnBackend backend = std::make_shared<const Cudnn>();
  return backend;
}

}  // namespace prnn

namespace prnn_cudnn {

WeightLayout read_weight_layout(const Cudnn&, const Prnn&, prnnHandle_t, void*, void*, prnnRNNDescriptor_t,
                                const Configuration&) {
  return {};
}

}  // namespace prnn_cudnn

int main() {
  prnnContext context;
  prnn::CudaState state;
  state.row = *prnn::find_gpu_row("H200");
  context.device = 0;
  context.cuda = &state;
  const prnn_cudnn::Prnn& library = prnn_cudnn::prnn_library();
  prnnHandle_t handle = nullptr;
  library.require(library.CreateCPU(&handle));
  int mode, type, tf32, hidden, layers, directions, projection, batch, steps, last;
  float dropout;
  while (std::scanf("%d %d %d %d %d %d %d %d %d %f %d", &mode, &type, &tf32, &hidden, &layers, &directions, &projection,
                    &batch, &steps, &dropout, &last) == 11) {
    prnn::RnnProblem problem;
    problem.mode = static_cast<prnnRNNMode_t>(mode);
    problem.type = static_cast<prnnDataType_t>(type);
    problem.tf32 = tf32 != 0;
    problem.hidden = problem.input = hidden;
    problem.layers = layers;
    problem.directions = directions;
    problem.projection = projection;
    problem.dropout.probability = layers > 1 ? dropout : 0;
    problem.batch.assign(static_cast<size_t>(steps), batch);
    problem.batch.back() = last;
    problem.rows = int64_t{steps - 1} * batch + last;
    const auto run = [&](const prnn::RnnProblem& call) {
      return int(prnn::cuda_rnn_backend(&context, PRNN_BEST_BACKEND, call)->kind());
    };
    std::printf("run %d %d", run(problem), run(prnn::inference_of(problem)));

    prnn_cudnn::Configuration c{};
    c.mode = mode;
    c.type = type;
    c.math_type = tf32 != 0 ? prnn_cudnn::kDefaultMath : prnn_cudnn::kFmaMath;
    c.direction = directions - 1;
    c.input = c.width = c.hidden = hidden;
    c.projection = projection > 0 ? projection : hidden;
    c.layers = layers;
    c.dropout = dropout;
    c.steps = steps;
    c.batch = batch;
    const prnn_cudnn::RnnDesc rnn(library);
    const prnn_cudnn::DropoutDesc drops(library);
    library.require(library.SetDropoutDescriptor(drops.get(), handle, dropout, nullptr, 0, 0), handle);
    prnn_cudnn::describe(library, c, drops.get(), rnn.get());
    library.require(library.SetRNNBackend(rnn.get(), PRNN_BEST_BACKEND));
    const prnn_cudnn::TensorDesc input(library), last_input(library);
    const int dims[] = {batch, hidden, 1}, last_dims[] = {last, hidden, 1}, strides[] = {hidden, 1, 1};
    library.require(library.SetTensorNdDescriptor(input.get(), problem.type, 3, dims, strides));
    library.require(library.SetTensorNdDescriptor(last_input.get(), problem.type, 3, last_dims, strides));
    std::vector<prnnTensorDescriptor_t> inputs(static_cast<size_t>(steps), input.get());
    inputs.back() = last_input.get();
    prnnRNNInfo_t info;
    library.require(library.QueryRNNSequence(nullptr, "H200", rnn.get(), steps, inputs.data(), &info));
    std::printf(", query %d %d", int(info.backend), int(info.inferenceBackend));

    const prnn_cudnn::Cudnn cudnn{};
    const auto stand_in = [&](prnn_cudnn::Use use) {
      const auto decision = prnn_cudnn::decide(cudnn, library, handle, 0, nullptr, nullptr, c, last < batch, use);
      return int(decision.reason.empty() ? PRNN_PERSISTENT_BACKEND : PRNN_CUDNN_BACKEND);
    };
    std::printf(", stand-in %d %d\n", stand_in(prnn_cudnn::Use::kTraining),
                stand_in(prnn_cudnn::Use::kInferenceInGraph));
  }
}
