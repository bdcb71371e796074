// The transducer search by its kernels. Reads a file with a call's structures and arrays, each after its number of
// bytes, and writes another one with the arrays of the state and of the outputs. An array without bytes is NULL.
//
//     run_decode groups=1 blocks=4 column_tiles=3 shared=60000 seed=1 call.bin found.bin
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "arrays.h"
#include "instructions.h"

#include "decode/cuda/call.h"
#include "decode/cuda/prepare.cu"
#include "decode/cuda/search_bfloat16.cu"
#include "decode/cuda/search_float.cu"

extern "C" cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
extern "C" cudaError_t cudaGetLastError() { return cudaSuccess; }

namespace prnn::decode_cuda {
namespace {

struct CallFile {
  std::ifstream in;
  std::vector<Array> arrays;

  explicit CallFile(const char* name) : in(name, std::ios::binary) {}

  int64_t bytes() {
    int64_t count = 0;
    in.read(reinterpret_cast<char*>(&count), sizeof count);
    return count;
  }
  template <class Struct>
  Struct structure() {
    Struct value;
    if (bytes() != sizeof value) std::exit(3);
    in.read(reinterpret_cast<char*>(&value), sizeof value);
    return value;
  }
  char* array() {
    const int64_t count = bytes();
    arrays.push_back(Array::of_bytes(static_cast<size_t>(count), 0));
    if (count == 0) return nullptr;
    in.read(arrays.back().data(), count);
    return arrays.back().data();
  }
  template <class T>
  void read(T*& pointer) {
    pointer = reinterpret_cast<T*>(array());
  }
};

int run(BatchPlan batch, int shared_bytes, const char* call_name, const char* found_name) {
  CallFile file(call_name);
  const auto model = file.structure<prnnTransducerModel_t>();
  TransducerSearchArgs args{};
  args.options = file.structure<prnnTransducerSearchOptions_t>();
  prnnTransducerWeights_t weights{};
  file.read(weights.embedding);
  for (int layer = 0; layer < 2; ++layer) {
    file.read(weights.inputWeights[layer]);
    file.read(weights.recurrentWeights[layer]);
    file.read(weights.inputBiases[layer]);
    file.read(weights.recurrentBiases[layer]);
  }
  file.read(weights.predictorWeight);
  file.read(weights.predictorBias);
  file.read(weights.outputWeight);
  file.read(weights.outputBias);
  file.read(args.inputs.frames);
  file.read(args.inputs.lengths);
  prnnTransducerBias_t bias{};
  file.read(bias.next);
  file.read(bias.gains);
  bias.nodes = static_cast<int64_t>(file.arrays.back().bytes() / sizeof(float)) / model.classes;
  if (bias.nodes > 0) args.inputs.bias = &bias;
  prnnTransducerState_t state{};
  file.read(state.slots);
  const size_t first_written = file.arrays.size();
  file.read(state.ahead);
  file.read(state.h);
  file.read(state.c);
  file.read(state.context);
  file.read(state.node);
  if (state.ahead != nullptr) args.state = &state;
  file.read(args.outputs.symbols);
  file.read(args.outputs.counts);
  file.read(args.outputs.frames);
  file.read(args.outputs.durations);
  file.read(args.outputs.logProbs);
  file.read(args.outputs.confidences);
  file.read(args.outputs.scores);

  SearchPlan plan;
  const int64_t utterances = args.options.batch, of_group = (utterances + batch.groups - 1) / batch.groups;
  batch.groups = static_cast<int>(std::min<int64_t>(batch.groups, utterances));
  batch.slots = static_cast<int>(std::min<int64_t>(of_group, kSlots));
  batch.column_tiles = std::min(batch.column_tiles, batch.slots);
  bool fits = plan_search(model, batch.groups * batch.blocks, shared_bytes, plan);
  while (fits && !complete(plan, batch)) fits = --batch.column_tiles > 0;
  if (!fits) {
    std::printf("does not fit\n");
    return 1;
  }
  std::printf("blocks=%d groups=%d slots=%d window=%d column_tiles=%d weight_bytes=%d\n", batch.blocks, batch.groups,
              batch.slots, batch.window, batch.column_tiles, batch.weight_bytes);
  Arena counted(nullptr);
  cut_prepared(model, plan, counted);
  Array prepared = Array::of_bytes(counted.size(), 0xFF);
  Arena arena(prepared.data());
  const Prepared cut = cut_prepared(model, plan, arena);
  const auto with_model = [&](auto&& function) {  // half, which takes the same ways as bfloat16, is not compiled
    return model.dataType == PRNN_DATA_BFLOAT16 ? function(__nv_bfloat16()) : function(float());
  };
  with_model([&](auto type) { return run_prepare<decltype(type)>(model, weights, plan, cut, nullptr); });

  args.prepared = prepared.data();
  SearchParams params = params_of(model, plan, batch, args);
  Arena exchange_size(nullptr);
  cut_exchange(plan, batch, exchange_size, params);
  Array workspace = Array::of_bytes(exchange_size.size(), 0);
  Arena exchange(workspace.data());
  cut_exchange(plan, batch, exchange, params);
  order::follow(workspace.data(), workspace.bytes(), order::Kind::kExchange);
  for (size_t i = first_written; i < file.arrays.size(); ++i)  // states and outputs
    order::follow(file.arrays[i].data(), file.arrays[i].bytes(), order::Kind::kArray);
  int timed_out = 0;
  params.timed_out = &timed_out;
  const cudaError_t error =
      with_model([&](auto type) { return run_search<decltype(type)>(params, batch.column_tiles, nullptr); });
  if (error != cudaSuccess || timed_out != 0) {
    std::printf("the kernel does not end\n");
    return 2;
  }
  std::ofstream out(found_name, std::ios::binary);
  for (size_t i = first_written; i < file.arrays.size(); ++i) {
    const auto bytes = static_cast<int64_t>(file.arrays[i].bytes());
    out.write(reinterpret_cast<const char*>(&bytes), sizeof bytes);
    out.write(file.arrays[i].data(), bytes);
  }
  return 0;
}

}  // namespace
}  // namespace prnn::decode_cuda

int main(int count, char** words) {
  prnn::decode_cuda::BatchPlan batch{};
  batch.groups = 1, batch.blocks = 4, batch.column_tiles = 3;
  int shared_bytes = 227 * 1024;
  for (int i = 1; i + 2 < count; ++i) {
    const std::string word = words[i], name = word.substr(0, word.find('=')), value = word.substr(name.size() + 1);
    if (name == "groups") batch.groups = std::stoi(value);
    if (name == "blocks") batch.blocks = std::stoi(value);
    if (name == "column_tiles") batch.column_tiles = std::stoi(value);
    if (name == "shared") shared_bytes = std::stoi(value);
    if (name == "seed") gpu::seed = static_cast<unsigned>(std::stoi(value));
  }
  return prnn::decode_cuda::run(batch, shared_bytes, words[count - 2], words[count - 1]);
}
