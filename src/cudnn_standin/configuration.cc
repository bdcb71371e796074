#include "cudnn_standin/configuration.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <tuple>

#include "persistent_rnn.h"

namespace prnn_cudnn {
namespace {

auto key(const Configuration& c) {
  return std::tie(c.mode, c.bias, c.direction, c.input_mode, c.type, c.math_type, c.input, c.hidden, c.projection,
                  c.layers, c.padded_io, c.dropout, c.clips, c.layout, c.steps, c.batch, c.width);
}

const char* mode_text(int mode) {
  switch (mode) {
    case PRNN_LSTM: return "LSTM";
    case PRNN_GRU: return "GRU";
    case PRNN_RNN_RELU: return "RNN (relu)";
    case PRNN_RNN_TANH: return "RNN (tanh)";
    default: return "cell of an unknown kind";
  }
}

const char* type_text(int type, int math_type) {
  switch (type) {
    case PRNN_DATA_FLOAT: return math_type == kFmaMath ? "float32" : "tf32";
    case PRNN_DATA_DOUBLE: return "float64";
    case PRNN_DATA_HALF: return "float16";
    case PRNN_DATA_BFLOAT16: return "bfloat16";
    default: return "an unknown type";
  }
}

// The variable by which NVIDIA's libraries are kept from tf32, whatever the program asks for.
bool is_tf32_switched_off() {
  static const bool is_off = [] {
    const char* const value = std::getenv("NVIDIA_TF32_OVERRIDE");
    return value != nullptr && std::strcmp(value, "0") == 0;
  }();
  return is_off;
}

}  // namespace

int Configuration::gates() const { return mode == PRNN_LSTM ? 4 : mode == PRNN_GRU ? 3 : 1; }

size_t Configuration::element() const {
  switch (type) {
    case PRNN_DATA_FLOAT: return 4;
    case PRNN_DATA_HALF:
    case PRNN_DATA_BFLOAT16: return 2;
    default: return 0;
  }
}

bool Configuration::operator<(const Configuration& other) const { return key(*this) < key(other); }

std::string Configuration::text() const {
  std::string text = mode_text(mode);
  text += " " + std::to_string(layers) + " x " + std::to_string(hidden) + ", input " + std::to_string(input) + ", " +
          type_text(type, math_type) + ", batch " + std::to_string(batch);
  if (directions() == 2) text += ", two directions";
  if (is_projected()) text += ", projected to " + std::to_string(projection);
  if (layers > 1 && dropout > 0) text += ", dropout";
  return text;
}

bool read_configuration(const Cudnn& cudnn, void* handle, void* rnn, void* x_desc, Configuration* c,
                        std::vector<int>* lengths, unsigned char* padding) {
  int algorithm = 0, math_precision = 0, type = 0, clip_mode = 0;
  unsigned flags = 0;
  double low = 0, high = 0;
  if (rnn == nullptr || x_desc == nullptr) return false;
  if (cudnn.get_rnn(rnn, &algorithm, &c->mode, &c->bias, &c->direction, &c->input_mode, &c->type, &math_precision,
                    &c->math_type, &c->input, &c->hidden, &c->projection, &c->layers, &c->dropout_desc, &flags) != 0 ||
      cudnn.get_clip(rnn, &clip_mode, &low, &high) != 0) {
    return false;
  }
  c->padded_io = (flags & kPaddedIo) != 0;
  c->clips = clip_mode != kNoClipping;
  c->dropout = 0;
  if (c->layers > 1 && c->dropout_desc != nullptr) {
    void* states = nullptr;
    unsigned long long seed = 0;
    if (cudnn.get_dropout(c->dropout_desc, handle, &c->dropout, &states, &seed) != 0) return false;
  }
  // The size of the batch is not known before the first call, nor is a request for more lengths than there are an
  // error.
  lengths->resize(std::max<size_t>(lengths->size(), 256));
  for (;;) {
    const int room = static_cast<int>(lengths->size());
    if (cudnn.get_data(x_desc, &type, &c->layout, &c->steps, &c->batch, &c->width, room, lengths->data(), padding) !=
        0) {
      return false;
    }
    if (c->batch <= room) break;
    lengths->resize(c->batch);
  }
  lengths->resize(c->batch);
  // cuDNN itself reads the variable when it chooses a kernel; its descriptors stay as they are.
  if (is_tf32_switched_off()) c->math_type = kFmaMath;
  return type == c->type;
}

Sequences::Sequences(const Configuration& c, std::vector<int> lengths)
    : lengths_(std::move(lengths)), order_(lengths_.size()) {
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) { return lengths_[a] > lengths_[b]; });
  are_sorted_ = std::is_sorted(order_.begin(), order_.end());
  const int longest = lengths_[order_.front()], shortest = lengths_[order_.back()];
  batches_.reserve(longest);
  for (int t = 0, present = static_cast<int>(order_.size()); t < longest; ++t) {
    while (lengths_[order_[present - 1]] <= t) --present;
    batches_.push_back(present);
  }
  const bool is_as_packed = c.layout == kPacked || (c.layout == kSequenceMajor && shortest == c.steps) ||
                            (c.layout == kBatchMajor && c.batch == 1 && shortest == c.steps);
  want_packing_ = !is_as_packed;
}

std::vector<int> Sequences::sorted_lengths() const {
  std::vector<int> sorted;
  for (int n : order_) sorted.push_back(lengths_[n]);
  return sorted;
}

}  // namespace prnn_cudnn
