#include "cudnn_standin/taken_call.h"

#include <algorithm>

#include "cudnn_standin/device.h"

namespace prnn_cudnn {
namespace {

constexpr size_t kAlignment = 256;
constexpr int kDrawCount = 256;  // fair coins that make a seed

// Cuts a space into aligned pieces. Made with NULL it only counts.
class Arena {
 public:
  explicit Arena(void* base) : base_(reinterpret_cast<uintptr_t>(base)) {
    at_ = (base_ + kAlignment - 1) / kAlignment * kAlignment;
  }
  template <class Element = char>
  Element* take(size_t bytes) {
    Element* const piece = reinterpret_cast<Element*>(at_);
    at_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  size_t size() const { return at_ - base_ + kAlignment; }  // wherever the space begins

 private:
  uintptr_t base_, at_;
};

// A bit a coin, as cuDNN keeps its masks, and more than any version has been seen to want.
constexpr size_t kCoinReserve = kDrawCount * sizeof(float);

}  // namespace

// Pieces of the workspace. A call uses some of them.
struct TakenCall::Buffers {
  char* prnn;  // libprnn's own
  size_t prnn_size;
  char* weights;       // packed, or their gradients
  char* sequences[3];  // packed: x or dx, y, dy
  char* states[6];     // in the order of the lengths: h and c alternate
  int *order, *lengths;
  float *coins_in, *coins_out;
  char *coins_reserve, *dropout_states;
  size_t size;
};

TakenCall::TakenCall(const Context& context, bool is_training)
    : c_(context),
      config_(context.configuration),
      is_training_(is_training),
      dropout_(context.prnn),
      rnn_(context.prnn),
      call_(prepare(context.sequences.batch_sizes())) {}

PreparedCall TakenCall::prepare(const std::vector<int>& batch_sizes) const {
  const bool drops = config_.layers > 1 && config_.dropout > 0;
  if (drops) {
    c_.prnn.require(c_.prnn.SetDropoutDescriptor(dropout_.get(), c_.prnn_handle, config_.dropout, nullptr, 0, 0),
                    c_.prnn_handle);
  }
  describe(c_.prnn, config_, drops ? dropout_.get() : nullptr, rnn_.get());
  return PreparedCall(c_.prnn, c_.prnn_handle, rnn_.get(), is_training_, config_.input, batch_sizes);
}

TakenCall::Buffers TakenCall::buffers(void* base, size_t prnn_workspace) const {
  Arena arena(base);
  Buffers b{};
  b.prnn_size = prnn_workspace;
  b.prnn = arena.take(prnn_workspace);
  if (!c_.weights.is_same) b.weights = arena.take(c_.weights.packed_size);
  if (c_.sequences.want_packing()) {
    const size_t rows = size_t(config_.steps) * size_t(config_.batch);
    const size_t widest = static_cast<size_t>(std::max(config_.input, config_.output()));
    for (char*& sequence : b.sequences) sequence = arena.take(rows * widest * config_.element());
    const size_t states =
        size_t(config_.layers * config_.directions()) * size_t(config_.batch) * size_t(config_.hidden);
    for (char*& state : b.states) state = arena.take(states * config_.element());
    b.order = arena.take<int>(config_.batch * sizeof(int));
    b.lengths = arena.take<int>(config_.batch * sizeof(int));
  }
  if (config_.layers > 1 && config_.dropout > 0) {
    size_t states_size = 0;
    c_.prnn.require(c_.prnn.DropoutGetStatesSize(c_.prnn_handle, &states_size), c_.prnn_handle);
    b.coins_in = arena.take<float>(kDrawCount * sizeof(float));
    b.coins_out = arena.take<float>(kDrawCount * sizeof(float));
    b.coins_reserve = arena.take(kCoinReserve);
    b.dropout_states = arena.take(states_size);
  }
  b.size = arena.size();
  return b;
}

// The least reserve space, with which a backward pass runs once after each forward call, as cuDNN's does.
Sizes TakenCall::sizes() const { return {buffers(nullptr, call_.info.workspaceSize).size, call_.info.reserveSize}; }

Sizes TakenCall::sizes_for_any_lengths() const {
  const Sizes sizes = this->sizes();
  if (config_.layout != kBatchMajor || config_.batch == 1) return sizes;
  // libprnn's sizes grow with timesteps, sequences and rows, and with the batch if it varies.
  std::vector<int> longest(config_.steps, config_.batch);
  longest.push_back(config_.batch - 1);
  const prnnRNNCallInfo_t most = prepare(longest).info;
  return {std::max(sizes.workspace, buffers(nullptr, most.workspaceSize).size),
          std::max(sizes.reserve, most.reserveSize)};
}

const void* TakenCall::packed_weights(const void* weights, const Buffers& b) const {
  const char* const space = static_cast<const char*>(weights);
  if (c_.weights.is_same) return space + c_.weights.same_at;
  if (!c_.weights.covers) device::fill(b.weights, 0, c_.weights.packed_size, c_.stream);
  for (const WeightBlock& block : c_.weights.blocks) {
    device::copy(b.weights + block.prnn, space + block.cudnn, block.size, c_.stream);
  }
  return b.weights;
}

// Brings sequences and states into prnn's layouts and back, where they have another.
class TakenCall::Layouts {
 public:
  Layouts(const TakenCall& call, const Buffers& b)
      : c_(call.config_),
        b_(b),
        stream_(call.c_.stream),
        packs_(call.c_.sequences.want_packing()),
        sorts_(packs_ && !call.c_.sequences.are_sorted()) {
    if (!packs_) return;
    device::store(b.order, call.c_.sequences.order(), stream_);
    device::store(b.lengths, call.c_.sequences.sorted_lengths(), stream_);
  }

