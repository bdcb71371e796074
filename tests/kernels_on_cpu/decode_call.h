// A call of a transducer search as a program gets it: a file with the call's structures and arrays, each after its
// number of bytes. An array without bytes is NULL. And a model that is prepared for it.
#pragma once

#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "arrays.h"
#include "instructions.h"

#include "decode/cuda/call.h"
#include "decode/cuda/prepare.cu"

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

prnnTransducerWeights_t read_weights(CallFile& file) {
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
  return weights;
}

// bias: where it has nodes, what the inputs point to.
prnnTransducerInputs_t read_inputs(CallFile& file, const prnnTransducerModel_t& model, prnnTransducerBias_t& bias) {
  prnnTransducerInputs_t inputs{};
  file.read(inputs.frames);
  file.read(inputs.lengths);
  file.read(bias.next);
  file.read(bias.gains);
  bias.nodes = static_cast<int64_t>(file.arrays.back().bytes() / sizeof(float)) / model.classes;
  if (bias.nodes > 0) inputs.bias = &bias;
  return inputs;
}

// Reads the arrays of a state that both searches have, and returns the number of the first that the kernel writes.
template <class State>
size_t read_state(CallFile& file, State& state) {
  file.read(state.slots);
  const size_t first_written = file.arrays.size();
  file.read(state.ahead);
  file.read(state.h);
  file.read(state.c);
  file.read(state.context);
  file.read(state.node);
  return first_written;
}

// Calls function(T()) with the model's type; half, which takes the same ways as bfloat16, is not compiled.
template <class Function>
auto with_model(const prnnTransducerModel_t& model, Function&& function) {
#ifdef PRNN_BFLOAT16_ALONE
  if (model.dataType != PRNN_DATA_BFLOAT16) std::exit(4);
  return function(__nv_bfloat16());
#else
  return model.dataType == PRNN_DATA_BFLOAT16 ? function(__nv_bfloat16()) : function(float());
#endif
}

// The rest of a plan that the words of the command line begin; less tiles where they find no room.
struct Words {
  BatchPlan batch{};
  int shared_bytes = 227 * 1024;

  Words(int count, char** words) {
    batch.groups = 1, batch.blocks = 4;
    for (int i = 1; i + 2 < count; ++i) {
      const std::string word = words[i], name = word.substr(0, word.find('=')), value = word.substr(name.size() + 1);
      if (name == "groups") batch.groups = std::stoi(value);
      if (name == "blocks") batch.blocks = std::stoi(value);
      if (name == "column_tiles") batch.column_tiles = std::stoi(value);
      if (name == "utterances") batch.utterances = std::stoi(value);
      if (name == "shared") shared_bytes = std::stoi(value);
      if (name == "seed") gpu::seed = static_cast<unsigned>(std::stoi(value));
    }
  }
};

void print(const BatchPlan& batch) {
  std::printf("blocks=%d groups=%d slots=%d window=%d column_tiles=%d weight_bytes=%d\n", batch.blocks, batch.groups,
              batch.slots, batch.window, batch.column_tiles, batch.weight_bytes);
}

// c[m, n] += a[m, k] b[n, k], which on a GPU cuBLAS does.
template <class T>
void add_products(int64_t m, int64_t n, int64_t k, const void* a, const void* b, void* c) {
  for (int64_t i = 0; i < m * n; ++i) {
    float sum = 0;
    for (int64_t j = 0; j < k; ++j) {
      sum += Element<T>::to_float(static_cast<const T*>(a)[i / n * k + j]) *
             Element<T>::to_float(static_cast<const T*>(b)[i % n * k + j]);
    }
    T& to = static_cast<T*>(c)[i];
    to = Element<T>::from_float(Element<T>::to_float(to) + sum);
  }
}

Array prepare(const prnnTransducerModel_t& model, const SearchPlan& plan, const prnnTransducerWeights_t& weights) {
  Arena counted(nullptr);
  cut_prepared(model, plan, counted);
  Array prepared = Array::of_bytes(counted.size(), 0xFF);
  Arena arena(prepared.data());
  const Prepared cut = cut_prepared(model, plan, arena);
  with_model(model, [&](auto type) {
    using T = decltype(type);
    const cudaError_t error = run_prepare<T>(model, weights, plan, cut, nullptr);
    if (plan.layers > 0) {
      add_products<T>(model.classes, int64_t{plan.tiles[kRecurrent].count} * kTileRows, model.embeddingSize,
                      weights.embedding, cut.table_weights, cut.table);
    }
    return error;
  });
  return prepared;
}

// Follows the arrays that are written: states and outputs.
void follow(CallFile& file, size_t first_written, Array& exchange, size_t exchange_bytes) {
  order::follow(exchange.data(), exchange_bytes, order::Kind::kExchange);
  for (size_t i = first_written; i < file.arrays.size(); ++i)
    order::follow(file.arrays[i].data(), file.arrays[i].bytes(), order::Kind::kArray);
}

// Writes the arrays that the kernel has written, and returns the program's status.
int finish(cudaError_t error, int timed_out, CallFile& file, size_t first_written, const char* name) {
  if (error != cudaSuccess || timed_out != 0) {
    std::printf("the kernel does not end\n");
    return 2;
  }
  std::ofstream out(name, std::ios::binary);
  for (size_t i = first_written; i < file.arrays.size(); ++i) {
    const auto bytes = static_cast<int64_t>(file.arrays[i].bytes());
    out.write(reinterpret_cast<const char*>(&bytes), sizeof bytes);
    out.write(file.arrays[i].data(), bytes);
  }
  return 0;
}

}  // namespace
}  // namespace prnn::decode_cuda
