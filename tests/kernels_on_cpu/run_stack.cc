// A stack of layers by the wavefront kernels, forward and backward, beside the same in double; as run_layer.cc. The
// reference of a layer begins with what the kernels published of its neighbour.
#include "launch.h"
#include "layer.h"
#include "rnn/plan/wavefront_chunked.h"

namespace prnn {
namespace {

class Stack {
 public:
  explicit Stack(const Options& options) : options_(options), scale_(options.dropout_scale) {
    RnnProblem problem = Layer(options).problem();
    problem.dropout.probability = scale_ > 0 ? 0.2f : 0;
    problem.projection = options.projection;
    GpuRow row = *find_gpu_row("H200");
    if (options.blocks > 0) row.multiprocessors = options.blocks;
    for (int& blocks : row.cluster_blocks) blocks = std::min(blocks, row.multiprocessors);
    // Plans by chunks are of more timesteps than are run here, and those of both passes of more units and layers: six
    // small layers have blocks of 32 units, forward.
    if (options.chunk > 0 && options.has_backward) {
      problem.hidden = problem.input = std::max<int64_t>(problem.hidden, 576);
      problem.layers = std::max<int64_t>(problem.layers, 6);
    }
    if (options.chunk > 0) problem.batch.insert(problem.batch.begin(), 256, problem.batch[0]);
    plan_ = plan_wavefront(row, problem);
    for (ResidentShape* shape : {&plan_.forward.shape, &plan_.backward.shape}) {
      if (!is_chunked(*shape)) continue;
      const int64_t units = int64_t{shape->units} * shape->cluster;
      shape->blocks = static_cast<int>(ceil_div(int64_t{options.hidden}, units) * shape->cluster);
    }
    options_.replicas = std::max(plan_.backward.shape.replicas, 1);
    for (int i = 0; i < options.layers; ++i) {
      layers_.emplace_back(options_);
      const Layer& layer = layers_.back();
      inputs_.emplace_back(options.type, size_t(layer.gates) * options.hidden * width(), 1 / std::sqrt(width()));
      dropped_.emplace_back(options.type, size_t(layer.rows) * width());
      if (projects()) {
        projections_.emplace_back(options.type, size_t(width()) * options.hidden, 1 / std::sqrt(options.hidden));
        projected_.emplace_back(options.type, size_t(layer.rows) * width());
      }
      if (options.initial) initial_.emplace_back(Type::kFloat, layer.gates * layer.states);
      std::vector<uint8_t> kept(size_t(layer.rows) * width() / 8);
      for (uint8_t& bits : kept) bits = static_cast<uint8_t>(bits_());
      kept_.push_back(std::move(kept));
    }
  }

  bool forward() {
    if (plan_.forward.layers < options_.layers) return false;
    WavefrontForwardParams params{};
    Layer& lowest = layers_[0];
    params.sizes = lowest.sizes_of(plan_.forward.shape, options_.layers, &timed_out_);
    params.xw = lowest.xw.data();
    params.xw_row = lowest.gates * options_.hidden;
    params.xw_gate = options_.hidden;
    params.dropout_scale = static_cast<float>(scale_);
    for (int i = 0; i < options_.layers; ++i) {
      const ForwardDirection of_layer = layers_[i].forward();
      layers_[i].y.fill(0xFF);
      dropped_[i].fill(0xFF);
      WavefrontForwardLayer& own = params.layer[i];
      own.recurrent = of_layer.weights, own.input_bias = of_layer.input_bias;
      own.recurrent_bias = of_layer.recurrent_bias, own.initial = own.hx = of_layer.hx, own.cx = of_layer.cx;
      own.y = of_layer.y, own.hy = of_layer.hy, own.cy = of_layer.cy;
      own.gates = of_layer.gates, own.cells = of_layer.cells;
      if (i > 0) own.input = inputs_[i].data(), own.below = (projects() ? layers_[i - 1].y : below(i)).data();
      if (drops() && !projects() && i + 1 < options_.layers) params.dropout[i] = {kept_[i].data(), dropped_[i].data()};
    }
    if (is_chunked(plan_.forward.shape) != (options_.chunk > 0)) return false;
    std::vector<Array> arrays;
    std::vector<unsigned> progress(options_.layers), projected(options_.layers);
    params.chunk_steps = options_.chunk;
    set_projection(plan_.forward.shape, params);
    for (int i = 0; i < options_.layers && options_.chunk > 0; ++i) {
      WavefrontForwardLayer& own = params.layer[i];
      own.initial = nullptr;
      follow(layers_[i].y);
      follow(dropped_[i]);
      arrays.emplace_back(options_.type, lowest.steps.size() * lowest.states);
      arrays.back().fill(0xFF);
      follow(arrays.back(), order::Kind::kWords);
      own.exchange = arrays.back().data();
      if (i + 1 < options_.layers) own.progress = &progress[i];
      if (i == 0) continue;
      arrays.emplace_back(options_.type, size_t(kChunkedRows) * lowest.gates * options_.hidden);
      follow(arrays.back());
      own.products = arrays.back().data();
      own.below_progress = &progress[i - 1];
      if (projects()) {
        follow(projected_[i - 1]);
        own.projection = {projections_[i - 1].data(), kept_[i - 1].data(), projected_[i - 1].data(),
                          dropped_[i - 1].data(), &projected[i]};
      }
      if (options_.initial) own.initial_products = initial_[i].floats();
    }
    if (!launch(kWavefrontForwardLaunchers, plan_.forward.shape, params)) return false;
    for (int i = 0; i < options_.layers; ++i) {
      if (i > 0 && projects()) compare_projected(i - 1);
      if (i > 0) multiply_input(i);
      layers_[i].compare_forward();
    }
    return true;
  }

