// The functions that stand in for cuDNN's: each reads what its call is about and either serves it with prnn or hands it
// on, unchanged, to cuDNN.
#include <algorithm>
#include <cstdio>
#include <optional>

#include "cudnn_standin/device.h"
#include "cudnn_standin/log.h"
#include "cudnn_standin/real_cudnn.h"
#include "cudnn_standin/taken_call.h"

namespace prnn_cudnn {
namespace {

// Calls that come while the thread is in one of these functions are cuDNN's own or libprnn's, and are handed on.
thread_local bool is_inside = false;

class Inside {
 public:
  Inside() { is_inside = true; }
  ~Inside() { is_inside = false; }
};

constexpr char kBadArguments[] = "arguments that cuDNN is left to refuse";

// A call's layer and sizes, and why it is forwarded, if it is.
class Request {
 public:
  Request(const RealCudnn& real, void* handle, void* rnn, void* x_desc, bool is_training) : cudnn_(real.functions) {
    std::vector<int> lengths;
    if (cudnn_.get_stream(handle, &stream_) != kSuccess ||
        !read_configuration(cudnn_, handle, rnn, x_desc, &configuration, &lengths, x_padding)) {
      return;
    }
    is_readable = true;
    reason = real.forwards_all;
    if (reason.empty()) reason = why_forwarded(configuration);
    if (!reason.empty()) return;
    sequences.emplace(configuration, std::move(lengths));
    reason = why_forwarded(configuration, *sequences);
    if (!reason.empty()) return;
    try {
      const Prnn& prnn = prnn_library();
      const int device = device::current();
      lease_.emplace(prnn, device, stream_);
      const Use use = is_training                     ? Use::kTraining
                      : device::is_capturing(stream_) ? Use::kInferenceInGraph
                                                      : Use::kInference;
      const Decision decision =
          decide(cudnn_, prnn, lease_->get(), device, handle, rnn, configuration, sequences->vary(), use);
      reason = decision.reason;
      if (!reason.empty()) return;
      weights = decision.weights;
      call.emplace(Context{cudnn_, prnn, handle, lease_->get(), stream_, configuration, *sequences, *weights},
                   is_training);
    } catch (const Failure& failure) {
      reason = failure.what();
    }
  }

  void* stream() const { return stream_; }

  // Whether the descriptor is that of states h or c, of this width, or there are none.
  bool describes_states(void* descriptor, int width, bool are_there) const {
    const Configuration& c = configuration;
    if (!are_there) return true;
    int type = 0, rank = 0, dims[8] = {}, strides[8] = {};
    if (descriptor == nullptr || cudnn_.get_tensor(descriptor, 8, &type, &rank, dims, strides) != kSuccess)
      return false;
    const int expected[] = {c.layers * c.directions(), c.batch, width};
    const int packed[] = {c.batch * width, width, 1};
    bool fits = type == c.type && rank >= 3 && rank <= 8;
    for (int i = 0; fits && i < rank; ++i) {
      // PyTorch adds dimensions of 1. Nothing is reached through the stride of such a one.
      fits = dims[i] == (i < 3 ? expected[i] : 1) && (dims[i] == 1 || strides[i] == packed[i]);
    }
    return fits;
  }

  // Whether the descriptor is that of the output, for the same sequences as the input. `padding`: 16 bytes.
  bool describes_output(void* descriptor, unsigned char* padding) const {
    const Configuration& c = configuration;
    int type = 0, layout = 0, steps = 0, batch = 0, width = 0;
    std::vector<int> lengths(c.batch);
    if (descriptor == nullptr || cudnn_.get_data(descriptor, &type, &layout, &steps, &batch, &width, c.batch,
                                                 lengths.data(), padding) != kSuccess) {
      return false;
    }
    return type == c.type && layout == c.layout && steps == c.steps && batch == c.batch && width == c.output() &&
           lengths == sequences->lengths();
  }

  // A program that did not ask the stand-in for the sizes gives less: then cuDNN serves all its calls.
  template <class Args>
  void require_spaces(const Args& args, bool with_reserve) {
    const Sizes sizes = call->sizes();
    const bool fit = args.workspace != nullptr && args.workspaceSize >= sizes.workspace &&
                     (!with_reserve || (args.reserve != nullptr && args.reserveSize >= sizes.reserve));
    if (!fit) reason = "a workspace or reserve space that is too small for prnn";
  }

