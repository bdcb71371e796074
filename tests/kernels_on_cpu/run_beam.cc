// A beam search by its kernel, as run_decode.cc runs greedy search.
//
//     run_beam groups=1 blocks=4 utterances=2 column_tiles=2 shared=60000 seed=1 call.bin found.bin
#include "decode_call.h"

#include "decode/cuda/beam_bfloat16.cu"
#include "decode/cuda/beam_levels_bfloat16.cu"
#ifndef PRNN_BFLOAT16_ALONE
#include "decode/cuda/beam_float.cu"
#include "decode/cuda/beam_levels_float.cu"
#endif

namespace prnn::decode_cuda {
namespace {

int run(const Words& words, const char* call_name, const char* found_name) {
  CallFile file(call_name);
  const auto model = file.structure<prnnTransducerModel_t>();
  TransducerBeamArgs args{};
  args.options = file.structure<prnnTransducerBeamOptions_t>();
  const prnnTransducerWeights_t weights = read_weights(file);
  prnnTransducerBias_t bias{};
  args.inputs = read_inputs(file, model, bias);
  prnnTransducerBeamState_t state{};
  const size_t first_written = read_state(file, state);
  file.read(state.score);
  file.read(state.hash);
  if (state.ahead != nullptr) args.state = &state;
  file.read(args.outputs.symbols);
  file.read(args.outputs.counts);
  file.read(args.outputs.origins);
  file.read(args.outputs.frames);
  file.read(args.outputs.confidences);
  file.read(args.outputs.scores);

  SearchPlan plan;
  BatchPlan batch = words.batch;
  const int64_t utterances = args.options.batch, of_group = (utterances + batch.groups - 1) / batch.groups;
  batch.groups = static_cast<int>(std::min<int64_t>(batch.groups, utterances));
  batch.beam = static_cast<int>(args.options.beam);
  const bool by_levels = is_by_levels(model, args.options);
  if (by_levels) batch.waiting = args.options.beam * (args.options.maxSymbols + 1);
  const int most = kMostColumnTiles * kTileColumns / batch.width();
  batch.utterances = static_cast<int>(std::min<int64_t>({of_group, most, std::max(batch.utterances, 1)}));
  const int slot_tiles = slot_tiles_of(batch.utterances * batch.width());  // as many column tiles or twice as many
  batch.column_tiles = std::min(slot_tiles * (batch.column_tiles > 1 && !by_levels ? 2 : 1), kMostColumnTiles);
  if (!plan_search(model, batch.groups * batch.blocks, words.shared_bytes, plan) || !complete(plan, batch)) {
    std::printf("does not fit\n");
    return 1;
  }
  print(batch);
  Array prepared = prepare(model, plan, weights);
  args.prepared = prepared.data();
  auto params = params_of<BeamParams>(model, plan, batch, args);
  Arena size(nullptr);
  cut_exchange(plan, batch, size, params);
  const size_t exchange_bytes = size.size();
  cut_history(model, args.options, batch, size, params);
  Array workspace = Array::of_bytes(size.size(), 0xFF);
  std::memset(workspace.data(), 0, exchange_bytes);
  Arena arena(workspace.data());
  cut_exchange(plan, batch, arena, params);
  cut_history(model, args.options, batch, arena, params);
  follow(file, first_written, workspace, exchange_bytes);
  int timed_out = 0;
  params.timed_out = &timed_out;
  const cudaError_t error = with_model(model, [&](auto type) {
    using T = decltype(type);
    if (by_levels) return run_level_beam_search<T>(params, slot_tiles, nullptr);
    return run_beam_search<T>(params, batch.column_tiles, slot_tiles, nullptr);
  });
  return finish(error, timed_out, file, first_written, found_name);
}

}  // namespace
}  // namespace prnn::decode_cuda

int main(int count, char** words) { return prnn::decode_cuda::run({count, words}, words[count - 2], words[count - 1]); }