  const void* packed(const void* data, int width, int piece) const {
    if (!packs_ || data == nullptr) return data;
    device::pack(shape(width), data, b_.sequences[piece], stream_);
    return b_.sequences[piece];
  }
  void* packed_output(void* data, int piece) const { return packs_ && data != nullptr ? b_.sequences[piece] : data; }
  void finish(void* data, int width, int piece, const void* padding) const {
    if (!packs_ || data == nullptr) return;
    device::unpack(shape(width), b_.sequences[piece], data, padding, c_.element(), stream_);
  }

  const void* sorted(const void* states, int piece) const {
    if (!sorts_ || states == nullptr) return states;
    device::sort_states(states, b_.states[piece], count(), c_.batch, state_bytes(piece), b_.order, stream_);
    return b_.states[piece];
  }
  void* sorted_output(void* states, int piece) const { return sorts_ && states != nullptr ? b_.states[piece] : states; }
  void finish_states(void* states, int piece) const {
    if (!sorts_ || states == nullptr) return;
    device::unsort_states(b_.states[piece], states, count(), c_.batch, state_bytes(piece), b_.order, stream_);
  }

 private:
  int count() const { return c_.layers * c_.directions(); }
  size_t state_bytes(int piece) const { return (piece % 2 == 0 ? c_.projection : c_.hidden) * c_.element(); }
  device::PaddedShape shape(int width) const {
    return {c_.layout == kBatchMajor, c_.steps, c_.batch, width * c_.element(), b_.order, b_.lengths};
  }

