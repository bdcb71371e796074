// A layer of H = 512 by the multicast kernels, forward and backward, beside the same in double.
//
//     multicast TYPE CELL COLUMNS GROUPS RESETS SEED BATCH...
//
// prints the relative error of each result. The reference rounds where the kernels do, and its backward pass begins
// with what the forward kernel saved.
#include "gpu.h"
#include "rnn/cuda/common/tf32.cuh"
#include "rnn/cuda/wgmma/multicast_backward.cuh"
#include "rnn/cuda/wgmma/multicast_forward.cuh"

#include <string>

namespace prnn {
namespace {

constexpr int kHidden = 512, kBlocks = kHidden / kMulticastUnits;
std::mt19937 random_bits(7);

double normal() {
  static std::normal_distribution<double> distribution;
  return distribution(random_bits);
}

// As a factor of a product.
template <class T>
double rounded(double value) {
  if constexpr (std::is_same_v<T, Tf32>) {
    return __uint_as_float(Element<T>::round(__float_as_uint(static_cast<float>(value))));
  } else {
    return static_cast<float>(T(static_cast<float>(value)));
  }
}

template <class T>
struct Array {
  std::vector<T> elements;

  explicit Array(size_t size, double scale = 1) : elements(size) {
    for (T& element : elements) element = Element<T>::from_float(static_cast<float>(scale * normal()));
  }
  double operator[](size_t i) const { return Element<T>::to_float(elements[i]); }
  T* data() { return elements.data(); }
};

struct Comparison {
  const char* name;
  double error = 0, norm = 0;

  void add(double found, double expected) {
    error += (found - expected) * (found - expected);
    norm += expected * expected;
  }
  ~Comparison() {
    if (norm > 0) std::printf("%s %.3e\n", name, std::sqrt(error / norm));
  }
};

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

// What the kernels exchange through: 16-byte aligned, all bytes `value`.
struct Exchange {
  std::vector<uint4> memory;
  Exchange(int64_t bytes, int value) : memory((bytes + 15) / 16) {
    std::memset(memory.data(), value, 16 * memory.size());
  }
};

template <class T, prnnRNNMode_t MODE, int COLUMNS, int GROUPS, bool RESETS>
struct Layer {
  static constexpr int kGates = gate_count(MODE), kElement = sizeof(T);
  static constexpr bool kIsLstm = MODE == PRNN_LSTM;

  std::vector<int> batches;
  std::vector<StepSizes> steps;
  int batch = batches[0], rows = 0, fault = 0;
  size_t states = size_t{kHidden} * batch;
  Array<T> weights{size_t{kGates} * kHidden * kHidden, 1 / std::sqrt(kHidden)}, input_bias{kGates * kHidden, 0.5},
      recurrent_bias{kGates * kHidden, 0.5}, hx{states}, cx{states}, reset_hx{states}, reset_cx{states}, hy{states},
      cy{states}, dhy{states}, dcy{states}, dhx{states}, dcx{states};
  std::vector<double> factors;
  std::vector<uint8_t> reset;

  explicit Layer(std::vector<int> sizes) : batches(std::move(sizes)) {
    for (const int size : batches) {
      steps.push_back({rows, size});
      rows += size;
    }
    for (size_t i = 0; i < weights.elements.size(); ++i) factors.push_back(rounded<T>(weights[i]));
    for (int i = 0; i < rows; ++i) reset.push_back(random_bits() % 10 < 3);
  }
  ResidentSizes sizes() {
    ResidentSizes sizes{};
    sizes.hidden = sizes.padded = kHidden;
    sizes.steps = static_cast<int>(steps.size());
    sizes.batch = sizes.columns = sizes.columns_per_replica = batch;
    sizes.table = steps.data();
    sizes.blocks = kBlocks;
    sizes.replicas = sizes.directions = 1;
    sizes.timed_out = &fault;
    return sizes;
  }
  // What a sequence has in place of the state before timestep t, or NULL.
  const Array<T>* starts(int t, int n, bool carried) {
    const bool is_cell = carried && kIsLstm;
    if (RESETS && reset[steps[t].row + n] != 0) return is_cell ? &reset_cx : &reset_hx;
    return t == 0 ? (is_cell ? &cx : &hx) : nullptr;
  }

