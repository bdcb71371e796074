#include "decode/cpu/beam.h"

#include <atomic>

#include "decode/cpu/joint.h"
#include "decode/cpu/predictor.h"
#include "decode/cpu/top.h"

namespace prnn {
namespace {

constexpr uint64_t kHashFactor = 0x9E3779B97F4A7C15;

// A hypothesis waits for this before it can be scored: a symbol for its predictor to read, or one of these.
constexpr int kReady = -1;        // nothing
constexpr int kUnprojected = -2;  // the projection of its predictor's output

struct Hypothesis {
  double score;
  uint64_t hash;
  int64_t history;  // its last symbol of this call; -1: none
  int64_t count;    // its symbols of this call
  int origin;
  int node;        // of the bias
  int ahead;       // frames that it passes over
  int state;       // of the lane's states: the one before `pending`; -1: dropped
  int pending;     // a symbol, kReady or kUnprojected
  double largest;  // while hypotheses are made one: the score of the most probable of them
};

uint64_t hash_with(uint64_t hash, int64_t symbol) { return hash * kHashFactor + static_cast<uint64_t>(symbol) + 1; }

// log(exp(a) + exp(b)) for a >= b, a finite.
double add_to_larger(double a, double b) { return a + std::log1p(std::exp(b - a)); }

// A symbol, and the one before it in the history.
template <class T>
struct Symbol {
  int64_t before;
  int symbol, frame;
  T confidence;
};

// An utterance that is being searched.
template <class T>
struct Lane {
  int64_t row = -1;  // of the batch; -1: none
  int64_t frame = 0;
  int64_t depth = 0;            // the level's number in its frame, from 0 on
  Hypothesis* level = nullptr;  // {K}: what is scored at the frame; where that is the last one, all there is
  int64_t level_count = 0;
  // Hypotheses that left the frame or wait for a later one, the most probable first; beyond the K-th no states, for
  // these can only be made one with others. `ahead` counts from the next frame on.
  Hypothesis* rest = nullptr;
  int64_t rest_count = 0;
  Hypothesis best{};     // of the frame's beginning
  bool is_dead = false;  // no hypothesis is left: `best` is the last one
  Symbol<T>* symbols = nullptr;
  int64_t symbol_count = 0;
  bool* is_used = nullptr;  // of the states
  PredictorState<T> states{};
  T* projections = nullptr;
};

// The scores of a hypothesis on its frame.
template <class T>
struct Scores {
  T* logits;  // that of the blank replaced by -infinity
  Normaliser<T> classes;
  double blank;                          // log-probability, as those of the durations
  double durations[PRNN_MAX_DURATIONS];  // 0 without durations
  double largest_duration;
};

// An extension that spells what another hypothesis does.
template <class T>
struct Pair {
  int row, symbol;
  T logit;
};

int64_t lanes_of(const prnnTransducerBeamOptions_t& o) { return std::max<int64_t>(kLanes / o.beam, 1); }

// The K best of `rest`, K of a level and K of the next one.
int64_t states_of(const prnnTransducerBeamOptions_t& o) { return 3 * o.beam; }

template <class T>
struct LaneArrays {
  LaneArrays(Arena& arena, const TransducerModel& m, const prnnTransducerBeamOptions_t& o,
             const PreparedTransducer<T>& prepared, Lane<T>* lanes)
      : steps(arena, m, prepared) {
    const int64_t count = lanes_of(o), rows = count * o.beam;
    for (int64_t i = 0; i < count; ++i) {
      Lane<T> lane;
      lane.level = arena.take<Hypothesis>(o.beam);
      lane.rest = arena.take<Hypothesis>((o.maxSymbols + 1) * o.beam);
      lane.symbols = arena.take<Symbol<T>>(o.beam * most_symbols(o) * (m.durationCount > 0 ? 2 : 1));
      lane.is_used = arena.take<bool>(states_of(o));
      lane.states = take_states<T>(arena, m, states_of(o));
      lane.projections = arena.take<T>(states_of(o) * PredictorSteps<T>::projection_stride(m));
      if (lanes != nullptr) lanes[i] = lane;
    }
    next = arena.take<Hypothesis>(o.beam);
    candidates = arena.take<Candidate>(o.beam);
    pairs = arena.take<Pair<T>>(o.beam);
    scores = arena.take<Scores<T>>(o.beam);
    blanks = arena.take<double>(o.beam);
    activations = arena.take<T>(rows * m.joinerSize);
    logits = arena.take<T>(rows * output_rows(m));
  }

