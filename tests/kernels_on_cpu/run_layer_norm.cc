// An LSTM with layer normalisation by the cluster kernels, or those of single timesteps, beside the formulas of
// prnnSetRNNNormalization in double: forward in full, backward differences of the loss sum(dy y) + sum(dcy cy) for some
// elements of each array. As run_layer.cc; engine=gates, products or none: what is normalised. A timestep's batch says
// which sequences reach it.
#include "layer.h"
#include "layer_norm_kernels.h"
#include "rnn/cuda/common/launch.cuh"

namespace prnn {

PRNN_LAYER_NORM_KERNELS(extern)

namespace {

enum Input { kX, kH0, kC0, kGateGain, kGateBias, kCellGain, kCellBias, kRecurrent, kInputs };

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

template <class T, int COLUMN_TILES>
class LayerNorm {
 public:
  explicit LayerNorm(const Options& options)
      : o_(options),
        H_(options.hidden),
        steps_(static_cast<int>(options.batches.size())),
        N_(options.batches[0]),
        y_(o_.type, all()),
        cy_(o_.type, states()),
        dy_(o_.type, all()),
        dcy_(o_.type, states()),
        zoneout_(o_.type, all()),
        mask_(o_.type, states()),
        gates_(o_.type, 4 * all()),
        cells_(o_.type, all()),
        dx_(o_.type, 4 * all()),
        da_(o_.type, 4 * all()),
        dh0_(o_.type, states()),
        dc0_(o_.type, states()),
        stats_(Type::kFloat, size_t{4} * steps_ * N_),
        partials_(COLUMN_TILES == 0 ? N_ : o_.replicas),
        sums_(Type::kFloat, size_t(partials_) * kLayerNormLstmParameterRows * H_, 0) {
    const size_t sizes[kInputs] = {4 * all(),      states(),   states(),   size_t(4) * H_,
                                   size_t(4) * H_, size_t(H_), size_t(H_), size_t(4) * H_ * H_};
    for (int i = 0; i < kInputs; ++i) {
      arrays_.emplace_back(o_.type, sizes[i], i == kRecurrent ? 1 / std::sqrt(H_) : 1);
      values_.emplace_back();
      for (size_t e = 0; e < sizes[i]; ++e) values_[i].push_back(arrays_[i][e]);
    }
    for (size_t i = 0; i < all(); ++i) zoneout_.set(i, bits_() % 4 == 0 ? 1 : 0);
    for (size_t i = 0; i < states(); ++i) mask_.set(i, bits_() % 4 == 0 ? 0 : 1.25);
    for (int n = 0; n < N_; ++n) {
      lengths_.push_back(0);
      for (const int batch : o_.batches) lengths_[n] += batch > n;
    }
  }

  bool run() {
    LayerNormLstmParams<float> p{};
    p.sizes = {H_, steps_, N_, (N_ + o_.replicas - 1) / o_.replicas, o_.replicas, 1};
    p.reverse = o_.reverse;
    p.products = o_.engine == "products";
    p.normalizes = normalizes();
    p.epsilon = 1e-5f;
    p.timed_out = &timed_out_;
    p.x = arrays_[kX].data(), p.h0 = arrays_[kH0].data(), p.c0 = arrays_[kC0].data();
    p.recurrent = arrays_[kRecurrent].data();
    if (normalizes()) {
      p.gate_gain = arrays_[kGateGain].data(), p.gate_bias = arrays_[kGateBias].data();
      p.cell_gain = arrays_[kCellGain].data(), p.cell_bias = arrays_[kCellBias].data();
    }
    if (o_.masks) p.zoneout_mask = zoneout_.data(), p.recurrent_mask = mask_.data();
    p.lengths = lengths_.data();
    p.y = y_.data(), p.cy = cy_.data(), p.gates = gates_.data(), p.cells = cells_.data(), p.stats = stats_.floats();
    if (!run_forward(p)) return false;
    if (!order::kOn) compare_forward();
    p.dy = dy_.data(), p.dcy = dcy_.data(), p.dx = dx_.data(), p.da = p.products ? da_.data() : dx_.data();
    p.dh0 = dh0_.data(), p.dc0 = dc0_.data(), p.sums = sums_.floats();
    if (!run_backward(p)) return false;
    if (!order::kOn) compare_backward();
    return true;
  }