  bool backward() {
    if (plan_.backward.layers < options_.layers) return false;
    WavefrontBackwardParams params{};
    params.sizes = layers_[0].sizes_of(plan_.backward.shape, options_.layers, &timed_out_);
    params.dy = layers_.back().dy.data();
    params.dropout_scale = static_cast<float>(scale_);
    for (int i = 0; i < options_.layers; ++i) {
      const BackwardDirection of_layer = layers_[i].backward();
      layers_[i].dgates.fill(0xFF);
      layers_[i].dcandidate.fill(0xFF);
      WavefrontBackwardLayer& own = params.layer[i];
      own.recurrent = of_layer.weights, own.y = of_layer.y, own.hx = of_layer.hx, own.cx = of_layer.cx;
      own.dhy = of_layer.dhy, own.dcy = of_layer.dcy, own.gates = of_layer.gates, own.cells = of_layer.cells;
      own.dgates = of_layer.dgates, own.dcandidate = of_layer.dcandidate;
      own.dhx = of_layer.dhx, own.dcx = of_layer.dcx, own.bias_sums = of_layer.bias_sums;
      if (i + 1 == options_.layers) continue;
      own.input_above = inputs_[i + 1].data();
      own.above = layers_[i + 1].dgates.data();
      own.candidate_above = layers_[i + 1].is_gru ? layers_[i + 1].dcandidate.data() : nullptr;
      if (drops() && !projects()) params.kept[i] = kept_[i].data();
    }
    if (is_chunked(plan_.backward.shape) != (options_.chunk > 0)) return false;
    std::vector<Array> arrays;
    std::vector<unsigned> progress(options_.layers), projected(options_.layers);
    set_projection(plan_.backward.shape, params);
    size_t gates_above = 0;  // in `arrays`
    params.chunk_steps = options_.chunk;
    // All of a row's gradients together.
    if (options_.chunk > 0) {
      arrays.emplace_back(options_.type, 4 * layers_.back().all);
      follow(arrays.back());
      params.layer[options_.layers - 1].dgates = arrays.back().data();
    }
    for (int i = options_.layers - 1; i >= 0 && options_.chunk > 0; --i) {
      WavefrontBackwardLayer& own = params.layer[i];
      const Layer& layer = layers_[i];
      const size_t row = size_t(layer.gates) * options_.hidden;
      arrays.emplace_back(options_.type, size_t(4) * options_.chunk * chunked_columns(layer.batch) * row);
      arrays.back().fill(0xFF);
      follow(arrays.back(), order::Kind::kWords);
      own.exchange = arrays.back().data();
      own.progress = &progress[i];
      if (i + 1 < options_.layers) {
        arrays.emplace_back(options_.type, size_t(kChunkedRows) * options_.hidden);
        follow(arrays.back());
        own.products = arrays.back().data();
        own.above = params.layer[i + 1].dgates;
        own.above_progress = &progress[i + 1];
        if (projects()) {
          projected_[i].fill(0xFF);
          follow(projected_[i]);
          own.projection = {projections_[i].data(), kept_[i].data(), projected_[i].data(), nullptr, &projected[i]};
        }
        own.dgates = arrays[gates_above].data();
      }
      gates_above = arrays.size();
      arrays.emplace_back(options_.type, 4 * layer.all);
      follow(arrays.back());
      std::memcpy(arrays.back().data(), own.gates, arrays.back().bytes());
      own.gates = arrays.back().data();
    }
    if (!launch(kWavefrontBackwardLaunchers, plan_.backward.shape, params)) return false;
    for (int i = 0; i < options_.layers && options_.chunk > 0; ++i) copy_gradients(layers_[i], params.layer[i].dgates);
    for (int i = options_.layers - 1; i >= 0; --i) {
      if (i + 1 < options_.layers) multiply_above(i);
      layers_[i].compare_backward();
    }
    return true;
  }