  PredictorSteps<T> steps;
  Hypothesis* next;         // {K}
  Candidate* candidates;    // {K}
  Pair<T>* pairs;           // {K}
  Scores<T>* scores;        // {K}: of a lane's level
  double* blanks;           // {K}: scores of going on with a blank
  T *activations, *logits;  // {lanes K, J}, {lanes K, V + D}
};

template <class T>
size_t lane_bytes(const TransducerModel& m, const prnnTransducerBeamOptions_t& o) {
  Arena arena(nullptr);
  const PreparedTransducer<T> prepared(m, nullptr);
  LaneArrays<T>(arena, m, o, prepared, nullptr);
  return (arena.size() + 63) / 64 * 64;
}

template <class T>
class Thread {
 public:
  Thread(const TransducerModel& m, const PreparedTransducer<T>& prepared, const TransducerBeamArgs& args,
         const T* frames, int64_t lanes, std::atomic<int64_t>& queue, void* arrays, char* scratch)
      : m_(m),
        args_(args),
        o_(args.options),
        bias_(args.inputs.bias),
        frames_(frames),
        lane_count_(lanes),
        queue_(queue),
        arena_(arrays),
        arrays_(arena_, m, args.options, prepared, lanes_),
        scratch_(scratch),
        joint_(m, prepared, scratch) {}

  void run() {
    while (fill_lanes()) {
      run_predictor();
      score_levels();
      for (int64_t i = 0; i < lane_count_; ++i) {
        if (lanes_[i].row >= 0 && is_over(lanes_[i]) && !must_step(lanes_[i])) end(lanes_[i]);
      }
    }
  }

 private:
  int64_t length(const Lane<T>& lane) const {
    return args_.inputs.lengths != nullptr ? args_.inputs.lengths[lane.row] : o_.maxFrames;
  }
  bool is_over(const Lane<T>& lane) const { return lane.frame >= length(lane); }
  // At the end of a whole utterance nobody asks for the predictor's states.
  bool must_step(const Lane<T>& lane) const {
    if (args_.state == nullptr || lane.is_dead) return false;
    return std::any_of(lane.level, lane.level + lane.level_count,
                       [](const Hypothesis& h) { return h.pending != kReady; });
  }
  PredictorState<T> pooled(int64_t at) const {
    const prnnTransducerBeamState_t& pool = *args_.state;
    return state_at<T>(m_, {static_cast<T*>(pool.h), static_cast<T*>(pool.c), pool.context}, at);
  }
  // The first hypothesis of a lane in the pool.
  int64_t first_pooled(const Lane<T>& lane) const {
    return (args_.state->slots != nullptr ? args_.state->slots[lane.row] : lane.row) * o_.beam;
  }
  T* projection(const Lane<T>& lane, int64_t state) const {
    return lane.projections + state * PredictorSteps<T>::projection_stride(m_);
  }
  const T* gains(const Hypothesis& h) const {
    return bias_ == nullptr ? nullptr : static_cast<const T*>(bias_->gains) + h.node * m_.classes;
  }

  // Gives lanes without an utterance the next ones of the batch. Returns whether any lane has one.
  bool fill_lanes() {
    bool has_any = false;
    for (int64_t i = 0; i < lane_count_; ++i) {
      if (lanes_[i].row < 0 && !is_queue_empty_) {
        const int64_t row = queue_.fetch_add(1, std::memory_order_relaxed);
        is_queue_empty_ = row >= o_.batch;
        if (!is_queue_empty_) begin(lanes_[i], row);
      }
      has_any |= lanes_[i].row >= 0;
    }
    return has_any;
  }

