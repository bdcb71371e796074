// The logits of a joiner from tiles, forward to the scores of RNN-T's or TDT's arcs and backward to their gradients, of
// cells whose shares are random numbers, beside the same in double. The products of the gradients are not run.
//
//     run_joint_tiles type=bfloat16 cells=150 size=72 tokens=253 durations=4 clamp=0.1 seed=1
#include "../../src/core/status.cc"
#include "../../src/rnnt/duration_arcs.cc"
#include "arrays.h"
#include "instructions.h"
#include "rnnt/cuda/joint_tiles.cuh"
// The forms that are run; all of them take the compiler long.
#undef PRNN_FOR_TILED_FORMS
#define PRNN_FOR_TILED_FORMS(INSTANTIATE) INSTANTIATE(Bfloat16Form) INSTANTIATE(SplitForm)
#include "rnnt/cuda/joint_tiles.cu"

extern "C" float __expf(float x) { return std::exp(x); }

namespace prnn::rnnt_cuda {
namespace {

constexpr int kBlocks = 3, kWidth = 6;  // blocks of a launch; symbol positions of a frame

struct Options {
  std::string type = "bfloat16";
  int64_t cells = 150, size = 72, tokens = 253;
  int durations = 4;
  double clamp = 0;
};

template <class T>
struct Aligned {
  explicit Aligned(size_t count) : bytes(Array::of_bytes((count + 64) * sizeof(T), 0)) {}
  T* data() { return reinterpret_cast<T*>(bytes.data()); }
  Array bytes;
};

template <class Form>
double value_at(const typename Form::Matrix* tiles, const TileLayout<typename Form::Matrix>& layout, int64_t row,
                int64_t column) {
  double sum = 0;
  for (int i = 0; i < layout.terms; ++i) sum += static_cast<double>(to_real(tiles[layout.at(row, i, column)]));
  return sum;
}

double log_sum_exp(const double* x, int64_t count) {
  double highest = x[0], sum = 0;
  for (int64_t i = 0; i < count; ++i) highest = std::max(highest, x[i]);
  for (int64_t i = 0; i < count; ++i) sum += std::exp(x[i] - highest);
  return highest + std::log(sum);
}

template <class Form>
void run(const Options& o) {
  using Matrix = typename Form::Matrix;
  using Element = typename Form::Element;
  using Layout = TileLayout<Matrix>;
  std::mt19937 bits(5);
  const int frames = static_cast<int>(ceil_div(o.cells, kWidth)), blank = 3;
  const int64_t classes = o.tokens + o.durations, rows = ceil_div(o.cells, kTileRows) * kTileRows;
  prnnDurationRNNTLossOptions_t options{};
  options.batch = 1, options.maxFrames = frames, options.maxTargets = kWidth - 1;
  options.classes = o.tokens, options.blank = blank, options.sigma = 0.05, options.durationCount = o.durations;
  for (int i = 0; i < o.durations; ++i) options.durations[i] = i;
  DurationParams params{};
  params.options = options;
  const duration_cuda::Problem tdt(params);
  prnnRNNTLossOptions_t lattice{};
  lattice.layout = PRNN_RNNT_PACKED;
  lattice.batch = 1, lattice.maxFrames = frames, lattice.maxTargets = kWidth - 1, lattice.rows = o.cells;
  lattice.classes = o.tokens, lattice.blank = blank, lattice.clamp = o.clamp;
  const Problem p{lattice, nullptr, nullptr, nullptr, nullptr, nullptr};

  std::vector<float> bias(classes);
  for (float& x : bias) x = static_cast<float>(normal());
  std::vector<Element> weight(classes * o.size);
  for (Element& x : weight) from_real(x, static_cast<float>(normal() / 4));
  Joint joint{};
  joint.size = o.size, joint.classes = classes, joint.tokens = o.tokens;
  joint.padded_size = (o.size + 7) / 8 * 8, joint.padded_classes = (classes + 7) / 8 * 8;
  joint.weight = weight.data(), joint.bias = bias.data();
  const Scales scales{Form::kTerms == 3 ? 64.0f : 1.0f, Form::kTerms == 3 ? 32.0f : 1.0f, 4};
  const Layout of_size = chunk_layout<Layout>(o.size, Form::kTerms);
  const Layout of_classes = chunk_layout<Layout>(classes, Form::kTerms);
  Aligned<Matrix> activations(rows * of_size.stride * of_size.terms);
  Aligned<Matrix> logit_weights(tile_columns(classes) * of_size.stride * of_size.terms);
  Aligned<Matrix> gradients(rows * of_classes.stride * of_classes.terms);
  Aligned<float> padded_bias(tile_columns(classes));
  for (int64_t cell = 0; cell < o.cells; ++cell)
    for (int64_t d = 0; d < o.size; ++d) {
      const float value[1] = {static_cast<float>(std::tanh(normal())) * scales.activation};
      store_terms<Form, Side::kLeft>(activations.data(), of_size, cell, d, value);
    }
  const TileWeights<Form> weights{logit_weights.data(), nullptr, padded_bias.data()};
  run_weight_tiles<Form>(joint, &scales, weights, nullptr);
  std::vector<double> logits(o.cells * classes);
  for (int64_t cell = 0; cell < o.cells; ++cell)
    for (int64_t v = 0; v < classes; ++v) {
      double sum = 0;
      for (int64_t d = 0; d < o.size; ++d)
        sum +=
            value_at<Form>(activations.data(), of_size, cell, d) * value_at<Form>(logit_weights.data(), of_size, v, d);
      logits[cell * classes + v] = sum / scales.activation / scales.weight + bias[v];
    }

  std::vector<Emission> emissions(rows, Emission{-1, 0, -1, 0, 0, 0});
  std::vector<CellShares<float>> cells(rows, CellShares<float>{0, 0, 0, 0, 0, -1});
  std::vector<float> records(rows * tdt.record_size(), 0), token_normalisers(rows, 0), duration_normalisers(rows, 0);
  for (int64_t cell = 0; cell < o.cells; ++cell) {
    const int t = static_cast<int>(cell / kWidth), u = static_cast<int>(cell % kWidth);
    int label = static_cast<int>(bits() % o.tokens);
    label = u == kWidth - 1 ? -1 : label == blank ? label + 1 : label;
    emissions[cell] = {int64_t{t + u} * kWidth + u, cell, label, t, u, frames};
  }
  std::vector<int64_t> first(frames + 1, o.cells);
  std::vector<Sequence> sequences{{0, 0, frames, kWidth - 1}};
  const Frames of_cells{first.data(), nullptr, nullptr};
  const Chunk chunk{p, joint, of_cells, sequences.data(), &scales, 0, rows};
  std::vector<float> scores(tdt.arcs.count() * tdt.nodes(), 7), normalisers(rows, 0);
  std::vector<Arcs<float>> arcs(tdt.nodes());
  DurationHead<float> head;
  if (o.durations > 0) {
    head.entries = o.durations, head.first = static_cast<int>(o.tokens), head.bias = bias.data() + o.tokens;
    head.arcs = tdt.arcs, head.scores = scores.data(), head.record_size = tdt.record_size();
    head.shares = {records.data(), token_normalisers.data(), duration_normalisers.data()};
  }
  run_tile_emissions<Form>(chunk,
                           {weights, activations.data(), emissions.data(), {arcs.data(), normalisers.data(), head}},
                           kBlocks, nullptr);
  Comparison of_scores{"scores"}, of_normalisers{"normalisers"}, of_gradients{"gradients"};
  std::vector<double> token_sums(o.cells), duration_sums(o.cells);
  for (int64_t cell = 0; cell < o.cells; ++cell) {
    const double* row = logits.data() + cell * classes;
    const Emission& at = emissions[cell];
    token_sums[cell] = log_sum_exp(row, o.tokens);
    of_normalisers.add(o.durations > 0 ? token_normalisers[cell] : normalisers[cell], token_sums[cell]);
    if (o.durations == 0) {
      of_scores.add(arcs[at.arcs].blank, row[blank] - token_sums[cell]);
      if (at.label >= 0) of_scores.add(arcs[at.arcs].label, row[at.label] - token_sums[cell]);
      continue;
    }
    duration_sums[cell] = log_sum_exp(row + o.tokens, o.durations);
    of_normalisers.add(duration_normalisers[cell], duration_sums[cell]);
    for (int i = 0; i < tdt.arcs.count(); ++i) {
      const DurationArc& arc = tdt.arcs.arc[i];
      const float found = scores[int64_t{at.t + at.u} * tdt.score_rows() + i * kWidth + at.u];
      if (!DurationArcs::leads_on(arc, at.t, at.u, frames, kWidth - 1)) {
        of_scores.add(found == static_cast<float>(kNever) ? 0 : 1e9, 0);
        continue;
      }
      const double token = row[arc.label() ? at.label : blank] - token_sums[cell] - arc.sigma;
      of_scores.add(found, token + row[o.tokens + arc.entry] - duration_sums[cell]);
    }
  }

  // Every fifth cell has no probability.
  const auto random = [&] { return static_cast<float>(bits() % 1000) / 1000; };
  for (int64_t cell = 0; cell < o.cells; ++cell) {
    if (cell % 5 == 4) continue;
    float* record = records.data() + cell * tdt.record_size();
    const int label = emissions[cell].label;
    cells[cell] = {cell,
                   random(),
                   label >= 0 ? random() : 0,
                   static_cast<float>(token_sums[cell]),
                   scales.gradient * (1 + static_cast<float>(cell % 3)),
                   label};
    duration_normalisers[cell] = static_cast<float>(duration_sums[cell]);
    for (int i = 0; i < o.durations; ++i) record[1] += record[duration_cuda::kSums + 2 + i] = random();
  }
  TileProduct<Form> product{};
  product.chunk = chunk;
  product.head = head;
  product.cells = cells.data();
  product.bias = padded_bias.data();
  product.gradients = gradients.data();
  product.left = activations.data();
  product.right = logit_weights.data();
  product.left_slices = product.right_slices = slices<Form>(o.size);
  product.out_slices = slices<Form>(classes);
  product.column_blocks = ceil_div(classes, kTileColumns);
  launch<Kind::kGradients>(product, kBlocks, nullptr);
  for (int64_t cell = 0; cell < o.cells; ++cell) {
    const CellShares<float>& own = cells[cell];
    for (int64_t v = 0; v < of_classes.stride; ++v) {
      const double logit = v < classes ? logits[cell * classes + v] : 0;
      double expected = 0;
      if (own.scale != 0 && v < o.tokens) {
        expected = (own.blank + own.label) * std::exp(logit - token_sums[cell]);
        if (v == blank) expected -= own.blank;
        if (v == own.label_at) expected -= own.label;
      } else if (own.scale != 0 && v < classes) {
        const float* record = records.data() + cell * tdt.record_size();
        expected = record[1] * std::exp(logit - duration_sums[cell]) - record[duration_cuda::kSums + 2 + v - o.tokens];
      }
      if (o.clamp > 0) expected = std::max(-o.clamp, std::min(o.clamp, expected));
      of_gradients.add(value_at<Form>(gradients.data(), of_classes, cell, v), expected * own.scale);
    }
  }
}

}  // namespace
}  // namespace prnn::rnnt_cuda

int main(int count, char** words) {
  using namespace prnn::rnnt_cuda;
  Options o;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i], name = word.substr(0, word.find('=')), value = word.substr(name.size() + 1);
    if (name == "type") o.type = value;
    if (name == "cells") o.cells = std::stoi(value);
    if (name == "size") o.size = std::stoi(value);
    if (name == "tokens") o.tokens = std::stoi(value);
    if (name == "durations") o.durations = std::stoi(value);
    if (name == "clamp") o.clamp = std::stod(value);
    if (name == "seed") gpu::seed = static_cast<unsigned>(std::stoi(value));
  }
  o.type == "bfloat16" ? run<Bfloat16Form>(o) : run<SplitForm>(o);
  return 0;
}
