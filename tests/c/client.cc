// A C++ client: a two-layer bidirectional GRU over sequences of different lengths on a CPU handle, whose padding-free
// outputs must equal those of each sequence alone. Prints "ok" and exits with 0.
#include <persistent_rnn.h>
#include <prnn_losses.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace {

const int kInput = 5, kHidden = 6, kLayers = 2, kDirections = 2, kOutput = kHidden * kDirections;

void check(prnnStatus_t status) {
  if (status != PRNN_STATUS_SUCCESS) throw std::runtime_error(prnnGetErrorString(status));
}

template <typename T>
using Owned = std::unique_ptr<typename std::remove_pointer<T>::type, prnnStatus_t (*)(T)>;

template <typename T>
Owned<T> create(prnnStatus_t (*make)(T*), prnnStatus_t (*destroy)(T)) {
  T made = nullptr;
  check(make(&made));
  return Owned<T>(made, destroy);
}

class Gru {
 public:
  Gru()
      : handle_(create(prnnCreateCPU, prnnDestroy)),
        rnn_(create(prnnCreateRNNDescriptor, prnnDestroyRNNDescriptor)),
        filter_(create(prnnCreateFilterDescriptor, prnnDestroyFilterDescriptor)) {
    check(prnnSetRNNDescriptor(rnn_.get(), kHidden, kLayers, nullptr, PRNN_LINEAR_INPUT, PRNN_BIDIRECTIONAL, PRNN_GRU,
                               PRNN_DATA_FLOAT));
    size_t bytes = 0;
    check(prnnGetRNNParamsSize(handle_.get(), rnn_.get(), tensor(1, kInput), &bytes, PRNN_DATA_FLOAT));
    weights_.resize(bytes / sizeof(float));
    for (size_t i = 0; i < weights_.size(); i++) weights_[i] = 0.3f * std::sin(static_cast<float>(i));
    const int sizes[] = {static_cast<int>(weights_.size()), 1, 1};
    check(prnnSetFilterNdDescriptor(filter_.get(), PRNN_DATA_FLOAT, PRNN_TENSOR_NCHW, 3, sizes));
  }

  // x: timestep after timestep, batches[t] rows of kInput each.
  std::vector<float> operator()(const std::vector<int>& batches, const std::vector<float>& x) {
    std::vector<prnnTensorDescriptor_t> x_descriptors, y_descriptors;
    for (int batch : batches) {
      x_descriptors.push_back(tensor(batch, kInput));
      y_descriptors.push_back(tensor(batch, kOutput));
    }
    const int steps = static_cast<int>(batches.size());
    size_t bytes = 0;
    check(prnnGetRNNWorkspaceSize(handle_.get(), rnn_.get(), steps, x_descriptors.data(), &bytes));
    std::vector<char> workspace(bytes);
    std::vector<float> y(x.size() / kInput * kOutput);
    check(prnnRNNForwardInference(handle_.get(), rnn_.get(), steps, x_descriptors.data(), x.data(), nullptr, nullptr,
                                  nullptr, nullptr, filter_.get(), weights_.data(), y_descriptors.data(), y.data(),
                                  nullptr, nullptr, nullptr, nullptr, workspace.data(), bytes));
    return y;
  }

 private:
  prnnTensorDescriptor_t tensor(int rows, int columns) {
    tensors_.push_back(create(prnnCreateTensorDescriptor, prnnDestroyTensorDescriptor));
    const int sizes[] = {rows, columns, 1}, strides[] = {columns, 1, 1};
    check(prnnSetTensorNdDescriptor(tensors_.back().get(), PRNN_DATA_FLOAT, 3, sizes, strides));
    return tensors_.back().get();
  }

  Owned<prnnHandle_t> handle_;
  Owned<prnnRNNDescriptor_t> rnn_;
  Owned<prnnFilterDescriptor_t> filter_;
  std::vector<Owned<prnnTensorDescriptor_t>> tensors_;
  std::vector<float> weights_;
};

int run() {
  Gru gru;
  const std::vector<int> batches = {3, 3, 2, 1};  // three sequences of 4, 3 and 2 timesteps
  int rows = 0;
  for (int batch : batches) rows += batch;
  std::vector<float> x(static_cast<size_t>(rows * kInput));
  for (size_t i = 0; i < x.size(); i++) x[i] = std::cos(static_cast<float>(i));
  const std::vector<float> together = gru(batches, x);

  for (int sequence = 0; sequence < batches[0]; sequence++) {
    std::vector<float> own_x, own_y;
    int row = 0;
    std::vector<int> ones;
    for (int batch : batches) {
      if (sequence < batch) {
        const auto at = row + sequence;
        own_x.insert(own_x.end(), x.begin() + at * kInput, x.begin() + (at + 1) * kInput);
        own_y.insert(own_y.end(), together.begin() + at * kOutput, together.begin() + (at + 1) * kOutput);
        ones.push_back(1);
      }
      row += batch;
    }
    const std::vector<float> alone = gru(ones, own_x);
    for (size_t i = 0; i < alone.size(); i++) {
      if (!(std::fabs(alone[i] - own_y[i]) < 1e-5f) || alone[i] == 0) {
        std::cerr << "sequence " << sequence << ": " << alone[i] << " alone, " << own_y[i] << " in the batch\n";
        return 1;
      }
    }
  }
  std::cout << "ok\n";
  return 0;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
