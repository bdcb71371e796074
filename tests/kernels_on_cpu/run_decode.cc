// The transducer search by its kernels: reads a call and writes another file with the arrays of the state and of the
// outputs.
//
//     run_decode groups=1 blocks=4 column_tiles=3 shared=60000 seed=1 call.bin found.bin
#include "decode_call.h"

#include "decode/cuda/search_bfloat16.cu"
#include "decode/cuda/search_float.cu"

namespace prnn::decode_cuda {
namespace {

int run(const Words& words, const char* call_name, const char* found_name) {
  CallFile file(call_name);
  const auto model = file.structure<prnnTransducerModel_t>();
  TransducerSearchArgs args{};
  args.options = file.structure<prnnTransducerSearchOptions_t>();
  const prnnTransducerWeights_t weights = read_weights(file);
  prnnTransducerBias_t bias{};
  args.inputs = read_inputs(file, model, bias);
  prnnTransducerState_t state{};
  const size_t first_written = read_state(file, state);
  if (state.ahead != nullptr) args.state = &state;
  file.read(args.outputs.symbols);
  file.read(args.outputs.counts);
  file.read(args.outputs.frames);
  file.read(args.outputs.durations);
  file.read(args.outputs.logProbs);
  file.read(args.outputs.confidences);
  file.read(args.outputs.scores);

  SearchPlan plan;
  BatchPlan batch = words.batch;
  const int64_t utterances = args.options.batch, of_group = (utterances + batch.groups - 1) / batch.groups;
  batch.groups = static_cast<int>(std::min<int64_t>(batch.groups, utterances));
  batch.utterances = static_cast<int>(std::min<int64_t>(of_group, kSlots));
  batch.column_tiles = std::min(batch.column_tiles > 0 ? batch.column_tiles : kMostGreedyTiles, batch.utterances);
  bool fits = plan_search(model, batch.groups * batch.blocks, words.shared_bytes, plan);
  while (fits && !complete(plan, batch)) fits = --batch.column_tiles > 0;
  if (!fits) {
    std::printf("does not fit\n");
    return 1;
  }
  print(batch);
  Array prepared = prepare(model, plan, weights);
  args.prepared = prepared.data();
  auto params = params_of<SearchParams>(model, plan, batch, args);
  Arena exchange_size(nullptr);
  cut_exchange(plan, batch, exchange_size, params);
  Array workspace = Array::of_bytes(exchange_size.size(), 0);
  Arena exchange(workspace.data());
  cut_exchange(plan, batch, exchange, params);
  follow(file, first_written, workspace, workspace.bytes());
  int timed_out = 0;
  params.timed_out = &timed_out;
  const cudaError_t error =
      with_model(model, [&](auto type) { return run_search<decltype(type)>(params, batch.column_tiles, nullptr); });
  return finish(error, timed_out, file, first_written, found_name);
}

}  // namespace
}  // namespace prnn::decode_cuda

int main(int count, char** words) { return prnn::decode_cuda::run({count, words}, words[count - 2], words[count - 1]); }