  int run(unsigned seed) {
    const size_t all = size_t{kHidden} * rows;
    Array<T> xw(kGates * all), y(all), gates(4 * all), cells(all), dy(all), dgates(kGates * all), dcandidate(all);
    constexpr int kUnitChunks = kHidden / multicast_chunk(kElement);

    ForwardParams forward{};
    forward.sizes = sizes();
    forward.xw_row = kGates * kHidden;
    forward.xw_gate = forward.y_row = kHidden;
    ForwardDirection& f = forward.direction[0];
    Exchange states_exchange(multicast_exchange_bytes(kUnitChunks, kUnitChunks, COLUMNS, GROUPS), 0xFF);
    f.exchange = states_exchange.memory.data();
    f.weights = weights.data(), f.input_bias = input_bias.data(), f.recurrent_bias = recurrent_bias.data();
    f.xw = xw.data(), f.hx = hx.data(), f.cx = cx.data(), f.y = y.data(), f.hy = hy.data(), f.cy = cy.data();
    f.gates = gates.data(), f.cells = cells.data();
    if (RESETS) f.reset = reset.data(), f.reset_hx = reset_hx.data(), f.reset_cx = reset_cx.data();
    const auto run_forward = [&] { wgmma_multicast_forward<T, MODE, COLUMNS, GROUPS, RESETS>(forward); };
    if (!gpu::launch(kBlocks, seed, run_forward) || fault != 0) return 2;
    compare_forward(xw, y, gates, cells);

    BackwardParams backward{};
    backward.sizes = sizes();
    backward.y_row = kHidden;
    BackwardDirection& b = backward.direction[0];
    Exchange sums(multicast_exchange_bytes(kUnitChunks, kGates * kUnitChunks, COLUMNS, GROUPS) +
                      multicast_sums_bytes(kBlocks, COLUMNS, GROUPS),
                  0);
    backward.sums = reinterpret_cast<float*>(sums.memory.data());
    b.weights = weights.data(), b.y = y.data(), b.dy = dy.data(), b.hx = hx.data(), b.cx = cx.data();
    b.dhy = dhy.data(), b.dcy = dcy.data(), b.gates = gates.data(), b.cells = cells.data(), b.dgates = dgates.data();
    b.dcandidate = dcandidate.data(), b.dhx = dhx.data(), b.dcx = dcx.data();
    std::vector<float> biases(4 * kHidden), dreset_hx(states), dreset_cx(states);
    b.bias_sums = biases.data();
    if (RESETS) {
      b.reset = reset.data(), b.reset_hx = reset_hx.data(), b.reset_cx = reset_cx.data();
      b.dreset_hx = dreset_hx.data(), b.dreset_cx = dreset_cx.data();
    }
    const auto run_backward = [&] { wgmma_multicast_backward<T, MODE, COLUMNS, GROUPS, RESETS>(backward); };
    if (!gpu::launch(kBlocks, seed, run_backward) || fault != 0) return 2;
    compare_backward(y, gates, cells, dy, dgates, dcandidate, biases, dreset_hx, dreset_cx);
    return 0;
  }