  void begin(Lane<T>& lane, int64_t row) {
    lane.row = row;
    lane.frame = lane.level_count = lane.symbol_count = 0;
    lane.is_dead = false;
    const prnnTransducerBeamState_t* const pool = args_.state;
    const int64_t first = pool != nullptr ? first_pooled(lane) : 0;
    if (pool == nullptr || pool->ahead[first] < 0) {
      begin_state(m_, state_at(m_, lane.states, 0));
      lane.level[lane.level_count++] = {0.0, 0, -1, 0, 0, 0, 0, 0, static_cast<int>(m_.blank), 0.0};
    } else {
      for (int64_t k = 0; k < o_.beam; ++k) {
        if (pool->score[first + k] > kImpossible) load(lane, first, k);
      }
      std::sort(lane.level, lane.level + lane.level_count, [](const Hypothesis& a, const Hypothesis& b) {
        return a.score != b.score ? a.score > b.score : a.origin < b.origin;
      });
    }
    if (lane.level_count == 0) return die(lane, {kImpossible, 0, -1, 0, 0, 0, 0, -1, kReady, 0.0});
    begin_frame(lane);
  }

  void load(Lane<T>& lane, int64_t first, int64_t k) {
    const prnnTransducerBeamState_t& pool = *args_.state;
    const int64_t from = first + k, to = lane.level_count++;
    lane.level[to] = {pool.score[from],
                      pool.hash[from],
                      -1,
                      0,
                      static_cast<int>(k),
                      bias_ != nullptr ? pool.node[from] : 0,
                      pool.ahead[from],
                      static_cast<int>(to),
                      kUnprojected,
                      0.0};
    copy_state(m_, pooled(from), state_at(m_, lane.states, to));
  }

  // No hypothesis is left after this one.
  void die(Lane<T>& lane, const Hypothesis& last) const {
    lane.is_dead = true;
    lane.level[0] = last;
    lane.level[0].score = kImpossible;
    lane.level_count = 1;
    lane.frame = length(lane);
  }

  // `level` holds all hypotheses. Those that are not at the frame go on to `rest`.
  void begin_frame(Lane<T>& lane) const {
    lane.depth = lane.rest_count = 0;
    lane.best = lane.level[0];
    if (m_.durationCount == 0 || is_over(lane)) return;
    int64_t step = length(lane) - lane.frame;
    for (int64_t i = 0; i < lane.level_count; ++i) step = std::min<int64_t>(step, lane.level[i].ahead);
    lane.frame += step;
    int64_t here = 0;
    for (int64_t i = 0; i < lane.level_count; ++i) {
      Hypothesis h = lane.level[i];
      h.ahead -= static_cast<int>(step);
      if (h.ahead == 0 || is_over(lane)) {
        lane.level[here++] = h;
      } else {
        --h.ahead;
        lane.rest[lane.rest_count++] = h;
      }
    }
    lane.level_count = here;
  }

  // The best of `rest` are the hypotheses of the next frame.
  void end_frame(Lane<T>& lane) const {
    if (lane.rest_count == 0) return die(lane, lane.best);
    lane.level_count = std::min(lane.rest_count, o_.beam);
    std::copy_n(lane.rest, lane.level_count, lane.level);
    ++lane.frame;
    begin_frame(lane);
  }

  void end(Lane<T>& lane) {
    const prnnTransducerBeamOutputs_t& out = args_.outputs;
    for (int64_t k = 0; k < o_.beam; ++k) {
      const Hypothesis* const h = k < lane.level_count ? &lane.level[k] : nullptr;
      const int64_t at = lane.row * o_.beam + k;
      out.counts[at] = h != nullptr ? static_cast<int>(h->count) : 0;
      out.scores[at] = h != nullptr ? h->score : kImpossible;
      if (out.origins != nullptr) out.origins[at] = h != nullptr ? h->origin : 0;
      if (h != nullptr) write_symbols(lane, *h, at * most_symbols(o_));
      if (args_.state != nullptr) store(lane, h, k);
    }
    lane.row = -1;
  }

  void write_symbols(const Lane<T>& lane, const Hypothesis& h, int64_t begin) const {
    const prnnTransducerBeamOutputs_t& out = args_.outputs;
    int64_t at = begin + h.count;
    for (int64_t i = h.history; i >= 0; i = lane.symbols[i].before) {
      const Symbol<T>& symbol = lane.symbols[i];
      out.symbols[--at] = symbol.symbol;
      if (out.frames != nullptr) out.frames[at] = symbol.frame;
      if (out.confidences != nullptr) static_cast<T*>(out.confidences)[at] = symbol.confidence;
    }
  }

