#include "decode/cpu/search.h"

#include <atomic>
#include <cmath>
#include <limits>

#include "core/cpu/loss_kernels.h"
#include "rnn/cpu/cells.h"

namespace prnn {
namespace {

constexpr int64_t kWindowRows = 8;  // frames scored at once, of all of a thread's utterances, where they are few
constexpr double kImpossible = -std::numeric_limits<double>::infinity();

// An utterance that is being searched.
struct Lane {
  int64_t row = -1;      // of the batch; -1: none
  int64_t frame = 0;     // the next one to be scored
  int64_t in_frame = 0;  // symbols that it has already
  int64_t count = 0;     // symbols so far
  int node = 0;          // of the bias
  double score = 0;
  bool is_pending = false;  // the predictor is to read `symbol`, or, if that is -1, its output is to be projected
  int symbol = -1;
};

// What a thread works with.
template <class T>
struct LaneArrays {
  LaneArrays(Arena& arena, const TransducerModel& m, const PreparedTransducer<T>& prepared)
      : steps(arena, m, prepared),
        h(arena.take<T>(is_recurrent(m) ? kLanes * m.layers * m.hiddenSize : 0)),
        c(arena.take<T>(m.predictor == PRNN_PREDICTOR_LSTM ? kLanes * m.layers * m.hiddenSize : 0)),
        context(arena.take<int>(is_recurrent(m) ? 0 : kLanes * m.context)),
        projections(arena.take<T>(kLanes * PredictorSteps<T>::projection_stride(m))),
        activations(arena.take<T>(kLanes * m.joinerSize)),
        logits(arena.take<T>(kLanes * output_rows(m))) {}

  PredictorSteps<T> steps;
  T* h;            // {kLanes, layers, H}
  T* c;            // {kLanes, layers, H}
  int* context;    // {kLanes, context}
  T* projections;  // {kLanes, J, whole panels}
  T* activations;  // {kLanes, J}: of the frames that are scored at once
  T* logits;       // {kLanes, V + D}
};

// The products of the frames, before the threads' parts.
template <class T>
T* take_projected_frames(Arena& arena, const TransducerModel& m, const prnnTransducerSearchOptions_t& o) {
  return arena.take<T>(o.batch * o.maxFrames * m.joinerSize);
}

template <class T>
size_t lane_bytes(const TransducerModel& m) {
  Arena arena(nullptr);
  const PreparedTransducer<T> prepared(m, nullptr);
  LaneArrays<T>(arena, m, prepared);
  return (arena.size() + 63) / 64 * 64;
}

// The best of a softmax over `count` logits, with what the bias gives, or not `is_valid`: see prnn_decode.h.
struct Choice {
  bool is_valid = false;
  int64_t index = 0;
  double log_prob = 0;
};

template <class T>
class Thread {
 public:
  Thread(const TransducerModel& m, const PreparedTransducer<T>& prepared, const TransducerSearchArgs& args,
         const T* frames, std::atomic<int64_t>& queue, void* arrays, char* scratch)
      : m_(m),
        prepared_(prepared),
        args_(args),
        frames_(frames),
        queue_(queue),
        arena_(arrays),
        arrays_(arena_, m, prepared),
        scratch_(scratch) {}

  void run() {
    int64_t active;
    while ((active = fill_lanes()) > 0) {
      run_predictor();
      score_frames(active);
      for (int64_t i = 0; i < kLanes; ++i) {
        if (lanes_[i].row >= 0 && lanes_[i].frame >= length(lanes_[i]) && !must_step(lanes_[i])) end(i);
      }
    }
  }

 private:
  int64_t length(const Lane& lane) const {
    return args_.inputs.lengths != nullptr ? args_.inputs.lengths[lane.row] : args_.options.maxFrames;
  }
  // At the end of a whole utterance nobody asks for the predictor's state.
  bool must_step(const Lane& lane) const { return lane.is_pending && args_.state != nullptr; }
  int64_t slot(const Lane& lane) const {
    return args_.state->slots != nullptr ? args_.state->slots[lane.row] : lane.row;
  }
  PredictorState<T> state(int64_t i) const {
    const int64_t size = m_.layers * m_.hiddenSize;
    if (!is_recurrent(m_)) return {nullptr, nullptr, arrays_.context + i * m_.context};
    return {arrays_.h + i * size, m_.predictor == PRNN_PREDICTOR_LSTM ? arrays_.c + i * size : nullptr, nullptr};
  }
  T* projection(int64_t i) const { return arrays_.projections + i * PredictorSteps<T>::projection_stride(m_); }