  const Configuration& c_;
  const Buffers& b_;
  void* stream_;
  bool packs_, sorts_;
};

void TakenCall::forward(const prnnRNNForwardArgs_t& given, const void* padding) {
  const Buffers b = buffers(given.workspace, call_.info.workspaceSize);
  const Layouts layouts(*this, b);
  prnnRNNForwardArgs_t args = given;
  args.w = packed_weights(given.w, b);
  args.x = layouts.packed(given.x, config_.input, 0);
  args.y = layouts.packed_output(given.y, 1);
  args.hx = layouts.sorted(given.hx, 0);
  args.cx = layouts.sorted(given.cx, 1);
  args.hy = layouts.sorted_output(given.hy, 2);
  args.cy = layouts.sorted_output(given.cy, 3);
  args.workspace = b.prnn;
  args.workspaceSize = b.prnn_size;
  if (!is_training_) args.reserve = nullptr;
  if (is_training_ && b.dropout_states != nullptr) draw_seed(b);
  c_.prnn.require(c_.prnn.RunRNNForward(call_.get(), &args), c_.prnn_handle);
  layouts.finish(given.y, config_.output(), 1, padding);
  layouts.finish_states(given.hy, 2);
  layouts.finish_states(given.cy, 3);
}

// A seed for this call's masks, drawn from the states of cuDNN's descriptor: they are the program's, which saves and
// restores them, and the draw advances them. Coins are drawn, by dropout with probability 1/2, whatever the layer's own
// probability, so that they make a seed of 64 bits.
void TakenCall::draw_seed(const Buffers& b) {
  const Cudnn& cudnn = c_.cudnn;
  const CudnnObject coins(cudnn.create_dropout, cudnn.destroy_dropout);
  const CudnnObject tensor(cudnn.create_tensor, cudnn.destroy_tensor);
  const int dims[] = {1, 1, 1, kDrawCount}, strides[] = {kDrawCount, kDrawCount, kDrawCount, 1};
  float probability = 0;
  void* states = nullptr;
  unsigned long long seed = 0;
  size_t states_size = 0, own_size = 0;
  require(cudnn.set_tensor(tensor.get(), PRNN_DATA_FLOAT, 4, dims, strides), "a tensor");
  require(cudnn.get_dropout(config_.dropout_desc, c_.cudnn_handle, &probability, &states, &seed), "dropout's states");
  require(cudnn.dropout_states_size(c_.cudnn_handle, &states_size), "the size of dropout's states");
  require(cudnn.restore_dropout(coins.get(), c_.cudnn_handle, 0.5f, states, states_size, seed), "dropout's states");
  device::fill(b.coins_in, 0x3f, kDrawCount * sizeof(float), c_.stream);  // any number but 0
  require(cudnn.dropout_forward(c_.cudnn_handle, coins.get(), tensor.get(), b.coins_in, tensor.get(), b.coins_out,
                                b.coins_reserve, kCoinReserve),
          "a draw from dropout's states");
  c_.prnn.require(c_.prnn.DropoutGetStatesSize(c_.prnn_handle, &own_size), c_.prnn_handle);
  c_.prnn.require(
      c_.prnn.SetDropoutDescriptor(dropout_.get(), c_.prnn_handle, config_.dropout, b.dropout_states, own_size, 0),
      c_.prnn_handle);
  device::store_seed(b.coins_out, kDrawCount, b.dropout_states, c_.stream);
}

void TakenCall::backward_data(const prnnRNNBackwardDataArgs_t& given, const void* padding) {
  const Buffers b = buffers(given.workspace, call_.info.workspaceSize);
  const Layouts layouts(*this, b);
  prnnRNNBackwardDataArgs_t args = given;
  args.w = packed_weights(given.w, b);
  args.y = layouts.packed(given.y, config_.output(), 0);
  args.dy = layouts.packed(given.dy, config_.output(), 1);
  args.dx = layouts.packed_output(given.dx, 2);
  args.hx = layouts.sorted(given.hx, 0);
  args.cx = layouts.sorted(given.cx, 1);
  args.dhy = layouts.sorted(given.dhy, 2);
  args.dcy = layouts.sorted(given.dcy, 3);
  args.dhx = layouts.sorted_output(given.dhx, 4);
  args.dcx = layouts.sorted_output(given.dcx, 5);
  args.workspace = b.prnn;
  args.workspaceSize = b.prnn_size;
  c_.prnn.require(c_.prnn.RunRNNBackwardData(call_.get(), &args), c_.prnn_handle);
  layouts.finish(given.dx, config_.input, 2, padding);
  layouts.finish_states(given.dhx, 4);
  layouts.finish_states(given.dcx, 5);
}

void TakenCall::backward_weights(bool adds, const prnnRNNBackwardWeightsArgs_t& given) {
  const Buffers b = buffers(given.workspace, call_.info.workspaceSize);
  const Layouts layouts(*this, b);
  const WeightLayout& layout = c_.weights;
  char* const space = static_cast<char*>(given.dw);
  prnnRNNBackwardWeightsArgs_t args = given;
  args.dw = layout.is_same ? space + layout.same_at : b.weights;
  if (!adds) {
    device::fill(args.dw, 0, layout.packed_size, c_.stream);
  } else if (!layout.is_same) {
    packed_weights(given.dw, b);
  }
  args.x = layouts.packed(given.x, config_.input, 0);
  args.y = layouts.packed(given.y, config_.output(), 1);
  args.hx = layouts.sorted(given.hx, 0);
  args.workspace = b.prnn;
  args.workspaceSize = b.prnn_size;
  c_.prnn.require(c_.prnn.RunRNNBackwardWeights(call_.get(), &args), c_.prnn_handle);
  if (layout.is_same) return;
  for (const WeightBlock& block : layout.blocks) {
    device::copy(space + block.cudnn, b.weights + block.prnn, block.size, c_.stream);
  }
}

}  // namespace prnn_cudnn