  void store(const Lane<T>& lane, const Hypothesis* h, int64_t k) const {
    const prnnTransducerBeamState_t& pool = *args_.state;
    const int64_t to = first_pooled(lane) + k;
    pool.score[to] = h != nullptr ? h->score : kImpossible;
    pool.ahead[to] = h != nullptr ? h->ahead : 0;
    if (h == nullptr || lane.is_dead) return;
    pool.hash[to] = h->hash;
    if (bias_ != nullptr) pool.node[to] = h->node;
    copy_state(m_, state_at(m_, lane.states, h->state), pooled(to));
  }

  // Runs the predictor for all hypotheses that are to be scored, or kept for the next call.
  void run_predictor() {
    int symbols[kLanes];
    PredictorState<T> states[kLanes];
    T* projections[kLanes];
    int64_t count = 0;
    const auto run = [&] {
      if (count > 0) arrays_.steps.run(symbols, states, count, projections, scratch_);
      count = 0;
    };
    for (int64_t i = 0; i < lane_count_; ++i) {
      Lane<T>& lane = lanes_[i];
      if (lane.row < 0 || lane.is_dead || (is_over(lane) && !must_step(lane))) continue;
      mark_states(lane);
      for (int64_t k = 0; k < lane.level_count; ++k) {
        Hypothesis& h = lane.level[k];
        if (h.pending == kReady) continue;
        const bool has_read = h.pending == kUnprojected;
        if (!has_read) move_state(lane, h);
        symbols[count] = has_read ? -1 : h.pending;
        states[count] = state_at(m_, lane.states, h.state);
        projections[count] = projection(lane, h.state);
        h.pending = kReady;
        if (++count == kLanes) run();
      }
    }
    run();
  }

  void mark_states(Lane<T>& lane) const {
    std::fill_n(lane.is_used, states_of(o_), false);
    for (int64_t k = 0; k < lane.level_count; ++k) lane.is_used[lane.level[k].state] = true;
    for (int64_t k = 0; k < std::min(lane.rest_count, o_.beam); ++k) lane.is_used[lane.rest[k].state] = true;
  }

  // Gives a hypothesis a copy of its state, since others may go on from the same one.
  void move_state(Lane<T>& lane, Hypothesis& h) const {
    const int64_t to = std::find(lane.is_used, lane.is_used + states_of(o_), false) - lane.is_used;
    lane.is_used[to] = true;
    copy_state(m_, state_at(m_, lane.states, h.state), state_at(m_, lane.states, to));
    h.state = static_cast<int>(to);
  }

  void score_levels() {
    const int64_t J = m_.joinerSize;
    int64_t begins[kLanes], rows = 0;
    for (int64_t i = 0; i < lane_count_; ++i) {
      const Lane<T>& lane = lanes_[i];
      begins[i] = rows;
      if (lane.row < 0 || is_over(lane)) continue;
      const T* const x = frames_ + (lane.row * o_.maxFrames + lane.frame) * J;
      for (int64_t k = 0; k < lane.level_count; ++k) {
        joint_.activate(x, projection(lane, lane.level[k].state), arrays_.activations + rows++ * J);
      }
    }
    if (rows == 0) return;
    joint_.score(arrays_.activations, rows, arrays_.logits);
    for (int64_t i = 0; i < lane_count_; ++i) {
      Lane<T>& lane = lanes_[i];
      if (lane.row < 0 || is_over(lane)) continue;
      for (int64_t k = 0; k < lane.level_count; ++k) {
        read_scores(arrays_.logits + (begins[i] + k) * output_rows(m_), arrays_.scores[k]);
      }
      if (m_.durationCount > 0) {
        take_durations(lane);
      } else if (o_.mode == PRNN_BEAM_MODIFIED) {
        take_modified(lane);
      } else {
        take_standard(lane);
      }
    }
  }

  // Where the logits are none that greedy search would take, everything is impossible.
  void read_scores(T* logits, Scores<T>& s) const {
    s.logits = logits;
    s.classes = joint_.normaliser(logits, m_.classes);
    Normaliser<T> spans{0, 0};
    if (m_.durationCount > 0) spans = joint_.normaliser(logits + m_.classes, m_.durationCount);
    if (!s.classes.is_valid() || !spans.is_valid()) {
      std::fill_n(logits, m_.classes, -std::numeric_limits<T>::infinity());
      s.classes = {0, 0};
      spans = {0, 0};
      std::fill_n(logits + m_.classes, m_.durationCount, T(0));
    }
    s.blank = s.classes.log_prob(logits[m_.blank]);
    logits[m_.blank] = -std::numeric_limits<T>::infinity();
    s.durations[0] = s.largest_duration = 0;
    for (int64_t i = 0; i < m_.durationCount; ++i) s.durations[i] = spans.log_prob(logits[m_.classes + i]);
    if (m_.durationCount > 0) s.largest_duration = *std::max_element(s.durations, s.durations + m_.durationCount);
  }

