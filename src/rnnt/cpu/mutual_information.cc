#include "rnnt/cpu/mutual_information.h"

#include <algorithm>
#include <limits>

#include "core/cpu/loss_schedule.h"
#include "rnnt/cpu/lattice.h"

namespace prnn {
namespace {

int64_t max_steps(const prnnMutualInformationOptions_t& o) {
  return o.type == PRNN_RNNT_REGULAR ? o.frames + o.symbols : o.frames;
}

template <class T>
void run(const MutualInformationParams& params) {
  const prnnMutualInformationOptions_t& o = params.options;
  const bool regular = o.type == PRNN_RNNT_REGULAR;
  const int64_t columns = px_columns(o);
  const size_t slot_size = Lattice::scratch_size(max_steps(o), o.symbols + 1);
  const int64_t slots = slots_of_call(o.batch);

#pragma omp parallel for schedule(static, 1) num_threads(region_threads(true, slots))
  for (int64_t slot = 0; slot < slots; ++slot) {
    Lattice lattice(static_cast<char*>(params.workspace) + slot * slot_size, max_steps(o), o.symbols + 1);
    for (int64_t n = slot; n < o.batch; n += slots) {
      const Boundary b = boundary_of(o, params.boundary, n);
      const int64_t frames = b.t_end - b.t_begin, symbols = b.s_end - b.s_begin;
      const int64_t node_frames = regular ? frames + 1 : frames;  // frames with nodes from which arcs go
      const T* px = static_cast<const T*>(params.px) + n * o.symbols * columns;
      const T* py = static_cast<const T*>(params.py) + n * (o.symbols + 1) * o.frames;
      const double none = -std::numeric_limits<double>::infinity();
      lattice.set_full(regular, node_frames, frames, symbols);
      for (int64_t s = 0; s <= symbols; ++s) {
        const T* px_row = px + (b.s_begin + s) * columns + b.t_begin;
        const T* py_row = py + (b.s_begin + s) * o.frames + b.t_begin;
        for (int64_t t = 0; t < node_frames; ++t) {
          const int64_t step = lattice.step(t, s);
          if (step == (regular ? frames + symbols : frames) || !lattice.has(step, s)) continue;
          lattice.blank(step, s) = t < frames ? static_cast<double>(py_row[t]) : none;
          lattice.label(step, s) = s < symbols ? static_cast<double>(px_row[t]) : none;
        }
      }
      const double total = lattice.sum_paths();
      static_cast<T*>(params.scores)[n] = static_cast<T>(total);
      if (params.py_gradients == nullptr) continue;

      lattice.share(total);
      T* px_gradients = static_cast<T*>(params.px_gradients) + n * o.symbols * columns;
      T* py_gradients = static_cast<T*>(params.py_gradients) + n * (o.symbols + 1) * o.frames;
      std::fill_n(px_gradients, o.symbols * columns, T(0));
      std::fill_n(py_gradients, (o.symbols + 1) * o.frames, T(0));
      for (int64_t s = 0; s <= symbols; ++s) {
        T* px_row = px_gradients + (b.s_begin + s) * columns + b.t_begin;
        T* py_row = py_gradients + (b.s_begin + s) * o.frames + b.t_begin;
        for (int64_t t = 0; t < node_frames; ++t) {
          const int64_t step = lattice.step(t, s);
          if (step == (regular ? frames + symbols : frames) || !lattice.has(step, s)) continue;
          if (t < frames) py_row[t] = static_cast<T>(lattice.blank(step, s));
          if (s < symbols) px_row[t] = static_cast<T>(lattice.label(step, s));
        }
      }
    }
  }
}

}  // namespace

size_t mutual_information_workspace_size_cpu(const prnnMutualInformationOptions_t& options) {
  return slots_size(Lattice::scratch_size(max_steps(options), options.symbols + 1), options.batch);
}

void run_mutual_information_cpu(const MutualInformationParams& params) {
  params.options.dataType == PRNN_DATA_DOUBLE ? run<double>(params) : run<float>(params);
}

}  // namespace prnn