 private:
  size_t states() const { return size_t(H_) * N_; }
  size_t all() const { return states() * steps_; }
  bool normalizes() const { return o_.engine != "none"; }

  using Params = LayerNormLstmParams<float>;

  bool run_forward(const Params& p) {
    if constexpr (COLUMN_TILES == 0) {
      run_forward_steps(p);
      return true;
    } else {
      constexpr int kHidden = kLargest[COLUMN_TILES - 1];
      using Layout = LayerNormLstmForwardLayout<T, kHidden, kCluster, COLUMN_TILES>;
      return ends<Layout>(layer_norm_lstm_forward<T, kHidden, kCluster, COLUMN_TILES>, p);
    }
  }
  bool run_backward(const Params& p) {
    if constexpr (COLUMN_TILES == 0) {
      run_backward_steps(p);
      return true;
    } else {
      constexpr int kHidden = kLargest[COLUMN_TILES - 1];
      using Layout = LayerNormLstmBackwardLayout<T, kHidden, kCluster, COLUMN_TILES>;
      return ends<Layout>(layer_norm_lstm_backward<T, kHidden, kCluster, COLUMN_TILES>, p);
    }
  }
  template <class Layout>
  bool ends(void (*kernel)(LayerNormLstmFloats), const Params& p) {
    return launch_cluster(kernel, kCluster, Layout::kThreads, sizeof(typename Layout::Shared), p, nullptr) ==
               cudaSuccess &&
           timed_out_ == 0;
  }

  // Timesteps as the backend enqueues them, with products in place of cuBLAS'.
  void run_forward_steps(const Params& p) {
    std::vector<float> product(4 * states()), c(states());
    Array masked(o_.type, states());
    for (size_t i = 0; i < states(); ++i) {
      c[i] = static_cast<float>(arrays_[kC0][i]);
      masked.set(i, arrays_[kH0][i] * (o_.masks ? mask_[i] : 1));
    }
    for (int s = 0; s < steps_; ++s) {
      for (int n = 0; n < N_; ++n) {
        std::vector<double> h(H_), sums(4 * H_);
        for (int k = 0; k < H_; ++k)
          h[k] = s > 0 && !o_.masks ? y_[(p.row_of(s - 1) + n) * H_ + k] : masked[size_t(n) * H_ + k];
        add_recurrent(h, sums);
        for (int r = 0; r < 4 * H_; ++r) product[size_t(n) * 4 * H_ + r] = static_cast<float>(sums[r]);
      }
      launch([&](auto pack, auto is_held) {
        forward_step<T, float, pack, is_held>(p, s, product.data(), c.data(), o_.masks ? masked.data() : nullptr);
      });
    }
  }
  void run_backward_steps(const Params& p) {
    const int parts = sizeof(T) == 2 ? 4 : 1;
    const Array& da = p.products ? da_ : dx_;
    std::vector<float> product(parts * states()), direct(states()), dc;
    for (size_t i = 0; i < states(); ++i) dc.push_back(static_cast<float>(dcy_[i]));
    for (int s = steps_ - 1; s >= 0; --s) {
      const float* const later = s == steps_ - 1 ? nullptr : product.data();
      launch([&](auto pack, auto is_held) {
        backward_step<T, float, pack, is_held>(p, s, later, parts, direct.data(), dc.data());
      });
      for (int part = 0; part < parts; ++part) {
        for (int n = 0; n < N_; ++n) {
          std::vector<double> sums(H_);
          for (int r = part * (4 * H_ / parts); r < (part + 1) * (4 * H_ / parts); ++r) {
            const double gradient = da[(p.row_of(s) + n) * 4 * H_ + r];
            const double* const weights = &values_[kRecurrent][size_t(r) * H_];
            for (int k = 0; k < H_; ++k) sums[k] += gradient * weights[k];
          }
          for (int k = 0; k < H_; ++k) product[part * states() + size_t(n) * H_ + k] = static_cast<float>(sums[k]);
        }
      }
    }
    for (size_t i = 0; i < states(); ++i) {
      double through = 0;
      for (int part = 0; part < parts; ++part) through += product[part * states() + i];
      dh0_.set(i, direct[i] + (o_.masks ? mask_[i] : 1) * through);
      dc0_.set(i, dc[i]);
    }
  }
  // A thread has one pack of units, or, of so few threads, several.
  template <class Kernel>
  void launch(const Kernel& kernel) {
    const unsigned packs = (H_ + o_.pack - 1) / o_.pack, wanted = (packs + 31) / 32 * 32;
    const unsigned threads = o_.held && normalizes() ? wanted : 32;
    const dim3 grid(N_, o_.held ? wanted / threads : 1);
    const size_t bytes = o_.held ? 0 : size_t(6) * H_ * sizeof(float);
    using std::bool_constant;
    using std::integral_constant;
    gpu::run(grid, threads, bytes, [&] {
      if (o_.pack == 4) {
        o_.held ? kernel(integral_constant<int, 4>(), bool_constant<true>())
                : kernel(integral_constant<int, 4>(), bool_constant<false>());
      } else {
        o_.held ? kernel(integral_constant<int, 1>(), bool_constant<true>())
                : kernel(integral_constant<int, 1>(), bool_constant<false>());
      }
    });
  }

