// Shared by all handlers: a handle of the device, and errors that go to XLA.
//
// XLA's FFI (xla/ffi/api/ffi.h, headers of jaxlib) calls a handler with typed buffers, attributes and, on a GPU, the
// stream. An array that is absent, NULL to the C API, is a buffer without elements.
#pragma once

#include <exception>
#include <string>

#include "prnn_losses.h"
#include "prnn_transfer.h"
#include "prnn_types.h"
#include "xla/ffi/api/ffi.h"

namespace prnn_jax {

namespace ffi = xla::ffi;

using Array = ffi::AnyBuffer;
using Result = ffi::Result<ffi::AnyBuffer>;
using Attributes = ffi::Dictionary;  // of a call, by their names
using Integers = ffi::Span<const int64_t>;

// A call of the C API that failed, on its way to XLA.
class Failure : public std::exception {
 public:
  Failure(prnnStatus_t status, std::string message) : status_(status), message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }
  ffi::Error error() const;

 private:
  prnnStatus_t status_;
  std::string message_;
};

// Throws unless the call was a success.
void check(prnnStatus_t status, prnnHandle_t handle = nullptr);

// The calling thread's handle: of the CPU, or of the current GPU and set to the stream.
prnnHandle_t cpu_handle();
prnnHandle_t cuda_handle(prnnStream_t stream);

inline void* data(const Array& array) { return array.element_count() == 0 ? nullptr : array.untyped_data(); }
inline void* data(Result result) { return data(*result); }

struct Space {
  void* data;
  size_t bytes;
};

inline Space space(Result result) { return {data(result), result->size_bytes()}; }

// Dimension `index` from the end, as the C API's int.
int dimension_from_end(const Array& array, int index);

prnnDataType_t type_of(const Array& array);

template <class T>
T attribute(const Attributes& given, const char* name) {
  const ffi::ErrorOr<T> found = given.get<T>(name);
  if (found.has_error()) throw Failure(PRNN_STATUS_BAD_PARAM, found.error().message());
  return *found;
}

// Sets the durations of a token-and-duration transducer, in the options of a loss or in a model.
template <class Options>
void set_durations(const Attributes& given, Options* options) {
  const Integers durations = attribute<Integers>(given, "durations");
  if (durations.size() > PRNN_MAX_DURATIONS) throw Failure(PRNN_STATUS_BAD_PARAM, "there are too many durations");
  options->durationCount = static_cast<int64_t>(durations.size());
  for (size_t i = 0; i < durations.size(); ++i) options->durations[i] = static_cast<int>(durations.begin()[i]);
}

// Runs a handler's work; what it throws becomes XLA's error.
template <class Work>
ffi::Error guarded(Work work) noexcept {
  try {
    work();
    return ffi::Error::Success();
  } catch (const Failure& failure) {
    return failure.error();
  } catch (const std::exception& error) {
    return ffi::Error::Internal(error.what());
  }
}

// The functions of a handler for both platforms. run: what to do with a handle and what XLA gives: attributes,
// arrays and results, in this order; XLA's FFI takes their number and kinds from its parameters.
template <auto run>
struct Handler;

template <class... Given, void (*run)(prnnHandle_t, Given...)>
struct Handler<run> {
  static ffi::Error cpu(Given... given) {
    return guarded([&] { run(cpu_handle(), given...); });
  }
  static ffi::Error cuda(prnnStream_t stream, Given... given) {
    return guarded([&] { run(cuda_handle(stream), given...); });
  }
};

}  // namespace prnn_jax

template <>
struct xla::ffi::CtxBinding<prnnStream_t> {
  using Ctx = PlatformStream<prnnStream_t>;
};

// Defines the symbols NAMECpu and NAMECuda, which jax registers.
#define PRNN_JAX_HANDLER(NAME, RUN)                                      \
  extern "C" PRNN_API XLA_FFI_Error* NAME##Cpu(XLA_FFI_CallFrame*);      \
  extern "C" PRNN_API XLA_FFI_Error* NAME##Cuda(XLA_FFI_CallFrame*);     \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(NAME##Cpu, prnn_jax::Handler<RUN>::cpu); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(NAME##Cuda, prnn_jax::Handler<RUN>::cuda)
