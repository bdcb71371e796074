#include "layer.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <sstream>

namespace {

double logistic(double x) { return 1 / (1 + std::exp(-x)); }
bool is_slstm_mode(prnnRNNMode_t mode) { return mode == PRNN_SLSTM || mode == PRNN_SLSTM_EXP; }
int gates_of(prnnRNNMode_t mode) { return mode == PRNN_LSTM || is_slstm_mode(mode) ? 4 : mode == PRNN_GRU ? 3 : 1; }
int padded_of(const Options& options) {
  const int unit = prnn::k_tile_elements(bytes_of(options.type) == 4);
  return (options.hidden + unit - 1) / unit * unit;
}

}  // namespace

Options parse_options(int count, char** words) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i], name = word.substr(0, word.find('=')), value = word.substr(name.size() + 1);
    const auto number = [&] { return std::stoi(value); };
    const auto index_in = [&](std::vector<std::string> names) {
      return std::find(names.begin(), names.end(), value) - names.begin();
    };
    if (name == "type") options.type = static_cast<Type>(index_in({"float", "tf32", "half", "bfloat16"}));
    if (name == "cell") {
      const prnnRNNMode_t modes[] = {PRNN_RNN_RELU, PRNN_RNN_TANH, PRNN_LSTM, PRNN_GRU, PRNN_SLSTM, PRNN_SLSTM_EXP};
      options.mode = modes[index_in({"relu", "tanh", "lstm", "gru", "slstm", "slstm_exp"})];
    }
    if (name == "hidden") options.hidden = number();
    if (name == "engine") options.engine = value;
    if (name == "forward_units") options.forward_units = number();
    if (name == "backward_units") options.backward_units = number();
    if (name == "backward_cluster") options.backward_cluster = number();
    if (name == "replicas") options.replicas = number();
    if (name == "column_tiles") options.column_tiles = number();
    if (name == "pack") options.pack = number();
    if (name == "held") options.held = number() != 0;
    if (name == "blocks") options.blocks = number();
    if (name == "backward") options.has_backward = number() != 0;
    if (name == "layers") options.layers = number();
    if (name == "chunk") options.chunk = number();
    if (name == "dropout") options.dropout_scale = number() != 0 ? 1.25 : 0;
    if (name == "initial") options.initial = number() != 0;
    if (name == "projection") options.projection = number();
    if (name == "resets") options.resets = number() != 0;
    if (name == "masks") options.masks = number() != 0;
    if (name == "reverse") options.reverse = number() != 0;
    if (name == "relaxed") options.relaxed = number() != 0;
    if (name == "seed") options.seed = static_cast<unsigned>(number());
    if (name != "batches") continue;
    options.batches.clear();
    std::istringstream list(value);
    for (std::string size; std::getline(list, size, ',');) options.batches.push_back(std::stoi(size));
  }
  return options;
}

Layer::Layer(const Options& chosen)
    : options(chosen),
      gates(gates_of(options.mode)),
      biases(gates > 1 ? 4 : 1),
      batch(options.batches[0]),
      rows(std::accumulate(options.batches.begin(), options.batches.end(), 0)),
      padded(padded_of(options)),
      is_lstm(options.mode == PRNN_LSTM),
      is_gru(options.mode == PRNN_GRU),
      is_slstm(is_slstm_mode(options.mode)),
      cell_states(is_slstm ? 3 : 1),
      states(size_t(options.hidden) * batch),
      all(size_t(options.hidden) * rows),
      weights(options.type, size_t(gates) * options.hidden * options.hidden, 1 / std::sqrt(options.hidden)),
      input_bias(options.type, gates * options.hidden, 0.5),
      recurrent_bias(options.type, gates * options.hidden, 0.5),
      hx(options.type, states),
      cx(options.type, cell_states * states),
      reset_hx(options.type, states),
      reset_cx(options.type, cell_states * states),
      hy(options.type, states),
      cy(options.type, cell_states * states),
      dhy(options.type, states),
      dcy(options.type, cell_states * states),
      dhx(options.type, states),
      dcx(options.type, cell_states * states),
      mask(options.type, states),
      xw(options.type, gates * all),
      y(options.type, all),
      saved(options.type, 4 * all),
      cells(options.type, all),
      last(options.type, 2 * states),
      dy(options.type, all),
      dcells(options.type, all),
      dgates(options.type, size_t(gates) * padded * rows),
      dcandidate(options.type, all),
      bias_sums(Type::kFloat, size_t(options.replicas) * biases * options.hidden),
      dreset_hx(Type::kFloat, states, 0),
      dreset_cx(Type::kFloat, cell_states * states, 0) {
  std::mt19937 bits(3);
  int row = 0;
  for (const int size : options.batches) {
    steps.push_back({row, size});
    row += size;
  }
  for (int i = 0; i < rows; ++i) reset.push_back(bits() % 10 < 3);
  for (size_t i = 0; i < states; ++i) mask.set(i, bits() % 4 == 0 ? 0 : 1.25);
  if (options.masks && (is_gru || (is_lstm && options.reverse))) zoneout = 0.25;
  for (size_t i = 0; i < size_t(gates) * options.hidden * options.hidden; ++i)
    factors_.push_back(rounded(options.type, weights[i], true));
  for (size_t i = 0; i < gates * all; ++i) products.push_back(xw[i]);
  for (size_t i = 0; i < all && options.masks && is_lstm && !options.reverse; ++i) {
    stays.push_back(bits() % 10 < 3);
    const size_t row = i / options.hidden, unit = i % options.hidden;
    if (stays[i]) xw.set((row * gates + 3) * options.hidden + unit, -std::numeric_limits<double>::infinity());
  }
  for (size_t i = 0; i < all; ++i) output_gradients.push_back(dy[i]);
  for (size_t i = 0; i < states && is_slstm; ++i) {  // n, of which some are 0
    cx.set(states + i, bits() % 4 == 0 ? 0 : 1 + std::abs(cx[states + i]));
    reset_cx.set(states + i, bits() % 4 == 0 ? 0 : 1 + std::abs(reset_cx[states + i]));
    if (cx[states + i] == 0) cx.set(i, 0);
    if (reset_cx[states + i] == 0) reset_cx.set(i, 0);
  }
}