  // To `sums` the products of R's rows with h, of four rows at once, whose sums do not wait for each other.
  void add_recurrent(const std::vector<double>& h, std::vector<double>& sums) const {
    for (int r = 0; r < 4 * H_; r += 4) {
      const double* const weights = &values_[kRecurrent][size_t(r) * H_];
      double a = sums[r], b = sums[r + 1], c = sums[r + 2], d = sums[r + 3];
      for (int k = 0; k < H_; ++k) {
        a += weights[k] * h[k];
        b += weights[H_ + k] * h[k];
        c += weights[2 * H_ + k] * h[k];
        d += weights[3 * H_ + k] * h[k];
      }
      sums[r] = a, sums[r + 1] = b, sums[r + 2] = c, sums[r + 3] = d;
    }
  }

  // LN(v), or v.
  void normalize(std::vector<double>& v) const {
    if (!normalizes()) return;
    double mean = 0, variance = 0;
    for (const double e : v) mean += e / v.size();
    for (const double e : v) variance += (e - mean) * (e - mean) / v.size();
    for (double& e : v) e = (e - mean) / std::sqrt(variance + 1e-5);
  }

  // All h and the last c; the loss.
  double forward(std::vector<double>& y, std::vector<double>& c) const {
    const bool products = o_.engine == "products";
    std::vector<double> h = values_[kH0];
    c = values_[kC0];
    y.assign(all(), 0);
    double loss = 0;
    for (int s = 0; s < steps_; ++s) {
      const int t = o_.reverse ? steps_ - 1 - s : s;
      for (int n = 0; n < N_; ++n) {
        const size_t row = size_t(t) * N_ + n;
        double *const own_h = &h[size_t(n) * H_], *const own_c = &c[size_t(n) * H_];
        if (t < lengths_[n]) step(row, n, own_h, own_c, products);
        for (int u = 0; u < H_; ++u) {
          y[row * H_ + u] = own_h[u];
          loss += dy_[row * H_ + u] * own_h[u];
        }
      }
    }
    for (size_t i = 0; i < states(); ++i) loss += dcy_[i] * c[i];
    return loss;
  }
  void step(size_t row, int n, double* h, double* c, bool products) const {
    std::vector<double> masked(H_), a(4 * H_), cell(H_);
    for (int u = 0; u < H_; ++u) masked[u] = h[u] * (o_.masks ? mask_[size_t(n) * H_ + u] : 1);
    for (int r = 0; r < 4 * H_; ++r) a[r] = products ? 0 : values_[kX][row * 4 * H_ + r];
    add_recurrent(masked, a);
    normalize(a);
    for (int r = 0; r < 4 * H_ && normalizes(); ++r)
      a[r] = values_[kGateGain][r] * a[r] + values_[kGateBias][r] + (products ? values_[kX][row * 4 * H_ + r] : 0);
    for (int u = 0; u < H_; ++u) {
      cell[u] = logistic(a[H_ + u]) * c[u] + logistic(a[u]) * std::tanh(a[2 * H_ + u]);
      if (products) c[u] = cell[u];
    }
    normalize(cell);
    for (int u = 0; u < H_; ++u) {
      const double v = normalizes() ? values_[kCellGain][u] * cell[u] + values_[kCellBias][u] : cell[u];
      if (!products) c[u] = v;
      const double z = o_.masks ? zoneout_[row * H_ + u] : 0;
      h[u] = z * h[u] + (1 - z) * logistic(a[3 * H_ + u]) * std::tanh(v);
    }
  }