  bool is_readable = false;
  std::string reason;
  unsigned char x_padding[16] = {};
  Configuration configuration{};
  std::optional<Sequences> sequences;
  const WeightLayout* weights = nullptr;
  std::optional<TakenCall> call;

 private:
  const Cudnn& cudnn_;
  void* stream_ = nullptr;
  std::optional<HandleLease> lease_;
};

Status report(const char* function, const char* message, Status status) {
  std::fprintf(stderr, "prnn: %s: %s\n", function, message);
  return status;
}

// Runs a call: take(request) after check(request) has set no reason against it, else forward().
template <class Forward, class Check, class Take>
Status serve(const char* name, Call kind, void* handle, void* rnn, void* x_desc, const Forward& forward,
             const Check& check, const Take& take) noexcept {
  const RealCudnn& real = real_cudnn();
  if (is_inside || !real.has_functions) return forward();
  if (!real.forwards_all.empty() && !LoggedCall::is_wanted()) return forward();
  const Inside inside;
  try {
    Request request(real, handle, rnn, x_desc, kind != Call::kForwardInference);
    if (!request.is_readable) return forward();
    if (request.reason.empty()) check(request);
    const LoggedCall logged(request.configuration, request.reason, kind, request.stream());
    if (!request.reason.empty()) return forward();
    take(request);
    return kSuccess;
  } catch (const Failure& failure) {
    return report(name, failure.what(), failure.status());
  } catch (const std::exception& error) {
    return report(name, error.what(), kInternalError);
  }
}

}  // namespace
}  // namespace prnn_cudnn

using namespace prnn_cudnn;

#define PRNN_CUDNN_API extern "C" __attribute__((visibility("default")))

PRNN_CUDNN_API Status cudnnGetRNNTempSpaceSizes(void* handle, void* rnn, int forward_mode, void* x_desc,
                                                size_t* workspace, size_t* reserve) {
  const RealCudnn& real = real_cudnn();
  if (real.functions.get_temp_space_sizes == nullptr) return kNotInitialized;
  const Status status = real.functions.get_temp_space_sizes(handle, rnn, forward_mode, x_desc, workspace, reserve);
  if (status != kSuccess || is_inside || !real.has_functions || !real.forwards_all.empty()) return status;
  const Inside inside;
  try {
    Request request(real, handle, rnn, x_desc, forward_mode == kTraining);
    if (!request.is_readable || !request.reason.empty()) return status;
    const Sizes sizes = request.call->sizes_for_any_lengths();
    if (workspace != nullptr) *workspace = std::max(*workspace, sizes.workspace);
    if (reserve != nullptr && forward_mode == kTraining) *reserve = std::max(*reserve, sizes.reserve);
    return status;
  } catch (const std::exception& error) {
    return report("cudnnGetRNNTempSpaceSizes", error.what(), kInternalError);
  }
}

PRNN_CUDNN_API Status cudnnRNNForward(void* handle, void* rnn, int forward_mode, const int32_t* device_lengths,
                                      void* x_desc, const void* x, void* y_desc, void* y, void* h_desc, const void* hx,
                                      void* hy, void* c_desc, const void* cx, void* cy, size_t weights_size,
                                      const void* weights, size_t workspace_size, void* workspace, size_t reserve_size,
                                      void* reserve) {
  const bool is_training = forward_mode == kTraining;
  unsigned char padding[16] = {};
  prnnRNNForwardArgs_t args{
      x,       hx,           nullptr, weights, y,       hy,     nullptr, workspace, workspace_size,
      reserve, reserve_size, nullptr, nullptr, nullptr, nullptr};
  return serve(
      "cudnnRNNForward", is_training ? Call::kForwardTraining : Call::kForwardInference, handle, rnn, x_desc,
      [&] {
        const auto forward = real_cudnn().functions.forward;
        if (forward == nullptr) return kNotInitialized;
        return forward(handle, rnn, forward_mode, device_lengths, x_desc, x, y_desc, y, h_desc, hx, hy, c_desc, cx, cy,
                       weights_size, weights, workspace_size, workspace, reserve_size, reserve);
      },
      [&](Request& request) {
        const Configuration& c = request.configuration;
        if (c.mode == PRNN_LSTM) args.cx = cx, args.cy = cy;
        const bool fit = (is_training || forward_mode == kInference) && x != nullptr && y != nullptr &&
                         weights != nullptr && weights_size >= request.weights->space_size &&
                         request.describes_output(y_desc, padding) &&
                         request.describes_states(h_desc, c.projection, hx != nullptr || hy != nullptr) &&
                         request.describes_states(c_desc, c.hidden, args.cx != nullptr || args.cy != nullptr);
        if (!fit) request.reason = kBadArguments;
        if (fit) request.require_spaces(args, is_training);
      },
      [&](Request& request) { request.call->forward(args, padding); });
}

