#include "rnn/cpu/buffers.h"

#include <algorithm>

#include "core/cpu/gemm/gemm.h"
#include "rnn/cpu/steps.h"

namespace prnn {
namespace {

// n rounded up to whole panels.
template <class T>
int64_t padded(int64_t n) {
  const int64_t width = gemm_kernels<T>().width;
  return (n + width - 1) / width * width;
}

// Panels of n columns that are packed: all, or where the others are used as they lie, one that has not all its columns.
template <class T>
int64_t packed_columns(const RnnProblem& p, int64_t n) {
  const int64_t width = gemm_kernels<T>().width;
  return packs_recurrent(p) ? padded<T>(n) : n % width == 0 ? 0 : width;
}

// Elements of [N][H], of as many states as cx has.
int64_t states_count(const RnnProblem& p) { return std::max<int64_t>(p.cell_states(), 1) * p.max_batch() * p.hidden; }

bool has_dropout(const RnnProblem& p) { return p.dropout.probability > 0 && p.layers > 1; }

}  // namespace

bool packs_recurrent(const RnnProblem& p) {
  constexpr int64_t kSteps = 2, kStepsOfFew = 5;
  const bool few = p.max_batch() <= gemm_kernels<float>().few;
  return p.steps() > (few ? kStepsOfFew : kSteps) || p.max_batch() > kTileVectors;
}

template <class T>
int64_t input_rows(const RnnProblem& p) {
  constexpr int64_t kBytes = 512 << 10, kLeast = 48, kOnce = 1024;
  if (p.rows <= std::min(kOnce, 2 * widest_input(p))) return p.rows;
  return std::min(p.rows, std::max(kLeast, kBytes / (p.gates() * p.hidden * static_cast<int64_t>(sizeof(T)))));
}

template int64_t input_rows<float>(const RnnProblem&);
template int64_t input_rows<double>(const RnnProblem&);

template <class T>
Reserve<T>::Reserve(const RnnProblem& p, bool keeps_gates, void* base) {
  Carver carver(base);
  const bool gru = p.mode == PRNN_GRU, has_cells = gru || p.cell_states() > 0;
  const bool keeps = keeps_gates && has_cells;
  const int64_t width = p.recurrences() * p.state();
  directions.resize(p.frozen * p.recurrences());
  while (static_cast<int64_t>(directions.size()) < p.layers * p.recurrences()) {
    DirectionReserve<T> d;
    d.gates = carver.take<T>(p.rows * p.gates() * p.hidden);
    d.dgates = keeps ? carver.take<T>(p.rows * p.gates() * p.hidden) : d.gates;
    d.cells = carver.take<T>(has_cells ? p.rows * p.hidden : 0);
    d.last_n = carver.take<T>(p.is_slstm() ? p.max_batch() * p.hidden : 0);
    d.dcandidate = keeps && gru ? carver.take<T>(p.rows * p.hidden) : d.cells;
    d.unprojected = carver.take<T>(p.projection > 0 ? p.rows * p.hidden : 0);
    d.dh = carver.take<T>(p.projection > 0 ? p.rows * p.projection : 0);
    directions.push_back(d);
  }
  for (int64_t layer = 0; layer + 1 < p.layers; ++layer) {
    const bool is_kept = layer + 1 >= p.frozen;
    outputs.push_back(is_kept ? carver.take<T>(p.rows * width) : nullptr);
    masks.push_back(is_kept && has_dropout(p) ? carver.take<uint8_t>(p.rows * width) : nullptr);
  }
  size = carver.size();
}

template <class T>
ForwardWorkspace<T>::ForwardWorkspace(const RnnProblem& p, bool training, void* base) {
  Carver carver(base);
  const bool packs = packs_recurrent(p);
  const int64_t all = p.rows * p.recurrences() * p.state();
  recurrent = carver.take<T>(packs ? padded<T>(p.hidden) * p.gates() * p.state() : 0);
  projection = carver.take<T>(packs ? padded<T>(p.projection) * p.hidden : 0);
  const int64_t rows = input_rows<T>(p);
  input = carver.take<T>(rows < p.rows ? padded<T>(p.gates() * p.hidden) * widest_input(p) : 0);
  bias = carver.take<T>(p.gates() * p.hidden);
  recurrent_bias = carver.take<T>(p.gates() * p.hidden);
  const int64_t passing = training ? p.frozen : p.layers;  // layers of which nothing is kept
  gates = carver.take<T>(passing > 0 ? std::min(p.rows, rows + p.max_batch()) * p.gates() * p.hidden : 0);
  between = carver.take<T>(passing > 1 ? all : 0);
  dropped = carver.take<T>(training && has_dropout(p) ? all : 0);
  zeros = carver.take<T>(states_count(p));
  for (T** states : {&masked[0], &masked[1], &masked_initial}) {
    *states = carver.take<T>(p.masks.recurrent != nullptr ? p.max_batch() * p.hidden : 0);
  }
  masked_reset =
      carver.take<T>(p.masks.recurrent != nullptr && p.extras.reset != nullptr ? p.max_batch() * p.hidden : 0);
  cells = carver.take<T>((passing > 0 && p.mode == PRNN_LSTM) || p.is_slstm() ? states_count(p) : 0);
  unprojected = carver.take<T>(passing > 0 && p.projection > 0 ? p.max_batch() * p.hidden : 0);
  size = carver.size();
}

template <class T>
BackwardDataWorkspace<T>::BackwardDataWorkspace(const RnnProblem& p, void* base) {
  Carver carver(base);
  const int64_t all = p.rows * p.recurrences() * p.state();
  recurrent = carver.take<T>(packed_columns<T>(p, p.state()) * p.gates() * p.hidden);
  projection = carver.take<T>(p.projection > 0 ? packed_columns<T>(p, p.hidden) * p.projection : 0);
  dy = carver.take<T>(p.layers > 1 ? all : 0);
  carry = carver.take<T>(p.gates() > 1 ? states_count(p) : 0);
  ratio = carver.take<T>(p.is_slstm() ? p.max_batch() * p.hidden : 0);
  reset_ratio = carver.take<T>(p.is_slstm() ? p.max_batch() * p.hidden : 0);
  const bool zones_out = p.mode == PRNN_LSTM && p.zones_out();
  carried_h = carver.take<T>(zones_out ? p.max_batch() * p.hidden : 0);
  dh_of_cells = carver.take<T>(zones_out ? p.max_batch() * p.hidden : 0);
  if (!zones_out) carried_h = nullptr;
  zeros = carver.take<T>(states_count(p));
  size = carver.size();
}

template <class T>
BackwardWeightsWorkspace<T>::BackwardWeightsWorkspace(const RnnProblem& p, void* base) {
  Carver carver(base);
  h_prev = carver.take<T>(p.rows * p.state());
  dropped = carver.take<T>(has_dropout(p) ? p.rows * p.recurrences() * p.state() : 0);
  sums = carver.take<double>((p.gates() + (p.mode == PRNN_GRU ? 1 : 0)) * p.hidden);
  size = carver.size();
}

template <class T>
size_t rnn_workspace_size(const RnnProblem& p) {
  return std::max({ForwardWorkspace<T>(p, false, nullptr).size, ForwardWorkspace<T>(p, true, nullptr).size,
                   BackwardDataWorkspace<T>(p, nullptr).size, BackwardWeightsWorkspace<T>(p, nullptr).size});
}

template struct Reserve<float>;
template struct Reserve<double>;
template struct ForwardWorkspace<float>;
template struct ForwardWorkspace<double>;
template struct BackwardDataWorkspace<float>;
template struct BackwardDataWorkspace<double>;
template struct BackwardWeightsWorkspace<float>;
template struct BackwardWeightsWorkspace<double>;
template size_t rnn_workspace_size<float>(const RnnProblem&);
template size_t rnn_workspace_size<double>(const RnnProblem&);

}  // namespace prnn