  void compare_forward() const {
    Comparison of_y{"y"}, of_cy{"cy"};
    std::vector<double> y, c;
    forward(y, c);
    for (size_t i = 0; i < all(); ++i) of_y.add(y_[i], y[i]);
    for (size_t i = 0; i < states(); ++i) of_cy.add(cy_[i], c[i]);
  }

  void compare_backward() {
    const char* const names[] = {"dx", "dh0", "dc0", "gate_gain", "gate_bias", "cell_gain", "cell_bias"};
    const int first_row[] = {0, 0, 0, 0, 4, 8, 9};
    for (int input = kX; input <= (normalizes() ? kCellBias : kC0); ++input) {
      Comparison comparison{names[input]};
      std::vector<double>& values = values_[input];
      for (int i = 0; i < 24; ++i) {
        const size_t element = bits_() % values.size();
        double found = 0;
        if (input < kGateGain) {
          found = (input == kX ? dx_ : input == kH0 ? dh0_ : dc0_)[element];
        } else {
          for (int r = 0; r < partials_; ++r)
            found += sums_[(size_t(r) * kLayerNormLstmParameterRows + first_row[input]) * H_ + element];
        }
        comparison.add(found, difference(values[element]));
      }
    }
  }
  double difference(double& value) const {
    constexpr double kStep = 1e-5;
    std::vector<double> y, c;
    value += kStep;
    const double above = forward(y, c);
    value -= 2 * kStep;
    const double below = forward(y, c);
    value += kStep;
    return (above - below) / (2 * kStep);
  }

  Options o_;
  int H_, steps_, N_, timed_out_ = 0;
  std::mt19937 bits_{5};
  Array y_, cy_, dy_, dcy_, zoneout_, mask_, gates_, cells_, dx_, da_, dh0_, dc0_, stats_;
  int partials_;
  Array sums_;
  std::vector<Array> arrays_;
  std::vector<std::vector<double>> values_;
  std::vector<int> lengths_;
};

template <class T>
bool run(const Options& options) {
  if constexpr (!std::is_same_v<T, Tf32>) {
    if (options.column_tiles == 0) return LayerNorm<T, 0>(options).run();
  }
  return options.column_tiles == 1 ? LayerNorm<T, 1>(options).run() : LayerNorm<T, 2>(options).run();
}

}  // namespace
}  // namespace prnn

int main(int count, char** words) {
  const Options options = parse_options(count, words);
  gpu::seed = options.seed;
  const bool ends = options.type == Type::kFloat  ? prnn::run<float>(options)
                    : options.type == Type::kTf32 ? prnn::run<prnn::Tf32>(options)
                                                  : prnn::run<__half>(options);
  return ends ? 0 : 2;
}
