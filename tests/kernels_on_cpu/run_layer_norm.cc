// The cluster kernels of one LSTM with layer normalisation, forward and backward:
//
//     run_layer_norm TYPE NORMALIZE REVERSE ZONEOUT STEPS BATCH HIDDEN INPUT OUTPUT
//
// INPUT: x, h0, c0, recurrent, the gains and biases, zoneout mask, recurrent mask, lengths, dy and dcy, each after the
// number of its elements (int64; 0: NULL). OUTPUT: y, cy, dx, dh0, dc0 and the gradients of gains and biases. Numbers
// are floats, lengths int32. Exit status 2: blocks wait for what never comes.
#include "arrays.h"
#include "instructions.h"
#include "layer_norm_lstm/cuda/cluster_launch.cuh"
#include "layer_norm_lstm/plan.h"
#include "rnn/cuda/common/tf32.cuh"

namespace prnn {
namespace {

Array floats(size_t count) { return Array::of_bytes(4 * count, 0x7F); }

class Input {
 public:
  explicit Input(const char* name) : file_(std::fopen(name, "rb")) {}
  ~Input() { std::fclose(file_); }

  const void* next() {
    int64_t count = 0;
    if (std::fread(&count, sizeof count, 1, file_) != 1) std::abort();
    if (count == 0) return nullptr;
    arrays_.push_back(floats(count));
    if (std::fread(arrays_.back().data(), 4, count, file_) != static_cast<size_t>(count)) std::abort();
    return arrays_.back().data();
  }

 private:
  FILE* file_;
  std::vector<Array> arrays_;
};

int run(char** words) {
  const bool tf32 = words[1] == std::string("tf32");
  prnnLayerNormLSTMOptions_t o{};
  o.dataType = PRNN_DATA_FLOAT;
  o.normalize = static_cast<prnnLayerNormLSTMKind_t>(std::stoi(words[2]));
  o.steps = std::stoi(words[5]), o.batch = std::stoi(words[6]), o.hiddenSize = std::stoi(words[7]);
  const LayerNormLstmClusters plan = plan_layer_norm_lstm_clusters(*find_gpu_row("H200"), o);

  LayerNormLstmParams<float> p{};
  p.sizes = {static_cast<int>(o.hiddenSize),
             static_cast<int>(o.steps),
             static_cast<int>(o.batch),
             plan.columns_per_cluster,
             plan.clusters,
             1};
  p.reverse = std::stoi(words[3]);
  p.products = o.normalize == PRNN_NORMALIZE_PRODUCTS;
  p.normalizes = o.normalize != PRNN_NORMALIZE_NONE;
  p.epsilon = 1e-5f;
  p.zoneout = std::stof(words[4]);
  Input input(words[8]);
  for (const void** array : {&p.x, &p.h0, &p.c0, &p.recurrent, &p.gate_gain, &p.gate_bias, &p.cell_gain, &p.cell_bias,
                             &p.zoneout_mask, &p.recurrent_mask}) {
    *array = input.next();
  }
  p.lengths = static_cast<const int*>(input.next());
  p.dy = input.next(), p.dcy = input.next();

  const size_t state = o.batch * o.hiddenSize, all = o.steps * state, rows = kLayerNormLstmParameterRows * o.hiddenSize;
  Array y = floats(all), cy = floats(state), gates = floats(4 * all), cells = floats(all),
        stats = floats(4 * o.steps * o.batch), dx = floats(4 * all), da = floats(4 * all), dh0 = floats(state),
        dc0 = floats(state), sums = floats(plan.clusters * rows), total = Array::of_bytes(4 * rows, 0);
  int fault = 0;
  p.timed_out = &fault;
  p.y = y.data(), p.cy = cy.data(), p.gates = gates.data(), p.cells = cells.data(), p.stats = stats.floats();
  p.dx = dx.data(), p.da = p.products ? da.data() : p.dx, p.dh0 = dh0.data(), p.dc0 = dc0.data();
  p.sums = sums.floats();
  for (const bool is_backward : {false, true}) {
    const auto launch = tf32 ? launch_layer_norm_lstm_cluster<Tf32> : launch_layer_norm_lstm_cluster<float>;
    if (launch(plan, is_backward, p, nullptr) != cudaSuccess || fault != 0) return 2;
  }
  for (size_t i = 0; i < plan.clusters * rows; ++i) total.floats()[i % rows] += sums.floats()[i];

  FILE* const file = std::fopen(words[9], "wb");
  const auto write = [&](Array& array, size_t count) { std::fwrite(array.data(), 4, count, file); };
  write(y, all), write(cy, state), write(dx, 4 * all), write(dh0, state), write(dc0, state), write(total, rows);
  return std::fclose(file);
}

}  // namespace
}  // namespace prnn

int main(int, char** words) { return prnn::run(words); }