  // Gives lanes without an utterance the next ones of the batch. Returns how many have one.
  int64_t fill_lanes() {
    int64_t active = 0;
    for (int64_t i = 0; i < kLanes; ++i) {
      if (lanes_[i].row < 0 && !is_queue_empty_) {
        const int64_t row = queue_.fetch_add(1, std::memory_order_relaxed);
        is_queue_empty_ = row >= args_.options.batch;
        if (!is_queue_empty_) begin(i, row);
      }
      active += lanes_[i].row >= 0;
    }
    return active;
  }

  void begin(int64_t i, int64_t row) {
    Lane& lane = lanes_[i];
    lane = Lane{};
    lane.row = row;
    lane.is_pending = true;
    const PredictorState<T> own = state(i);
    const int64_t size = m_.layers * m_.hiddenSize;
    const prnnTransducerState_t* const pool = args_.state;
    const int64_t from = pool != nullptr ? slot(lane) : 0;
    if (pool == nullptr || pool->ahead[from] < 0) {
      if (own.h != nullptr) std::fill_n(own.h, size, T(0));
      if (own.c != nullptr) std::fill_n(own.c, size, T(0));
      if (own.context != nullptr) std::fill_n(own.context, m_.context, static_cast<int>(m_.blank));
      lane.symbol = static_cast<int>(m_.blank);
      return;
    }
    lane.frame = pool->ahead[from];
    if (args_.inputs.bias != nullptr) lane.node = pool->node[from];
    if (pool->score != nullptr) lane.score = pool->score[from];
    if (own.h != nullptr) std::copy_n(static_cast<const T*>(pool->h) + from * size, size, own.h);
    if (own.c != nullptr) std::copy_n(static_cast<const T*>(pool->c) + from * size, size, own.c);
    if (own.context != nullptr) std::copy_n(pool->context + from * m_.context, m_.context, own.context);
  }

  void end(int64_t i) {
    Lane& lane = lanes_[i];
    args_.outputs.counts[lane.row] = static_cast<int>(lane.count);
    if (args_.outputs.scores != nullptr) args_.outputs.scores[lane.row] = lane.score;
    if (const prnnTransducerState_t* const pool = args_.state) {
      const PredictorState<T> own = state(i);
      const int64_t size = m_.layers * m_.hiddenSize, to = slot(lane);
      pool->ahead[to] = static_cast<int>(lane.frame - length(lane));
      if (args_.inputs.bias != nullptr) pool->node[to] = lane.node;
      if (pool->score != nullptr) pool->score[to] = lane.score;
      if (own.h != nullptr) std::copy_n(own.h, size, static_cast<T*>(pool->h) + to * size);
      if (own.c != nullptr) std::copy_n(own.c, size, static_cast<T*>(pool->c) + to * size);
      if (own.context != nullptr) std::copy_n(own.context, m_.context, pool->context + to * m_.context);
    }
    lane.row = -1;
  }

  void run_predictor() {
    int symbols[kLanes];
    PredictorState<T> states[kLanes];
    T* projections[kLanes];
    int64_t count = 0;
    for (int64_t i = 0; i < kLanes; ++i) {
      if (lanes_[i].row < 0 || !lanes_[i].is_pending) continue;
      lanes_[i].is_pending = false;
      symbols[count] = lanes_[i].symbol;
      states[count] = state(i);
      projections[count++] = projection(i);
    }
    if (count > 0) arrays_.steps.run(symbols, states, count, projections, scratch_);
  }

  // Scores the next frame of every lane, or the next ones: the predictor's output stays the same up to a symbol.
  void score_frames(int64_t active) {
    const int64_t window = m_.durationCount > 0 ? 1 : std::max<int64_t>(1, kWindowRows / active);
    int64_t begins[kLanes + 1], rows = 0;
    for (int64_t i = 0; i < kLanes; ++i) {
      const Lane& lane = lanes_[i];
      begins[i] = rows;
      if (lane.row < 0) continue;
      for (int64_t t = lane.frame; t < std::min(lane.frame + window, length(lane)); ++t) {
        activate(frames_ + (lane.row * args_.options.maxFrames + t) * m_.joinerSize, projection(i),
                 arrays_.activations + rows++ * m_.joinerSize);
      }
    }
    begins[kLanes] = rows;
    if (rows == 0) return;
    multiply_rows(arrays_.activations, rows, m_.joinerSize, prepared_.output_panels, prepared_.output_bias,
                  output_rows(m_), arrays_.logits, scratch_);
    for (int64_t i = 0; i < kLanes; ++i) {
      for (int64_t row = begins[i]; row < begins[i + 1]; ++row) {
        if (!take_step(lanes_[i], arrays_.logits + row * output_rows(m_))) break;
      }
    }
  }