 private:
  static void follow(Array& array, order::Kind kind = order::Kind::kArray) {
    order::follow(array.data(), array.bytes(), kind);
  }
  bool drops() const { return scale_ > 0; }
  bool projects() const { return options_.projection > 0; }
  int width() const { return projects() ? options_.projection : options_.hidden; }  // of a row of what a layer reads
  template <class Params>
  void set_projection(const ResidentShape& shape, Params& params) const {
    if (!projects()) return;
    params.projection = width();
    params.projection_columns = chunked_projected_columns(width(), shape.blocks / shape.cluster);
  }
  Array& below(int i) { return drops() ? dropped_[i - 1] : layers_[i - 1].y; }
  double factor(int i, size_t element) const {
    return !drops() ? 1 : (kept_[i][element / 8] >> element % 8 & 1) != 0 ? scale_ : 0;
  }

  // From rows of all gradients of the gates.
  void copy_gradients(Layer& layer, const void* rows) const {
    const size_t unit = options_.hidden * bytes_of(options_.type), gates = layer.gates * unit;
    for (int row = 0; row < layer.rows; ++row) {
      const char* const from = static_cast<const char*>(rows) + row * 4 * unit;
      std::memcpy(static_cast<char*>(layer.dgates.data()) + row * gates, from, gates);
      if (layer.is_gru) std::memcpy(static_cast<char*>(layer.dcandidate.data()) + row * unit, from + gates, unit);
    }
  }

  // h of layer i, the projection of its m.
  void compare_projected(int i) const {
    Comparison of_projected{"projected"};
    const int hidden = options_.hidden;
    for (int row = 0; row < layers_[i].rows; ++row) {
      for (int c = 0; c < width(); ++c) {
        double sum = 0;
        for (int u = 0; u < hidden; ++u)
          sum += projections_[i][size_t(hidden) * c + u] * layers_[i].y[size_t(hidden) * row + u];
        of_projected.add(projected_[i][size_t(width()) * row + c], sum);
      }
    }
  }

  // Layer::products of layer i.
  void multiply_input(int i) {
    Layer& layer = layers_[i];
    const int hidden = options_.hidden;
    Comparison of_dropped{"dropped"};
    const Array& whole = projects() ? projected_[i - 1] : layers_[i - 1].y;
    for (size_t e = 0; e < size_t(layer.rows) * width() && drops(); ++e)
      of_dropped.add(dropped_[i - 1][e], whole[e] * factor(i - 1, e));
    for (int row = 0; row < layer.rows; ++row) {
      for (int r = 0; r < layer.gates * hidden; ++r) {
        double sum = 0;
        for (int k = 0; k < width(); ++k)
          sum += inputs_[i][size_t(width()) * r + k] * below(i)[size_t(width()) * row + k];
        const size_t element = size_t(layer.gates) * hidden * row + r;
        if (options_.chunk > 0) sum = rounded(options_.type, sum, false);
        if (options_.initial && row < layer.batch) sum = rounded(options_.type, sum + initial_[i][element], false);
        layer.products[element] = sum;
      }
    }
  }

  // Layer::output_gradients of layer i.
  void multiply_above(int i) {
    const Layer& above = layers_[i + 1];
    const int hidden = options_.hidden;
    Comparison of_projected{"dprojected"};
    for (int row = 0; row < above.rows; ++row) {
      std::vector<double> sums(width());
      for (int r = 0; r < above.gates * hidden; ++r) {
        const bool is_candidate = above.is_gru && r >= 2 * hidden;
        const double gradient = is_candidate ? above.dcandidate[size_t(hidden) * row + r - 2 * hidden]
                                             : above.dgates[size_t(above.gates) * hidden * row + r];
        for (int u = 0; u < width(); ++u) sums[u] += gradient * inputs_[i + 1][size_t(width()) * r + u];
      }
      if (projects()) {
        std::vector<double> of_units(hidden);
        for (int c = 0; c < width(); ++c) {
          const size_t element = size_t(width()) * row + c;
          of_projected.add(projected_[i][element], sums[c] * factor(i, element));
          for (int u = 0; u < hidden; ++u)
            of_units[u] += projected_[i][element] * projections_[i][size_t(hidden) * c + u];
        }
        sums = of_units;
      }
      for (int u = 0; u < hidden; ++u) {
        const size_t element = size_t(hidden) * row + u;
        const double dy = projects() ? sums[u] : sums[u] * factor(i, element);
        layers_[i].output_gradients[element] = options_.chunk > 0 ? rounded(options_.type, dy, false) : dy;
      }
    }
  }

  Options options_;
  double scale_;
  std::mt19937 bits_{5};
  std::vector<Layer> layers_;
  std::vector<Array> inputs_, dropped_;  // [G H, H] of each layer, for what is below it; and [rows, H]; or P for H
  std::vector<Array> projections_;       // [P, H]
  std::vector<Array> projected_;         // [rows, P]: h; backward, its gradients
  std::vector<Array> initial_;           // [N, G, H]
  std::vector<std::vector<uint8_t>> kept_;
  WavefrontPlan plan_;
  int timed_out_ = 0;
};

}  // namespace
}  // namespace prnn

int main(int count, char** words) {
  const Options options = parse_options(count, words);
  gpu::seed = options.seed;
  order::words_order = !options.relaxed;
  prnn::Stack stack(options);
  return stack.forward() && (!options.has_backward || stack.backward()) ? 0 : 3;
}