  void take_modified(Lane<T>& lane) {
    const int64_t V = m_.classes;
    int64_t pairs = 0;
    Top top(arrays_.candidates, o_.beam);
    for (int64_t k = 0; k < lane.level_count; ++k) {
      arrays_.blanks[k] = lane.level[k].score + arrays_.scores[k].blank;
    }
    for (int64_t j = 0; j < lane.level_count; ++j) {
      for (int64_t i = 0; i < lane.level_count; ++i) {
        const Hypothesis& shorter = lane.level[i];
        const uint64_t symbol = lane.level[j].hash - hash_with(shorter.hash, 0);
        if (symbol >= static_cast<uint64_t>(V) || symbol == static_cast<uint64_t>(m_.blank)) continue;
        T& logit = arrays_.scores[i].logits[symbol];
        const double extended = score_of(shorter, arrays_.scores[i], static_cast<int64_t>(symbol));
        arrays_.pairs[pairs++] = {static_cast<int>(i), static_cast<int>(symbol), logit};
        logit = -std::numeric_limits<T>::infinity();
        double& kept = arrays_.blanks[j];
        if (extended > kept) {
          top.offer({add_to_larger(extended, kept), static_cast<int>(i), static_cast<int>(symbol), 0});
          kept = kImpossible;
        } else if (kept > kImpossible) {
          kept = add_to_larger(kept, extended);
        }
        break;  // no other one spells the same
      }
    }
    for (int64_t k = 0; k < lane.level_count; ++k) {
      top.offer({arrays_.blanks[k], static_cast<int>(k), static_cast<int>(m_.blank), 0});
    }
    offer_symbols(lane, top);
    for (int64_t i = 0; i < pairs; ++i) {
      const Pair<T>& pair = arrays_.pairs[i];
      arrays_.scores[pair.row].logits[pair.symbol] = pair.logit;
    }
    lane.rest_count = take(lane, top, lane.rest);
    end_frame(lane);
  }

  void take_standard(Lane<T>& lane) {
    begin_merging(lane);
    for (int64_t k = 0; k < lane.level_count; ++k) {
      Hypothesis h = lane.level[k];
      h.score += arrays_.scores[k].blank;
      add_to_rest(lane, h);
    }
    sort_rest(lane);
    if (lane.depth == o_.maxSymbols) return end_frame(lane);
    Top top(arrays_.candidates, o_.beam);
    top.raise(bar(lane));
    offer_symbols(lane, top);
    take_level(lane, top);
  }

  void take_durations(Lane<T>& lane) {
    const bool is_last = lane.depth + 1 == o_.maxSymbols;
    Top top(arrays_.candidates, o_.beam);
    for (int64_t k = 0; k < lane.level_count; ++k) {
      const Scores<T>& s = arrays_.scores[k];
      const auto offer = [&](int64_t index, double score, bool with_0) {
        for (int64_t i = 0; i < m_.durationCount; ++i) {
          if (m_.durations[i] == 0 && !with_0) continue;
          top.offer({score + s.durations[i], static_cast<int>(k), static_cast<int>(index), static_cast<int>(i)});
        }
      };
      offer(m_.blank, lane.level[k].score + s.blank, true);
      for_symbols(lane.level[k], s, s.largest_duration, top,
                  [&](int64_t symbol, double score) { offer(symbol, score, is_last); });
    }
    const int64_t leaving = take(lane, top, arrays_.next);
    begin_merging(lane);
    for (int64_t i = 0; i < leaving; ++i) {
      arrays_.next[i].ahead = std::max(m_.durations[top[i].duration], 1) - 1;
      add_to_rest(lane, arrays_.next[i]);
    }
    sort_rest(lane);
    const int* const end = m_.durations + m_.durationCount;
    const int64_t zero = std::find(m_.durations, end, 0) - m_.durations;
    if (is_last || zero == m_.durationCount) return end_frame(lane);
    Top staying(arrays_.candidates, o_.beam);
    staying.raise(bar(lane));
    for (int64_t k = 0; k < lane.level_count; ++k) {
      const double own = arrays_.scores[k].durations[zero];
      for_symbols(lane.level[k], arrays_.scores[k], own, staying, [&](int64_t symbol, double score) {
        staying.offer({score + own, static_cast<int>(k), static_cast<int>(symbol), static_cast<int>(zero)});
      });
    }
    take_level(lane, staying);
  }