  // out = activation(x + g). The cells of a plain recurrent layer, of panels of units.
  void activate(const T* x, const T* g, T* out) const {
    const int64_t width = gemm_kernels<T>().width, whole = m_.joinerSize / width;
    ForwardCell<T> cell;
    cell.n = whole;
    cell.units = cell.hidden = cell.ld_h = width;
    cell.gates = const_cast<T*>(x);
    cell.product = g;
    cell.h = out;
    const auto forward = cell_kernels<T>().forward[m_.activation == PRNN_JOINT_TANH ? PRNN_RNN_TANH : PRNN_RNN_RELU];
    if (whole > 0) forward(cell);
    cell.n = 1;
    cell.units = m_.joinerSize - whole * width;
    cell.gates += whole * width;
    cell.product += whole * width;
    cell.h += whole * width;
    if (cell.units > 0) forward(cell);
  }

  // Takes a class at a lane's frame. Returns whether the next frame is to be scored with the same predictor's output.
  bool take_step(Lane& lane, const T* logits) {
    const Choice choice = choose(logits, m_.classes, lane.node, args_.inputs.bias != nullptr);
    const bool is_symbol = choice.is_valid && choice.index != m_.blank;
    int64_t duration = is_symbol ? 0 : 1;
    lane.score += choice.is_valid ? choice.log_prob : kImpossible;
    if (m_.durationCount > 0 && choice.is_valid) {
      const Choice best = choose(logits + m_.classes, m_.durationCount, 0, false);
      duration = best.is_valid ? m_.durations[best.index] : 1;
      lane.score += best.is_valid ? best.log_prob : kImpossible;
    }
    lane.in_frame += is_symbol;
    if (!is_symbol || lane.in_frame == args_.options.maxSymbols) duration = std::max<int64_t>(duration, 1);
    if (is_symbol) append(lane, static_cast<int>(choice.index), duration, logits);
    lane.frame += duration;
    if (duration > 0) lane.in_frame = 0;
    return !is_symbol && m_.durationCount == 0;
  }

  Choice choose(const T* logits, int64_t count, int node, bool with_bias) const {
    T maximum;
    double log_sum;
    log_normaliser(losses_, logits, count, &maximum, &log_sum);
    Choice choice;
    choice.is_valid = !std::isnan(log_sum);
    if (!choice.is_valid) return choice;
    if (!with_bias) {
      choice.index = std::find(logits, logits + count, maximum) - logits;
      choice.log_prob = -log_sum;
      return choice;
    }
    const T* const gains = static_cast<const T*>(args_.inputs.bias->gains) + node * m_.classes;
    choice.log_prob = kImpossible;
    for (int64_t i = 0; i < count; ++i) {
      const double gain = i == m_.blank ? 0.0 : static_cast<double>(gains[i]);
      const double value = (static_cast<double>(logits[i]) - maximum - log_sum) + gain;
      if (value > choice.log_prob) choice = {true, i, value};
    }
    return choice;
  }

  void append(Lane& lane, int symbol, int64_t duration, const T* logits) {
    const prnnTransducerOutputs_t& out = args_.outputs;
    const int64_t at = lane.row * most_symbols(args_.options) + lane.count++;
    out.symbols[at] = symbol;
    if (out.frames != nullptr) out.frames[at] = static_cast<int>(lane.frame);
    if (out.durations != nullptr) out.durations[at] = static_cast<int>(duration);
    const double logit = logits[symbol];
    if (out.logProbs != nullptr) static_cast<T*>(out.logProbs)[at] = log_prob(logit, logits, m_.classes);
    if (out.confidences != nullptr) static_cast<T*>(out.confidences)[at] = confidence(logit, logits);
    if (args_.inputs.bias != nullptr) lane.node = args_.inputs.bias->next[lane.node * m_.classes + symbol];
    lane.is_pending = true;
    lane.symbol = symbol;
  }

  T log_prob(double logit, const T* logits, int64_t count) const {
    T maximum;
    double log_sum;
    log_normaliser(losses_, logits, count, &maximum, &log_sum);
    return static_cast<T>(logit - maximum - log_sum);
  }