PRNN_CUDNN_API Status cudnnRNNBackwardData_v8(void* handle, void* rnn, const int32_t* device_lengths, void* y_desc,
                                              const void* y, const void* dy, void* x_desc, void* dx, void* h_desc,
                                              const void* hx, const void* dhy, void* dhx, void* c_desc, const void* cx,
                                              const void* dcy, void* dcx, size_t weights_size, const void* weights,
                                              size_t workspace_size, void* workspace, size_t reserve_size,
                                              void* reserve) {
  prnnRNNBackwardDataArgs_t args{y,   dy,      dhy,       nullptr,        weights, hx,           nullptr, dx,
                                 dhx, nullptr, workspace, workspace_size, reserve, reserve_size, nullptr, nullptr};
  return serve(
      "cudnnRNNBackwardData_v8", Call::kBackwardData, handle, rnn, x_desc,
      [&] {
        const auto backward = real_cudnn().functions.backward_data;
        if (backward == nullptr) return kNotInitialized;
        return backward(handle, rnn, device_lengths, y_desc, y, dy, x_desc, dx, h_desc, hx, dhy, dhx, c_desc, cx, dcy,
                        dcx, weights_size, weights, workspace_size, workspace, reserve_size, reserve);
      },
      [&](Request& request) {
        const Configuration& c = request.configuration;
        if (c.mode == PRNN_LSTM) args.cx = cx, args.dcy = dcy, args.dcx = dcx;
        unsigned char padding[16];
        const bool has_h = hx != nullptr || dhy != nullptr || dhx != nullptr;
        const bool has_c = args.cx != nullptr || args.dcy != nullptr || args.dcx != nullptr;
        const bool fit = y != nullptr && dy != nullptr && dx != nullptr && weights != nullptr &&
                         weights_size >= request.weights->space_size && request.describes_output(y_desc, padding) &&
                         request.describes_states(h_desc, c.projection, has_h) &&
                         request.describes_states(c_desc, c.hidden, has_c);
        if (!fit) request.reason = kBadArguments;
        if (fit) request.require_spaces(args, true);
      },
      [&](Request& request) { request.call->backward_data(args, request.x_padding); });
}

PRNN_CUDNN_API Status cudnnRNNBackwardWeights_v8(void* handle, void* rnn, int add, const int32_t* device_lengths,
                                                 void* x_desc, const void* x, void* h_desc, const void* hx,
                                                 void* y_desc, const void* y, size_t weights_size, void* dweights,
                                                 size_t workspace_size, void* workspace, size_t reserve_size,
                                                 void* reserve) {
  const prnnRNNBackwardWeightsArgs_t args{x,       hx,           y,       dweights, workspace, workspace_size,
                                          reserve, reserve_size, nullptr, nullptr};
  return serve(
      "cudnnRNNBackwardWeights_v8", Call::kBackwardWeights, handle, rnn, x_desc,
      [&] {
        const auto backward = real_cudnn().functions.backward_weights;
        if (backward == nullptr) return kNotInitialized;
        return backward(handle, rnn, add, device_lengths, x_desc, x, h_desc, hx, y_desc, y, weights_size, dweights,
                        workspace_size, workspace, reserve_size, reserve);
      },
      [&](Request& request) {
        unsigned char padding[16];
        const bool fit = (add == kAdd || add == kSet) && x != nullptr && y != nullptr && dweights != nullptr &&
                         weights_size >= request.weights->space_size && request.describes_output(y_desc, padding) &&
                         request.describes_states(h_desc, request.configuration.projection, hx != nullptr);
        if (!fit) request.reason = kBadArguments;
        if (fit) request.require_spaces(args, true);
      },
      [&](Request& request) { request.call->backward_weights(add == kAdd, args); });
}
