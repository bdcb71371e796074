#include "decode/cpu/search.h"

#include <atomic>

#include "decode/cpu/joint.h"

namespace prnn {
namespace {

constexpr int64_t kWindowRows = 8;  // frames scored at once, of all of a thread's utterances, where they are few

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

// A thread's working memory.
template <class T>
struct LaneArrays {
  LaneArrays(Arena& arena, const TransducerModel& m, const PreparedTransducer<T>& prepared)
      : steps(arena, m, prepared),
        states(take_states<T>(arena, m, kLanes)),
        projections(arena.take<T>(kLanes * PredictorSteps<T>::projection_stride(m))),
        activations(arena.take<T>(kLanes * m.joinerSize)),
        logits(arena.take<T>(kLanes * output_rows(m))) {}

  PredictorSteps<T> steps;
  PredictorState<T> states;  // of the first lane; the others follow
  T* projections;            // {kLanes, J, whole panels}
  T* activations;            // {kLanes, J}: of the frames that are scored at once
  T* logits;                 // {kLanes, V + D}
};

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
         const T* frames, int64_t lanes, std::atomic<int64_t>& queue, void* arrays, char* scratch)
      : m_(m),
        prepared_(prepared),
        args_(args),
        frames_(frames),
        lane_count_(lanes),
        queue_(queue),
        arena_(arrays),
        arrays_(arena_, m, prepared),
        scratch_(scratch),
        joint_(m, prepared, scratch) {}

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
  PredictorState<T> state(int64_t i) const { return state_at(m_, arrays_.states, i); }
  PredictorState<T> pooled(int64_t slot) const {
    const prnnTransducerState_t& pool = *args_.state;
    return state_at<T>(m_, {static_cast<T*>(pool.h), static_cast<T*>(pool.c), pool.context}, slot);
  }
  T* projection(int64_t i) const { return arrays_.projections + i * PredictorSteps<T>::projection_stride(m_); }

  // Gives lanes without an utterance the next ones of the batch. Returns how many have one.
  int64_t fill_lanes() {
    int64_t active = 0;
    for (int64_t i = 0; i < lane_count_; ++i) {
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
    const prnnTransducerState_t* const pool = args_.state;
    const int64_t from = pool != nullptr ? slot(lane) : 0;
    if (pool == nullptr || pool->ahead[from] < 0) {
      begin_state(m_, state(i));
      lane.symbol = static_cast<int>(m_.blank);
      return;
    }
    lane.frame = pool->ahead[from];
    if (args_.inputs.bias != nullptr) lane.node = pool->node[from];
    if (pool->score != nullptr) lane.score = pool->score[from];
    copy_state(m_, pooled(from), state(i));
  }

  void end(int64_t i) {
    Lane& lane = lanes_[i];
    args_.outputs.counts[lane.row] = static_cast<int>(lane.count);
    if (args_.outputs.scores != nullptr) args_.outputs.scores[lane.row] = lane.score;
    if (const prnnTransducerState_t* const pool = args_.state) {
      const int64_t to = slot(lane);
      pool->ahead[to] = static_cast<int>(lane.frame - length(lane));
      if (args_.inputs.bias != nullptr) pool->node[to] = lane.node;
      if (pool->score != nullptr) pool->score[to] = lane.score;
      copy_state(m_, state(i), pooled(to));
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
        joint_.activate(frames_ + (lane.row * args_.options.maxFrames + t) * m_.joinerSize, projection(i),
                        arrays_.activations + rows++ * m_.joinerSize);
      }
    }
    begins[kLanes] = rows;
    if (rows == 0) return;
    joint_.score(arrays_.activations, rows, arrays_.logits);
    for (int64_t i = 0; i < kLanes; ++i) {
      for (int64_t row = begins[i]; row < begins[i + 1]; ++row) {
        if (!take_step(lanes_[i], arrays_.logits + row * output_rows(m_))) break;
      }
    }
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
    const Normaliser<T> normaliser = joint_.normaliser(logits, count);
    Choice choice;
    choice.is_valid = normaliser.is_valid();
    if (!choice.is_valid) return choice;
    if (!with_bias) {
      choice.index = std::find(logits, logits + count, normaliser.maximum) - logits;
      choice.log_prob = -normaliser.log_sum;
      return choice;
    }
    const T* const gains = static_cast<const T*>(args_.inputs.bias->gains) + node * m_.classes;
    choice.log_prob = kImpossible;
    for (int64_t i = 0; i < count; ++i) {
      const double gain = i == m_.blank ? 0.0 : static_cast<double>(gains[i]);
      const double value = normaliser.log_prob(logits[i]) + gain;
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
    if (out.logProbs != nullptr) {
      static_cast<T*>(out.logProbs)[at] = static_cast<T>(joint_.normaliser(logits, m_.classes).log_prob(logit));
    }
    if (out.confidences != nullptr) static_cast<T*>(out.confidences)[at] = joint_.confidence(logit, logits);
    if (args_.inputs.bias != nullptr) lane.node = args_.inputs.bias->next[lane.node * m_.classes + symbol];
    lane.is_pending = true;
    lane.symbol = symbol;
  }

  const TransducerModel& m_;
  const PreparedTransducer<T>& prepared_;
  const TransducerSearchArgs& args_;
  const T* frames_;     // {N, T, J}
  int64_t lane_count_;  // at most kLanes, so that each thread has some of a small batch
  std::atomic<int64_t>& queue_;
  bool is_queue_empty_ = false;
  Arena arena_;
  LaneArrays<T> arrays_;
  char* scratch_;
  Joint<T> joint_;
  Lane lanes_[kLanes];
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
  JoinerFrames<T>(arena, m, o.batch, o.maxFrames);
  const size_t frames = (arena.size() + 15) / 16 * 16, lanes = lane_bytes<T>(m);
  return {frames + static_cast<size_t>(search_threads<T>(m, o)) * lanes, frames + lanes};
}

template <class T>
void transducer_search_cpu(const TransducerModel& m, const TransducerSearchArgs& args) {
  const PreparedTransducer<T> prepared(m, const_cast<void*>(args.prepared));
  const size_t lanes = lane_bytes<T>(m), least = transducer_search_workspace_cpu<T>(m, args.options).least;
  const auto room = static_cast<int64_t>((args.workspace_size - least) / lanes + 1);
  const int threads = static_cast<int>(std::min<int64_t>(search_threads<T>(m, args.options), room));
  const int64_t lanes_of_thread = std::min(kLanes, (args.options.batch + threads - 1) / threads);
  Arena arena(args.workspace);
  const JoinerFrames<T> frames(arena, m, args.options.batch, args.options.maxFrames);
  char* const arrays = static_cast<char*>(args.workspace) + (least - lanes);
  std::atomic<int64_t> queue{0};
  frames.run(m, prepared, args.inputs.frames, threads, [&](size_t rank, const T* x, char* scratch) {
    Thread<T>(m, prepared, args, x, lanes_of_thread, queue, arrays + rank * lanes, scratch).run();
  });
}

template WorkspaceSize transducer_search_workspace_cpu<float>(const TransducerModel&,
                                                              const prnnTransducerSearchOptions_t&);
template WorkspaceSize transducer_search_workspace_cpu<double>(const TransducerModel&,
                                                               const prnnTransducerSearchOptions_t&);
template void transducer_search_cpu<float>(const TransducerModel&, const TransducerSearchArgs&);
template void transducer_search_cpu<double>(const TransducerModel&, const TransducerSearchArgs&);

}  // namespace prnn
