// A C++ client of prnn_call.h: a GRU that streams, a timestep at a time, with one prepared call whose states go in and
// out; its outputs must equal those of the whole sequence in one call. Prints "ok".
#include <prnn_call.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <vector>

namespace {

const int kInput = 5, kHidden = 6, kSteps = 9, kBatch = 2;

template <typename T>
using Owned = std::unique_ptr<typename std::remove_pointer<T>::type, prnnStatus_t (*)(T)>;

class Gru {
 public:
  Gru() : handle_(make(prnnCreateCPU, prnnDestroy)), rnn_(make(prnnCreateRNNDescriptor, prnnDestroyRNNDescriptor)) {
    check(prnnSetRNNDescriptor(rnn_.get(), kHidden, 1, nullptr, PRNN_LINEAR_INPUT, PRNN_UNIDIRECTIONAL, PRNN_GRU,
                               PRNN_DATA_FLOAT));
  }

  // An inference call over so many timesteps of kBatch sequences.
  Owned<prnnRNNCall_t> prepare(int steps) {
    const std::vector<int> batch_sizes(static_cast<size_t>(steps), kBatch);
    prnnRNNCall_t call = nullptr;
    check(prnnPrepareRNN(handle_.get(), rnn_.get(), PRNN_FWD_MODE_INFERENCE, kInput, steps, batch_sizes.data(), &call));
    return Owned<prnnRNNCall_t>(call, prnnDestroyRNNCall);
  }

  void run(prnnRNNCall_t call, const std::vector<float>& w, const float* x, float* y, float* state) {
    prnnRNNCallInfo_t info;
    check(prnnGetRNNCallInfo(call, &info));
    workspace_.resize(std::max(workspace_.size(), info.workspaceSize));
    prnnRNNForwardArgs_t args = {};
    args.x = x;
    args.w = w.data();
    args.y = y;
    args.hx = args.hy = state;
    args.workspace = workspace_.data();
    args.workspaceSize = workspace_.size();
    check(prnnRunRNNForward(call, &args));
  }

 private:
  void check(prnnStatus_t status) {
    if (status != PRNN_STATUS_SUCCESS) throw std::runtime_error(prnnGetLastErrorMessage(handle_.get()));
  }
  template <typename T>
  static Owned<T> make(prnnStatus_t (*create)(T*), prnnStatus_t (*destroy)(T)) {
    T made = nullptr;
    if (create(&made) != PRNN_STATUS_SUCCESS) throw std::runtime_error("an object could not be made");
    return Owned<T>(made, destroy);
  }

  Owned<prnnHandle_t> handle_;
  Owned<prnnRNNDescriptor_t> rnn_;
  std::vector<char> workspace_;
};

std::vector<float> waves(size_t count, float scale) {
  std::vector<float> made(count);
  for (size_t i = 0; i < count; i++) made[i] = scale * std::sin(static_cast<float>(i));
  return made;
}

}  // namespace

int main() {
  Gru gru;
  const auto whole = gru.prepare(kSteps), step = gru.prepare(1);
  prnnRNNCallInfo_t info;
  if (prnnGetRNNCallInfo(whole.get(), &info) != PRNN_STATUS_SUCCESS) return 1;
  const std::vector<float> w = waves(info.weightsSize / sizeof(float), 0.4f), x = waves(kSteps * kBatch * kInput, 1);
  std::vector<float> expected(kSteps * kBatch * kHidden), found(expected.size());
  std::vector<float> state(kBatch * kHidden, 0), last(state);
  gru.run(whole.get(), w, x.data(), expected.data(), last.data());
  for (int t = 0; t < kSteps; t++) {
    gru.run(step.get(), w, x.data() + t * kBatch * kInput, found.data() + t * kBatch * kHidden, state.data());
  }
  for (size_t i = 0; i < found.size(); i++) {
    if (std::fabs(found[i] - expected[i]) > 1e-6f) return 1;
  }
  if (state != last) {
    for (size_t i = 0; i < state.size(); i++) {
      if (std::fabs(state[i] - last[i]) > 1e-6f) return 1;
    }
  }
  std::puts("ok");
}