  void compare_forward(const Array<T>& xw, const Array<T>& y, const Array<T>& gates, const Array<T>& cells) {
    Comparison of_y{"y"}, of_gates{"gates"}, of_cells{"cells"}, of_hy{"hy"}, of_cy{"cy"};
    std::vector<double> h(states), carried(states), factor(kHidden);
    for (size_t t = 0; t < steps.size(); ++t) {
      for (int n = 0; n < batches[t]; ++n) {
        const size_t row = steps[t].row + n, state = size_t{kHidden} * n;
        const Array<T>*const first_h = starts(t, n, false), *const first = starts(t, n, true);
        for (int u = 0; u < kHidden; ++u) {
          if (first_h != nullptr) h[state + u] = (*first_h)[state + u];
          if (first != nullptr) carried[state + u] = (*first)[state + u];
          factor[u] = rounded<T>(h[state + u]);
        }
        for (int u = 0; u < kHidden; ++u) {
          double recurrent[4], input[4], gate[4];
          for (int g = 0; g < kGates; ++g) {
            recurrent[g] = recurrent_bias[g * kHidden + u];
            for (int k = 0; k < kHidden; ++k)
              recurrent[g] += factors[(size_t{kHidden} * g + u) * kHidden + k] * factor[k];
            input[g] = xw[(row * kGates + g) * kHidden + u] + input_bias[g * kHidden + u];
            gate[g] = logistic(recurrent[g] + input[g]);
          }
          double& c = carried[state + u];
          if (kIsLstm) {
            gate[2] = std::tanh(recurrent[2] + input[2]);
            c = gate[1] * c + gate[0] * gate[2];
            h[state + u] = gate[3] * std::tanh(c);
            of_cells.add(cells[row * kHidden + u], c);
          } else {
            gate[3] = recurrent[2];
            gate[2] = std::tanh(input[2] + gate[0] * gate[3]);
            c = h[state + u] = gate[2] + gate[1] * (c - gate[2]);
          }
          of_y.add(y[row * kHidden + u], h[state + u]);
          for (int g = 0; g < 4; ++g) of_gates.add(gates[(row * kHidden + u) * 4 + g], gate[g]);
        }
      }
    }
    for (size_t i = 0; i < states; ++i) {
      of_hy.add(hy[i], h[i]);
      if (kIsLstm) of_cy.add(cy[i], carried[i]);
    }
  }

