// The cuDNN backend on a fake GPU, whose memory is the host's: cudnn_calls STEP... makes calls with the libcudnn that
// PRNN_CUDNN_LIBRARY names and prints what comes of them. Steps: see run() below.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "core/cuda/cuda_state.h"
#include "core/cuda/cudnn.h"
#include "core/descriptors.h"
#include "rnn/cudnn/backend.h"
#include "rnn/cudnn/device.h"

namespace prnn {

void check_earlier_calls(prnnContext&) {}
void write_dropout_states(prnnContext&, void*, const DropoutStates&) {}

CudnnDevice describe_device(int) {
  const char* const arch = std::getenv("FAKE_ARCH");
  return {arch == nullptr ? 90 : std::atoi(arch), 132};
}
DeviceMemory::DeviceMemory(size_t bytes) : memory_(std::malloc(bytes)), size_(bytes) {}
DeviceMemory::~DeviceMemory() { std::free(memory_); }
void copy_on_device(void* to, const void* from, size_t bytes, prnnStream_t) {
  std::printf("copy %zu\n", bytes);
  std::memcpy(to, from, bytes);
}
bool has_known_dropout_states(const void*, size_t, unsigned long long, prnnStream_t) {
  return std::getenv("FAKE_UNKNOWN_STATES") == nullptr;
}
void begin_dropout(void*, uint64_t*, prnnStream_t) { std::printf("draw\n"); }
void seed_cudnn_dropout(const uint64_t*, void* states, size_t bytes, prnnStream_t) {
  std::printf("seed %zu\n", bytes);
  std::strcpy(static_cast<char*>(states), "seeded");  // NOLINT: the fake cuDNN prints it
}
void drop(prnnDataType_t, float, const uint64_t*, int64_t layer, int64_t count, const void*, void*, prnnStream_t) {
  std::printf("drop after layer %d of %d elements\n", int(layer), int(count));
}

}  // namespace prnn

using namespace prnn;

namespace {

RnnProblem problem;
prnnContext context;
CudaState state;

void set(const std::string& name, int value) {
  if (name == "mode") problem.mode = static_cast<prnnRNNMode_t>(value);
  if (name == "type") problem.type = static_cast<prnnDataType_t>(value);
  if (name == "hidden") problem.hidden = problem.input = value;
  if (name == "layers") problem.layers = value;
  if (name == "directions") problem.directions = value;
  if (name == "projection") problem.projection = value;
  if (name == "skip") problem.skip_input = value != 0;
  if (name == "tf32") problem.tf32 = value != 0;
  if (name == "dx") problem.gives_dx = value != 0;
  if (name == "dropout") problem.dropout.probability = static_cast<float>(value) / 100;
}

void run(const std::string& step) {
  const RnnBackend& backend = *require_cudnn_backend();
  const std::vector<char>::size_type room = 1 << 20;
  static std::vector<char> x(room), y(room), reserve(room);
  std::vector<float> w(rnn_params_count(problem));
  std::iota(w.begin(), w.end(), 0.0f);
  std::vector<char> workspace(backend.workspace_size(&context, problem));
  RnnForwardArgs forward{};
  forward.x = x.data();
  forward.w = w.data();
  forward.y = y.data();
  if (step == "infer" || step == "misaligned") {
    const RnnProblem inference = inference_of(problem);
    workspace.resize(backend.workspace_size(&context, inference));
    if (step == "misaligned") forward.w = w.data() + 1;
    forward.workspace = workspace.data();
    backend.forward(&context, inference, forward);
  } else if (step == "train") {
    std::vector<float> dw(w.size());
    std::vector<char> dx(problem.gives_dx ? room : 0);
    backend.reserve_size(&context, problem, true);
    forward.workspace = workspace.data();
    forward.reserve = reserve.data();
    backend.forward(&context, problem, forward);
    RnnBackwardDataArgs data{};
    data.y = data.dy = y.data();
    data.w = w.data();
    data.dx = problem.gives_dx ? dx.data() : nullptr;
    data.workspace = workspace.data();
    data.reserve = reserve.data();
    backend.backward_data(&context, problem, data);
    RnnBackwardWeightsArgs weights{};
    weights.x = x.data();
    weights.y = y.data();
    weights.dw = dw.data();
    weights.workspace = workspace.data();
    weights.reserve = reserve.data();
    backend.backward_weights(&context, problem, weights);
    std::printf("dw");
    for (size_t i = 0; i < dw.size(); ++i) {
      if (dw[i] != 0) std::printf(" %zu:%g", i, double(dw[i]));
    }
    std::printf("\n");
  } else {  // a batch of lengths, "9,7,3"
    problem.batch.assign(static_cast<size_t>(std::atoi(step.c_str())), 0);
    for (const char* at = step.c_str(); at != nullptr; at = std::strchr(at, ',')) {
      at += *at == ',';
      for (int t = 0; t < std::atoi(at); ++t) ++problem.batch[static_cast<size_t>(t)];
    }
    problem.rows = std::accumulate(problem.batch.begin(), problem.batch.end(), int64_t{0});
  }
}

int count(const char* function) {
  void* const library = dlopen(std::getenv("PRNN_CUDNN_LIBRARY"), RTLD_NOW);
  return reinterpret_cast<int (*)()>(dlsym(library, function))();
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  context.device = 0;
  context.cuda = &state;
  problem.gives_dx = false;
  problem.hidden = 8;
  problem.input = 8;
  problem.batch = {2, 2, 2};
  problem.rows = 6;
  for (int i = 1; i < argc; ++i) {
    const std::string step = argv[i];
    const size_t equals = step.find('=');
    try {
      if (equals != std::string::npos) {
        set(step.substr(0, equals), std::atoi(step.c_str() + equals + 1));
      } else if (step == "size") {
        std::printf("workspace %zu\n", require_cudnn_backend()->workspace_size(&context, problem));
      } else if (step == "count") {
        std::printf("made %d\n", count("fake_created_objects"));
      } else {
        run(step);
      }
    } catch (const Failure& failure) {
      std::printf("%d: %s\n", failure.status(), failure.what());
    }
  }
  destroy_cudnn(context);
  std::printf("left %d\n", count("fake_live_objects"));
}