  // Among the classes on both sides of the blank. That is not the difference to the blank's probability, which could be
  // all but 1.
  T confidence(double logit, const T* logits) const {
    T maxima[2];
    double log_sums[2];
    const int64_t sizes[2] = {m_.blank, m_.classes - m_.blank - 1};
    const T* const parts[2] = {logits, logits + m_.blank + 1};
    for (int i = 0; i < 2; ++i) {
      maxima[i] = -std::numeric_limits<T>::infinity();
      log_sums[i] = 0;
      if (sizes[i] > 0) log_normaliser(losses_, parts[i], sizes[i], &maxima[i], &log_sums[i]);
      if (std::isinf(maxima[i])) log_sums[i] = 0;  // no symbol of this part has a probability
    }
    const double maximum = std::max(maxima[0], maxima[1]);
    double sum = 0;
    for (int i = 0; i < 2; ++i) sum += std::exp(maxima[i] - maximum + log_sums[i]);
    return static_cast<T>(logit - maximum - std::log(sum));
  }

  const TransducerModel& m_;
  const PreparedTransducer<T>& prepared_;
  const TransducerSearchArgs& args_;
  const T* frames_;  // {N, T, J}
  std::atomic<int64_t>& queue_;
  bool is_queue_empty_ = false;
  Arena arena_;
  LaneArrays<T> arrays_;
  char* scratch_;
  Lane lanes_[kLanes];
  const LossKernels& losses_ = loss_kernels();
};

// Threads worth starting: each has at least one utterance.
template <class T>
int search_threads(const TransducerModel& m, const prnnTransducerSearchOptions_t& o) {
  const double macs = static_cast<double>(o.batch * o.maxFrames) * static_cast<double>(output_rows(m) * m.joinerSize);
  return std::min<int64_t>(team_size(2 * macs), o.batch);
}

}  // namespace

template <class T>
WorkspaceSize transducer_search_workspace_cpu(const TransducerModel& m, const prnnTransducerSearchOptions_t& o) {
  Arena arena(nullptr);
  take_projected_frames<T>(arena, m, o);
  const size_t frames = (arena.size() + 15) / 16 * 16, lanes = lane_bytes<T>(m);
  return {frames + static_cast<size_t>(search_threads<T>(m, o)) * lanes, frames + lanes};
}

template <class T>
void transducer_search_cpu(const TransducerModel& m, const TransducerSearchArgs& args) {
  const PreparedTransducer<T> prepared(m, const_cast<void*>(args.prepared));
  const size_t lanes = lane_bytes<T>(m), least = transducer_search_workspace_cpu<T>(m, args.options).least;
  const auto room = static_cast<int64_t>((args.workspace_size - least) / lanes + 1);
  const int threads = static_cast<int>(std::min<int64_t>(search_threads<T>(m, args.options), room));
  char* const scratch = gemm_scratch<T>(threads);

  Arena arena(args.workspace);
  const auto* frames = static_cast<const T*>(args.inputs.frames);
  T* const projected = take_projected_frames<T>(arena, m, args.options);
  char* const arrays = static_cast<char*>(args.workspace) + (least - lanes);
  Gemm<T> gemm;
  if (*prepared.has_encoder) {
    gemm.m = args.options.batch * args.options.maxFrames;
    gemm.n = gemm.ldc = m.joinerSize;
    gemm.k = gemm.lda = m.encoderSize;
    gemm.a = frames;
    gemm.panels = prepared.encoder_panels;
    gemm.c = projected;
    gemm.bias = prepared.encoder_bias;
    gemm.scratch = scratch;
    frames = projected;
  }
  std::atomic<int64_t> queue{0};
  run_team(threads, [&](const Team& team) {
    if (*prepared.has_encoder) {
      team_gemm(team, gemm);
      team.sync();
    }
    const auto rank = static_cast<size_t>(team.rank());
    Thread<T>(m, prepared, args, frames, queue, arrays + rank * lanes, scratch + rank * gemm_kernels<T>().scratch_bytes)
        .run();
  });
}

template WorkspaceSize transducer_search_workspace_cpu<float>(const TransducerModel&,
                                                              const prnnTransducerSearchOptions_t&);
template WorkspaceSize transducer_search_workspace_cpu<double>(const TransducerModel&,
                                                               const prnnTransducerSearchOptions_t&);
template void transducer_search_cpu<float>(const TransducerModel&, const TransducerSearchArgs&);
template void transducer_search_cpu<double>(const TransducerModel&, const TransducerSearchArgs&);

}  // namespace prnn