  // Makes the hypotheses that `top` has taken the next level of the frame.
  void take_level(Lane<T>& lane, Top& top) {
    const int64_t count = take(lane, top, arrays_.next);
    if (count == 0) return end_frame(lane);
    std::copy_n(arrays_.next, count, lane.level);
    lane.level_count = count;
    ++lane.depth;
  }

  void offer_symbols(const Lane<T>& lane, Top& top) const {
    for (int64_t k = 0; k < lane.level_count; ++k) {
      for_symbols(lane.level[k], arrays_.scores[k], 0, top, [&](int64_t symbol, double score) {
        top.offer({score, static_cast<int>(k), static_cast<int>(symbol), 0});
      });
    }
  }

  double score_of(const Hypothesis& h, const Scores<T>& s, int64_t symbol) const {
    double log_prob = s.classes.log_prob(s.logits[symbol]);
    if (bias_ != nullptr) log_prob += gains(h)[symbol];
    return h.score + log_prob;
  }

  // Calls take(symbol, score) for all symbols whose score and `more` can be above what `top` takes.
  template <class Take>
  void for_symbols(const Hypothesis& h, const Scores<T>& s, double more, const Top& top, const Take& take) const {
    constexpr int64_t kBlock = 64;
    for (int64_t begin = 0; begin < m_.classes; begin += kBlock) {
      const int64_t end = std::min(begin + kBlock, m_.classes);
      if (bias_ != nullptr) {
        for (int64_t i = begin; i < end; ++i) {
          if (i == m_.blank) continue;
          const double score = score_of(h, s, i);
          if (score + more >= top.bar()) take(i, score);
        }
        continue;
      }
      // Below every logit with such a score, whatever was rounded.
      const double least = top.bar() - more - h.score + s.classes.log_sum + s.classes.maximum;
      const double sizes = std::abs(top.bar()) + std::abs(more) + std::abs(h.score) + std::abs(s.classes.maximum);
      const auto limit = static_cast<T>(std::isinf(least) ? least : least - 1e-6 * (sizes + 1));
      int is_any = 0;
      for (int64_t i = begin; i < end; ++i) is_any |= s.logits[i] >= limit;
      for (int64_t i = begin; is_any && i < end; ++i) {
        if (s.logits[i] >= limit) take(i, score_of(h, s, i));
      }
    }
  }

  // Makes hypotheses of what was taken, those with a symbol extended. Returns how many.
  int64_t take(Lane<T>& lane, Top& top, Hypothesis* to) {
    const int64_t count = top.sort();
    for (int64_t i = 0; i < count; ++i) {
      const Candidate& candidate = top[i];
      const int symbol = candidate.index;
      Hypothesis h = lane.level[candidate.row];
      h.score = candidate.score;
      if (symbol != m_.blank) {
        const T* const logits = arrays_.scores[candidate.row].logits;
        const bool is_wanted = args_.outputs.confidences != nullptr;
        const T confidence = is_wanted ? joint_.confidence(logits[symbol], logits) : T(0);
        lane.symbols[lane.symbol_count] = {h.history, symbol, static_cast<int>(lane.frame), confidence};
        h.history = lane.symbol_count++;
        ++h.count;
        h.hash = hash_with(h.hash, symbol);
        h.pending = symbol;
        if (bias_ != nullptr) h.node = bias_->next[h.node * m_.classes + symbol];
      }
      to[i] = h;
    }
    return count;
  }

  void begin_merging(Lane<T>& lane) const {
    for (int64_t i = 0; i < lane.rest_count; ++i) lane.rest[i].largest = lane.rest[i].score;
  }