prnn::RnnProblem Layer::problem() const {
  prnn::RnnProblem problem;
  problem.mode = options.mode;
  problem.type = options.type == Type::kHalf       ? PRNN_DATA_HALF
                 : options.type == Type::kBfloat16 ? PRNN_DATA_BFLOAT16
                                                   : PRNN_DATA_FLOAT;
  problem.tf32 = options.type == Type::kTf32;
  problem.hidden = problem.input = options.hidden;
  problem.layers = options.layers;
  problem.batch.assign(options.batches.begin(), options.batches.end());
  problem.rows = rows;
  return problem;
}

prnn::ResidentSizes Layer::sizes_of(const prnn::ResidentShape& shape, int directions, int* timed_out) {
  const prnn::ReplicaShares shares(shape, batch);
  prnn::ResidentSizes sizes{};
  sizes.hidden = options.hidden;
  sizes.padded = padded;
  sizes.steps = static_cast<int>(steps.size());
  sizes.batch = sizes.columns = batch;
  if (steps.back().batch < batch) sizes.table = steps.data();
  sizes.columns_per_replica = static_cast<int>(shares.columns_per_replica);
  sizes.replicas = static_cast<int>(shares.replicas);
  sizes.blocks = shape.blocks;
  sizes.directions = directions;
  sizes.poll_delay_cycles = shape.poll_delay_cycles;
  sizes.relu = options.mode == PRNN_RNN_RELU;
  sizes.exponential = options.mode == PRNN_SLSTM_EXP;
  sizes.timed_out = timed_out;
  return sizes;
}

prnn::ForwardDirection Layer::forward() {
  prnn::ForwardDirection f{};
  f.weights = weights.data(), f.input_bias = input_bias.data(), f.recurrent_bias = recurrent_bias.data();
  f.xw = xw.data(), f.hx = hx.data(), f.y = y.data(), f.hy = hy.data();
  if (is_lstm || is_slstm) f.cx = cx.data(), f.cy = cy.data(), f.cells = cells.data();
  if (is_slstm) f.last = last.data(), f.cell_stride = states;
  if (gates > 1) f.gates = saved.data();
  if (options.resets) f.reset = reset.data(), f.reset_hx = reset_hx.data();
  if (options.resets && (is_lstm || is_slstm)) f.reset_cx = reset_cx.data();
  f.reverse = options.reverse;
  return f;
}

prnn::BackwardDirection Layer::backward() {
  prnn::BackwardDirection b{};
  b.weights = weights.data(), b.y = y.data(), b.dy = dy.data(), b.hx = hx.data(), b.dhy = dhy.data();
  b.dgates = dgates.data(), b.dhx = dhx.data(), b.bias_sums = bias_sums.floats();
  if (is_lstm || is_slstm) b.cx = cx.data(), b.dcy = dcy.data(), b.cells = cells.data(), b.dcx = dcx.data();
  if (is_slstm) b.last = last.data(), b.cell_stride = states;
  if (is_lstm && options.masks) b.dcells = dcells.data();
  if (gates > 1) b.gates = saved.data();
  if (is_gru) b.dcandidate = dcandidate.data();
  if (options.resets) b.reset = reset.data(), b.reset_hx = reset_hx.data(), b.dreset_hx = dreset_hx.floats();
  if (options.resets && (is_lstm || is_slstm)) b.reset_cx = reset_cx.data(), b.dreset_cx = dreset_cx.floats();
  b.reverse = options.reverse;
  return b;
}