  void compare_backward(const Array<T>& y, const Array<T>& gates, const Array<T>& cells, const Array<T>& dy,
                        const Array<T>& dgates, const Array<T>& dcandidate, const std::vector<float>& biases,
                        const std::vector<float>& dreset_hx, const std::vector<float>& dreset_cx) {
    Comparison of_dgates{"dgates"}, of_dcandidate{"dcandidate"}, of_dhx{"dhx"}, of_dcx{"dcx"}, of_biases{"biases"},
        of_dreset_hx{"dreset_hx"}, of_dreset_cx{"dreset_cx"};
    std::vector<double> carried(states), gradients(kGates * states), sums(4 * kHidden), reset_h(states),
        reset_c(states);
    for (int t = static_cast<int>(steps.size()) - 1; t >= -1; --t) {
      const int present = t >= 0 ? batches[t] : 0, were = t + 1 < static_cast<int>(steps.size()) ? batches[t + 1] : 0;
      for (int n = 0; n < max(present, were); ++n) {
        const size_t state = size_t{kHidden} * n;
        std::vector<double> through(kHidden);
        for (int k = 0; n < were && k < kGates * kHidden; ++k) {
          for (int u = 0; u < kHidden; ++u)
            through[u] += gradients[kGates * state + k] * factors[size_t{kHidden} * k + u];
        }
        for (int u = 0; u < kHidden; ++u) {
          double dh = through[u], &past = carried[state + u];
          if (RESETS && n < were && reset[steps[t + 1].row + n] != 0) {
            reset_h[state + u] += kIsLstm ? dh : dh + past;
            reset_c[state + u] += past;
            dh = past = 0;
          }
          if (n >= were) {
            dh = dhy[state + u];
            past = kIsLstm ? dcy[state + u] : 0;
          } else if (n >= present) {
            of_dhx.add(dhx[state + u], kIsLstm ? dh : dh + past);
            if (kIsLstm) of_dcx.add(dcx[state + u], past);
            continue;
          }
          const size_t row = steps[t].row + n, element = row * kHidden + u;
          const Array<T>* const first = starts(t, n, true);
          const size_t before_at = first != nullptr ? 0 : size_t(steps[t - 1].row + n) * kHidden + u;
          const double before = first != nullptr ? (*first)[state + u] : kIsLstm ? cells[before_at] : y[before_at];
          double gate[4], da[4];
          for (int g = 0; g < 4; ++g) gate[g] = gates[element * 4 + g];
          dh += dy[element];
          if (kIsLstm) {
            const double squashed = std::tanh(cells[element]), dc = past + dh * gate[3] * (1 - squashed * squashed);
            da[0] = dc * gate[2] * gate[0] * (1 - gate[0]);
            da[1] = dc * before * gate[1] * (1 - gate[1]);
            da[2] = dc * gate[0] * (1 - gate[2] * gate[2]);
            da[3] = dh * squashed * gate[3] * (1 - gate[3]);
            past = dc * gate[1];
          } else {
            dh += past;
            da[3] = dh * (1 - gate[1]) * (1 - gate[2] * gate[2]);
            da[2] = da[3] * gate[0];
            da[1] = dh * (before - gate[2]) * gate[1] * (1 - gate[1]);
            da[0] = da[3] * gate[3] * gate[0] * (1 - gate[0]);
            past = dh * gate[1];
            of_dcandidate.add(dcandidate[element], da[3]);
          }
          for (int g = 0; g < 4; ++g) sums[g * kHidden + u] += da[g];
          for (int g = 0; g < kGates; ++g) {
            of_dgates.add(dgates[(row * kGates + g) * kHidden + u], da[g]);
            gradients[kGates * state + g * kHidden + u] = rounded<T>(da[g]);
          }
        }
      }
    }
    for (int i = 0; i < 4 * kHidden; ++i) of_biases.add(biases[i], sums[i]);
    for (size_t i = 0; RESETS && i < states; ++i) {
      of_dreset_hx.add(dreset_hx[i], reset_h[i]);
      if (kIsLstm) of_dreset_cx.add(dreset_cx[i], reset_c[i]);
    }
  }
};

template <class T, prnnRNNMode_t MODE, int COLUMNS, int GROUPS>
int run(bool resets, unsigned seed, const std::vector<int>& batches) {
  return resets ? Layer<T, MODE, COLUMNS, GROUPS, true>(batches).run(seed)
                : Layer<T, MODE, COLUMNS, GROUPS, false>(batches).run(seed);
}

template <class T, prnnRNNMode_t MODE>
int run(int columns, int groups, bool resets, unsigned seed, const std::vector<int>& batches) {
  if (columns == 64 && sizeof(T) == 2) return run<T, MODE, 64, 2>(resets, seed, batches);
  if (groups == 2) return run<T, MODE, 32, 2>(resets, seed, batches);
  return run<T, MODE, 32, 1>(resets, seed, batches);
}

}  // namespace
}  // namespace prnn

int main(int count, char** words) {
  using namespace prnn;
  const std::string type = words[1], cell = words[2];
  const int columns = std::stoi(words[3]), groups = std::stoi(words[4]);
  const bool resets = std::stoi(words[5]) != 0;
  const auto seed = static_cast<unsigned>(std::stoul(words[6]));
  std::vector<int> batches;
  for (int i = 7; i < count; ++i) batches.push_back(std::stoi(words[i]));
  const auto run_cell = [&](auto element) {
    using T = decltype(element);
    return cell == "lstm" ? run<T, PRNN_LSTM>(columns, groups, resets, seed, batches)
                          : run<T, PRNN_GRU>(columns, groups, resets, seed, batches);
  };
  return type == "tf32" ? run_cell(Tf32()) : run_cell(__nv_bfloat16());
}
