#include "rnn/plan/tuned.h"

#include <cstring>
#include <vector>

namespace prnn {
namespace {

struct TunedPlan {
  const char* gpu;  // a row of gpu_table.cc
  prnnRNNMode_t mode;
  bool is_16bit;
  Pass pass;
  int hidden, batch;
  prnnRNNPlan_t plan;
};

// {row, mode (PRNN_RNN_TANH for both RNNs), 16 bits, pass, H, N, {engine, units, cluster, replicas, delay}}. None so
// far.
const std::vector<TunedPlan> kTuned = {};

}  // namespace

const prnnRNNPlan_t* find_tuned_plan(const GpuRow& row, const RnnProblem& problem, Pass pass) {
  if (problem.recurrences() > 1) return nullptr;
  const prnnRNNMode_t mode = problem.mode == PRNN_RNN_RELU ? PRNN_RNN_TANH : problem.mode;
  for (const TunedPlan& tuned : kTuned) {
    if (tuned.mode == mode && tuned.hidden == problem.hidden && tuned.batch == problem.max_batch() &&
        tuned.pass == pass && tuned.is_16bit == (problem.type != PRNN_DATA_FLOAT) &&
        std::strcmp(tuned.gpu, row.name) == 0) {
      return &tuned.plan;
    }
  }
  return nullptr;
}

}  // namespace prnn