int Layer::batch_of(int s) const {
  const int count = static_cast<int>(steps.size());
  return s < 0 || s >= count ? 0 : steps[options.reverse ? count - 1 - s : s].batch;
}
int Layer::row_of(int s) const { return steps[options.reverse ? static_cast<int>(steps.size()) - 1 - s : s].row; }
bool Layer::is_reset(int s, int n) const {
  const int later = options.reverse ? s - 1 : s;  // a flag belongs to the later of two timesteps
  return options.resets && n < batch_of(later) && n < batch_of(s) && reset[row_of(later) + n] != 0;
}
const Array* Layer::first(int s, int n, bool of_cells) const {
  const bool has_cells = of_cells && (is_lstm || is_slstm);
  if (is_reset(s, n)) return has_cells ? &reset_cx : &reset_hx;
  if (n < batch_of(s - 1)) return nullptr;
  return has_cells ? &cx : &hx;
}
Layer::Carried Layer::first_carried(const Array& given, int n, int unit) const {
  Carried carried{};
  for (int i = 0; i < cell_states; ++i) carried.of[i] = given[i * states + at(n, unit)];
  return carried;
}

void Layer::forward_slstm(const Gates& sums, Carried& carried, double& h, Gates& saved) const {
  const bool is_exponential = options.mode == PRNN_SLSTM_EXP;
  const auto [c, n, m] = carried.of;
  const double i = sums.of[0], f = is_exponential ? sums.of[1] : std::log(logistic(sums.of[1]));
  const double z = std::tanh(sums.of[2]), o = logistic(sums.of[3]), after = n == 0 ? i : std::max(f + m, i);
  const double in = std::exp(i - after), kept = std::min(std::exp(f + m - after), 1.0);
  carried = {kept * c + in * z, kept * n + in, after};
  h = o * carried.of[0] / carried.of[1];
  const double phi = kept * n / carried.of[1], slope = is_exponential ? 1 : 1 - logistic(sums.of[1]);
  saved = {n == 0 ? 2 : phi, n == 0 ? kept : slope, z, o};
}

Layer::Gates Layer::forward_unit(int s, int n, int unit, const Gates& recurrent, Carried& states, double& h) const {
  Gates gate{};
  double input[4], &carried = states.of[0];
  for (int g = 0; g < gates; ++g) {
    const size_t row = size_t(row_of(s) + n) * gates + g;
    input[g] = products[row * options.hidden + unit] + input_bias[g * options.hidden + unit];
    gate.of[g] = logistic(recurrent.of[g] + input[g]);
  }
  if (is_slstm) {
    Gates sums{};
    for (int g = 0; g < gates; ++g) sums.of[g] = recurrent.of[g] + input[g];
    forward_slstm(sums, states, h, gate);
  } else if (is_lstm) {
    gate.of[2] = std::tanh(recurrent.of[2] + input[2]);
    carried = gate.of[1] * carried + gate.of[0] * gate.of[2];
    const double next = gate.of[3] * std::tanh(carried);
    if (!stays.empty() && stays[at(row_of(s) + n, unit)]) {
      gate.of[3] = 0;
    } else {
      h = next + zoneout * (h - next);
    }
  } else if (is_gru) {
    gate.of[3] = recurrent.of[2];
    gate.of[2] = std::tanh(input[2] + gate.of[0] * gate.of[3]);
    const double next = gate.of[2] + gate.of[1] * (carried - gate.of[2]);
    h = carried = next + zoneout * (carried - next);
  } else {
    h = recurrent.of[0] + input[0];
    h = options.mode == PRNN_RNN_RELU ? std::max(h, 0.0) : std::tanh(h);
  }
  return gate;
}