  // Makes a hypothesis one with that which spells the same and waits for the same frame, if there is one.
  void add_to_rest(Lane<T>& lane, Hypothesis h) const {
    if (!(h.score > kImpossible)) return;
    h.largest = h.score;
    for (int64_t i = 0; i < lane.rest_count; ++i) {
      Hypothesis& other = lane.rest[i];
      if (other.hash != h.hash || other.ahead != h.ahead) continue;
      const double score = add_to_larger(std::max(h.score, other.score), std::min(h.score, other.score));
      if (h.largest > other.largest) std::swap(h, other);
      other.score = score;
      if (other.state < 0) {
        other.state = h.state;
        other.pending = h.pending;
      }
      return;
    }
    lane.rest[lane.rest_count++] = h;
  }

  void sort_rest(Lane<T>& lane) const {
    std::sort(lane.rest, lane.rest + lane.rest_count, [](const Hypothesis& a, const Hypothesis& b) {
      return a.score != b.score ? a.score > b.score : a.hash < b.hash;
    });
    for (int64_t i = o_.beam; i < lane.rest_count; ++i) lane.rest[i].state = -1;
  }

  // The score of the K-th best that has left the frame.
  double bar(const Lane<T>& lane) const {
    return lane.rest_count < o_.beam ? kImpossible : lane.rest[o_.beam - 1].score;
  }

  const TransducerModel& m_;
  const TransducerBeamArgs& args_;
  const prnnTransducerBeamOptions_t& o_;
  const prnnTransducerBias_t* bias_;
  const T* frames_;  // {N, T, J}
  int64_t lane_count_;
  std::atomic<int64_t>& queue_;
  bool is_queue_empty_ = false;
  Arena arena_;
  Lane<T> lanes_[kLanes];
  LaneArrays<T> arrays_;
  char* scratch_;
  Joint<T> joint_;
};

// Threads worth starting: each has at least one utterance.
int search_threads(const TransducerModel& m, const prnnTransducerBeamOptions_t& o) {
  const double macs =
      static_cast<double>(o.batch * o.maxFrames * o.beam) * static_cast<double>(output_rows(m) * m.joinerSize);
  return std::min<int64_t>(team_size(2 * macs), o.batch);
}

}  // namespace

template <class T>
WorkspaceSize transducer_beam_workspace_cpu(const TransducerModel& m, const prnnTransducerBeamOptions_t& o) {
  Arena arena(nullptr);
  JoinerFrames<T>(arena, m, o.batch, o.maxFrames);
  const size_t frames = (arena.size() + 15) / 16 * 16, lanes = lane_bytes<T>(m, o);
  return {frames + static_cast<size_t>(search_threads(m, o)) * lanes, frames + lanes};
}

template <class T>
void transducer_beam_search_cpu(const TransducerModel& m, const TransducerBeamArgs& args) {
  const PreparedTransducer<T> prepared(m, const_cast<void*>(args.prepared));
  const prnnTransducerBeamOptions_t& o = args.options;
  const size_t bytes = lane_bytes<T>(m, o), least = transducer_beam_workspace_cpu<T>(m, o).least;
  const auto room = static_cast<int64_t>((args.workspace_size - least) / bytes + 1);
  const int threads = static_cast<int>(std::min<int64_t>(search_threads(m, o), room));
  const int64_t lanes = std::min(lanes_of(o), (o.batch + threads - 1) / threads);
  Arena arena(args.workspace);
  const JoinerFrames<T> frames(arena, m, o.batch, o.maxFrames);
  char* const arrays = static_cast<char*>(args.workspace) + (least - bytes);
  std::atomic<int64_t> queue{0};
  frames.run(m, prepared, args.inputs.frames, threads, [&](size_t rank, const T* x, char* scratch) {
    Thread<T>(m, prepared, args, x, lanes, queue, arrays + rank * bytes, scratch).run();
  });
}

template WorkspaceSize transducer_beam_workspace_cpu<float>(const TransducerModel&, const prnnTransducerBeamOptions_t&);
template WorkspaceSize transducer_beam_workspace_cpu<double>(const TransducerModel&,
                                                             const prnnTransducerBeamOptions_t&);
template void transducer_beam_search_cpu<float>(const TransducerModel&, const TransducerBeamArgs&);
template void transducer_beam_search_cpu<double>(const TransducerModel&, const TransducerBeamArgs&);

}  // namespace prnn
