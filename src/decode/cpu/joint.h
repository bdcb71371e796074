// The joiner of a search on the CPU: activations of frames and projections, their logits, and log-probabilities. T:
// float or double.
#pragma once

#include <cmath>
#include <limits>

#include "core/cpu/loss_kernels.h"
#include "decode/cpu/prepared.h"

namespace prnn {

constexpr double kImpossible = -std::numeric_limits<double>::infinity();

// The normaliser of a softmax: x - maximum - log_sum is the log-probability of a logit x.
template <class T>
struct Normaliser {
  // Whether all logits are numbers and the largest is finite.
  bool is_valid() const { return !std::isnan(log_sum); }
  double log_prob(double logit) const { return logit - maximum - log_sum; }

  T maximum;
  double log_sum;
};

template <class T>
class Joint {
 public:
  // scratch: of gemm_scratch(), the thread's.
  Joint(const TransducerModel& m, const PreparedTransducer<T>& prepared, char* scratch)
      : m_(m), prepared_(prepared), scratch_(scratch) {}

  // out = activation(x + g). g: of PredictorSteps<T>::projection_stride() elements.
  void activate(const T* x, const T* g, T* out) const;

  // Activations {rows, J} to logits {rows, V + D}.
  void score(const T* activations, int64_t rows, T* logits) const;

  Normaliser<T> normaliser(const T* logits, int64_t count) const;

  // Natural log-probability of a logit among the classes but the blank.
  T confidence(double logit, const T* logits) const;

 private:
  const TransducerModel& m_;
  const PreparedTransducer<T>& prepared_;
  char* scratch_;
  const LossKernels& losses_ = loss_kernels();
};

// The frames of a search as the joiner takes them, {N, T, J}.
template <class T>
class JoinerFrames {
 public:
  // Takes room for their products.
  JoinerFrames(Arena& arena, const TransducerModel& m, int64_t batch, int64_t max_frames)
      : rows_(batch * max_frames), products_(arena.take<T>(rows_ * m.joinerSize)) {}

  // Calls search(rank, frames, scratch) in each of `threads`, after all of them together have multiplied the frames
  // where the model does so.
  template <class Search>
  void run(const TransducerModel& m, const PreparedTransducer<T>& prepared, const void* frames, int threads,
           const Search& search) const {
    const auto* x = static_cast<const T*>(frames);
    char* const scratch = gemm_scratch<T>(threads);
    Gemm<T> gemm;
    if (*prepared.has_encoder) {
      gemm.m = rows_;
      gemm.n = gemm.ldc = m.joinerSize;
      gemm.k = gemm.lda = m.encoderSize;
      gemm.a = x;
      gemm.panels = prepared.encoder_panels;
      gemm.c = products_;
      gemm.bias = prepared.encoder_bias;
      gemm.scratch = scratch;
      x = products_;
    }
    run_team(threads, [&](const Team& team) {
      if (*prepared.has_encoder) {
        team_gemm(team, gemm);
        team.sync();
      }
      const auto rank = static_cast<size_t>(team.rank());
      search(rank, x, scratch + rank * gemm_kernels<T>().scratch_bytes);
    });
  }

 private:
  int64_t rows_;
  T* products_;
};

}  // namespace prnn