void Layer::compare_forward() const {
  Comparison of_y{"y"}, of_gates{"gates"}, of_cells{"cells"}, of_hy{"hy"}, of_cy{"cy"};
  std::vector<double> h(states), factor(options.hidden);
  std::vector<Carried> carried(states);
  for (int s = 0; s < static_cast<int>(steps.size()); ++s) {
    for (int n = 0; n < batch_of(s); ++n) {
      const Array *const first_h = first(s, n, false), *const given = first(s, n, true);
      for (int u = 0; u < options.hidden; ++u) {
        if (first_h != nullptr) h[at(n, u)] = (*first_h)[at(n, u)];
        if (given != nullptr) carried[at(n, u)] = first_carried(*given, n, u);
        factor[u] = rounded(options.type, h[at(n, u)] * (options.masks ? mask[at(n, u)] : 1), true);
      }
      for (int u = 0; u < options.hidden; ++u) {
        Gates recurrent{};
        for (int g = 0; g < gates; ++g) {
          const double* const row = &factors_[(size_t(options.hidden) * g + u) * options.hidden];
          recurrent.of[g] = std::inner_product(factor.begin(), factor.end(), row,
                                               recurrent_bias[static_cast<size_t>(g) * options.hidden + u]);
        }
        const size_t element = at(row_of(s) + n, u);
        const Gates gate = forward_unit(s, n, u, recurrent, carried[at(n, u)], h[at(n, u)]);
        of_y.add(y[element], h[at(n, u)]);
        if (is_lstm) of_cells.add(cells[element], carried[at(n, u)].of[0]);
        if (is_slstm) of_cells.add(cells[element], ratio(carried[at(n, u)]));
        for (int g = 0; g < 4 && gates > 1; ++g) {
          double found = saved[element * 4 + g];
          if (is_slstm && g < 2) found = g == 0 && found < 0 ? 1 + found : std::abs(found);  // phi, and the slope of f
          of_gates.add(found, gate.of[g]);
        }
      }
    }
  }
  for (size_t i = 0; i < states; ++i) {
    of_hy.add(hy[i], h[i]);
    for (int state = 0; state < cell_states && (is_lstm || is_slstm); ++state) {
      const double rounding = is_slstm && state < 2 ? cy[2 * states + i] - carried[i].of[2] : 0;  // of m
      of_cy.add(cy[state * states + i] * std::exp(rounding), carried[i].of[state]);
    }
  }
}

Layer::Gates Layer::backward_slstm(const double (&saved)[4], double ratio, double before, double dh,
                                   Carried& past) const {
  const bool is_new = saved[0] > 1, keeps = std::signbit(saved[1]);
  const double phi = is_new ? 0 : std::signbit(saved[0]) ? 1 + saved[0] : saved[0], z = saved[2], o = saved[3];
  const double iota = is_new ? 1 : std::signbit(saved[0]) ? -saved[0] : 1 - saved[0];
  const double ndc = past.of[0] + dh * o, both = past.of[1], dm = past.of[2];
  const double moved = phi * iota * ndc * (before - z), kept = phi * both + moved;
  Gates d{};
  d.of[0] = iota * both - moved + (keeps ? 0 : dm);
  d.of[1] = is_new ? 0 : (kept + (keeps ? dm : 0)) * std::abs(saved[1]);
  d.of[2] = ndc * iota * (1 - z * z);
  d.of[3] = dh * ratio * o * (1 - o);
  past =
      is_new ? Carried{saved[1] * ndc, saved[1] * (both - ndc * ratio), 0} : Carried{phi * ndc, kept, keeps ? dm : 0};
  return d;
}

Layer::Carried Layer::state_gradients(const Carried& past, const Carried& states) {
  const double n = states.of[1];
  if (n == 0) return past;
  return {past.of[0] / n, (past.of[1] - past.of[0] * ratio(states)) / n, past.of[2] + past.of[1]};
}

// The remaining part of `past`, and of an LSTM's h `past_h`, goes to the step before.
Layer::Gates Layer::backward_unit(int s, int n, int unit, double dh, Carried& carried, double& past_h) const {
  const size_t element = at(row_of(s) + n, unit);
  const Array* const initial = first(s, n, true);
  double& past = carried.of[0];
  const double before = initial != nullptr
                            ? is_slstm ? ratio(first_carried(*initial, n, unit)) : (*initial)[at(n, unit)]
                        : is_lstm || is_slstm ? cells[at(row_of(s - 1) + n, unit)]
                                              : y[at(row_of(s - 1) + n, unit)];
  double gate[4];
  for (int g = 0; g < 4 && gates > 1; ++g) gate[g] = saved[element * 4 + g];
  dh += output_gradients[element];
  Gates d{};
  if (is_slstm) {
    d = backward_slstm(gate, cells[element], before, dh, carried);
  } else if (is_lstm) {
    if (options.masks) past += dcells[element];
    past_h = (!stays.empty() && stays[element] ? 1 : zoneout) * dh;
    dh -= past_h;
    const double squashed = std::tanh(cells[element]), dc = past + dh * gate[3] * (1 - squashed * squashed);
    d.of[0] = dc * gate[2] * gate[0] * (1 - gate[0]);
    d.of[1] = dc * before * gate[1] * (1 - gate[1]);
    d.of[2] = dc * gate[0] * (1 - gate[2] * gate[2]);
    d.of[3] = dh * squashed * gate[3] * (1 - gate[3]);
    past = dc * gate[1];
  } else if (is_gru) {
    dh += past;
    const double dnext = dh * (1 - zoneout);
    d.of[3] = dnext * (1 - gate[1]) * (1 - gate[2] * gate[2]);
    d.of[2] = d.of[3] * gate[0];
    d.of[1] = dnext * (before - gate[2]) * gate[1] * (1 - gate[1]);
    d.of[0] = d.of[3] * gate[3] * gate[0] * (1 - gate[0]);
    past = dnext * gate[1] + dh * zoneout;
  } else {
    const double h = y[element];
    d.of[0] = options.mode == PRNN_RNN_RELU ? (h > 0 ? dh : 0) : dh * (1 - h * h);
  }
  return d;
}

void Layer::compare_backward() const {
  Comparison of_dgates{"dgates"}, of_dcandidate{"dcandidate"}, of_dhx{"dhx"}, of_dcx{"dcx"}, of_biases{"biases"},
      of_dreset_hx{"dreset_hx"}, of_dreset_cx{"dreset_cx"};
  const int hidden = options.hidden;
  std::vector<double> carried_h(states), gradients(gates * states), sums(biases * hidden), reset_h(states);
  std::vector<Carried> carried(states), reset_c(states);
  for (int s = static_cast<int>(steps.size()) - 1; s >= -1; --s) {
    const int present = batch_of(s), were = batch_of(s + 1);
    for (int n = 0; n < std::max(present, were); ++n) {
      std::vector<double> through(hidden);
      for (int k = 0; n < were && k < gates * hidden; ++k) {
        const double gradient = gradients[gates * at(n, 0) + k];
        for (int u = 0; u < hidden; ++u) through[u] += gradient * factors_[size_t(hidden) * k + u];
      }
      for (int u = 0; u < hidden; ++u) {
        const size_t state = at(n, u);
        double dh = through[u] * (options.masks ? mask[state] : 1) + carried_h[state];
        Carried& past = carried[state];
        if (n < were && is_reset(s + 1, n)) {
          reset_h[state] += is_gru ? dh + past.of[0] : dh;
          if (is_slstm) past = state_gradients(past, first_carried(reset_cx, n, u));
          for (int i = 0; i < cell_states; ++i) reset_c[state].of[i] += past.of[i];
          dh = 0;
          past = {};
        }
        if (n >= were) {
          dh = dhy[state];
          past = is_lstm || is_slstm ? first_carried(dcy, n, u) : Carried{};
          if (is_slstm) {
            const double count = last[state], ndc = count * past.of[0];
            const double both = ndc * last[states + state] + count * past.of[1];
            past = {ndc, both, past.of[2] - both};
          }
        } else if (n >= present) {
          of_dhx.add(dhx[state], is_gru ? dh + past.of[0] : dh);
          const Carried found = is_slstm ? state_gradients(past, first_carried(cx, n, u)) : past;
          for (int i = 0; i < cell_states && (is_lstm || is_slstm); ++i) {
            of_dcx.add(dcx[i * states + state], found.of[i]);
          }
          continue;
        }
        const Gates d = backward_unit(s, n, u, dh, past, carried_h[state]);
        const size_t row = row_of(s) + n;
        if (is_gru) of_dcandidate.add(dcandidate[row * hidden + u], d.of[3]);
        for (int g = 0; g < biases; ++g) sums[g * hidden + u] += d.of[g];
        for (int g = 0; g < gates; ++g) {
          of_dgates.add(dgates[(row * gates + g) * padded + u], d.of[g]);
          gradients[gates * at(n, 0) + g * hidden + u] = rounded(options.type, d.of[g], true);
        }
      }
    }
  }
  for (int i = 0; i < biases * hidden; ++i) {
    double found = 0;
    for (int r = 0; r < options.replicas; ++r) found += bias_sums[r * biases * hidden + i];
    of_biases.add(found, sums[i]);
  }
  for (size_t i = 0; options.resets && i < states; ++i) {
    of_dreset_hx.add(dreset_hx[i], reset_h[i]);
    for (int state = 0; state < cell_states && (is_lstm || is_slstm); ++state) {
      of_dreset_cx.add(dreset_cx[state * states + i], reset_c[i].of[state]);
    }
  }
}
