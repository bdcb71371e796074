// Binds prnn_losses.h.
#include "prnn_losses.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "errors.h"
#include "handle.h"

namespace py = pybind11;

namespace prnn_python {
namespace {

using Address = uintptr_t;  // of an array; 0 is NULL

// A field of an options struct as Python sees it: an enumeration as an integer, a flag as a bool.
template <class Options, class Value>
struct Field {
  static constexpr const char* kKind = std::is_floating_point_v<Value> ? "float" : "int";
  const char* name;
  Value Options::* at;
};
template <class Options>
struct Flag {
  static constexpr const char* kKind = "bool";
  const char* name;
  int Options::* at;
};
// A list of integers in the fields `durations` and `durationCount`; too many are refused by the library.
struct Durations {
  static constexpr const char* kKind = "int[]";
  const char* name;
};
template <class Options, class Value>
Field(const char*, Value Options::*) -> Field<Options, Value>;
template <class Options>
Flag(const char*, int Options::*) -> Flag<Options>;

// The fields of an options struct, a std::tuple. Python has the values in a tuple of this order: to make an object, or
// to set one field after the other, would take a small loss a microsecond and more.
template <class Options>
constexpr auto kFields = nullptr;

template <>
constexpr auto kFields<prnnCTCLossOptions_t> = [] {
  using Options = prnnCTCLossOptions_t;
  return std::tuple(Field{"dtype", &Options::dataType}, Field{"target_layout", &Options::targetLayout},
                    Field{"batch", &Options::batch}, Field{"max_frames", &Options::maxFrames},
                    Field{"max_targets", &Options::maxTargets}, Field{"target_elements", &Options::targetElements},
                    Field{"classes", &Options::classes}, Field{"time_stride", &Options::timeStride},
                    Field{"batch_stride", &Options::batchStride}, Field{"input", &Options::input},
                    Field{"blank", &Options::blank}, Flag{"zero_infinity", &Options::zeroInfinity});
}();

template <>
constexpr auto kFields<prnnRNNTLossOptions_t> = [] {
  using Options = prnnRNNTLossOptions_t;
  return std::tuple(Field{"dtype", &Options::dataType}, Field{"layout", &Options::layout},
                    Field{"target_layout", &Options::targetLayout}, Field{"batch", &Options::batch},
                    Field{"max_frames", &Options::maxFrames}, Field{"max_targets", &Options::maxTargets},
                    Field{"target_elements", &Options::targetElements}, Field{"rows", &Options::rows},
                    Field{"prune_range", &Options::pruneRange}, Field{"classes", &Options::classes},
                    Field{"input", &Options::input}, Field{"rnnt_type", &Options::type},
                    Field{"blank", &Options::blank}, Flag{"blank_targets", &Options::blankTargets},
                    Flag{"zero_infinity", &Options::zeroInfinity}, Field{"fastemit_lambda", &Options::fastEmitLambda},
                    Field{"clamp", &Options::clamp}, Field{"delay_penalty", &Options::delayPenalty});
}();

template <>
constexpr auto kFields<prnnJointRNNTLossOptions_t> = [] {
  using Options = prnnJointRNNTLossOptions_t;
  return std::tuple(Field{"dtype", &Options::dataType}, Field{"batch", &Options::batch},
                    Field{"max_frames", &Options::maxFrames}, Field{"max_targets", &Options::maxTargets},
                    Field{"rows", &Options::rows}, Field{"prune_range", &Options::pruneRange},
                    Field{"joiner_size", &Options::joinerSize}, Field{"classes", &Options::classes},
                    Flag{"allow_tf32", &Options::allowTf32}, Field{"activation", &Options::activation},
                    Field{"dropout", &Options::dropout}, Field{"chunk_cells", &Options::chunkCells},
                    Field{"rnnt_type", &Options::type}, Field{"blank", &Options::blank},
                    Flag{"zero_infinity", &Options::zeroInfinity}, Field{"fastemit_lambda", &Options::fastEmitLambda},
                    Field{"clamp", &Options::clamp}, Field{"delay_penalty", &Options::delayPenalty});
}();

template <>
constexpr auto kFields<prnnJointTDTLossOptions_t> = [] {
  using Options = prnnJointTDTLossOptions_t;
  return std::tuple(
      Field{"dtype", &Options::dataType}, Field{"batch", &Options::batch}, Field{"max_frames", &Options::maxFrames},
      Field{"max_targets", &Options::maxTargets}, Field{"rows", &Options::rows},
      Field{"joiner_size", &Options::joinerSize}, Field{"classes", &Options::classes}, Durations{"durations"},
      Flag{"allow_tf32", &Options::allowTf32}, Field{"activation", &Options::activation},
      Field{"dropout", &Options::dropout}, Field{"chunk_cells", &Options::chunkCells}, Field{"blank", &Options::blank},
      Flag{"zero_infinity", &Options::zeroInfinity}, Field{"sigma", &Options::sigma}, Field{"omega", &Options::omega},
      Field{"fastemit_lambda", &Options::fastEmitLambda}, Field{"clamp", &Options::clamp});
}();

template <>
constexpr auto kFields<prnnMutualInformationOptions_t> = [] {
  using Options = prnnMutualInformationOptions_t;
  return std::tuple(Field{"dtype", &Options::dataType}, Field{"type", &Options::type}, Field{"batch", &Options::batch},
                    Field{"symbols", &Options::symbols}, Field{"frames", &Options::frames});
}();

template <>
constexpr auto kFields<prnnDurationRNNTLossOptions_t> = [] {
  using Options = prnnDurationRNNTLossOptions_t;
  return std::tuple(Field{"dtype", &Options::dataType}, Field{"batch", &Options::batch},
                    Field{"max_frames", &Options::maxFrames}, Field{"max_targets", &Options::maxTargets},
                    Field{"classes", &Options::classes}, Field{"token_stride", &Options::tokenStride},
                    Field{"duration_stride", &Options::durationStride}, Durations{"durations"},
                    Field{"type", &Options::type}, Field{"input", &Options::input}, Field{"blank", &Options::blank},
                    Field{"sigma", &Options::sigma}, Field{"omega", &Options::omega},
                    Field{"fastemit_lambda", &Options::fastEmitLambda}, Field{"clamp", &Options::clamp},
                    Flag{"zero_infinity", &Options::zeroInfinity});
}();

template <class Options>
constexpr bool kHasFields = !std::is_same_v<decltype(kFields<Options>), const std::nullptr_t>;

// Whether `value` is one that `to` holds; sets a Python error where it is no number.
template <class Value>
bool read(PyObject* value, Value& to) {
  if constexpr (std::is_floating_point_v<Value>) {
    to = static_cast<Value>(PyFloat_AsDouble(value));
    return PyErr_Occurred() == nullptr;
  } else {
    const long long number = PyLong_AsLongLong(value);
    to = static_cast<Value>(number);
    return static_cast<long long>(to) == number && PyErr_Occurred() == nullptr;
  }
}
template <class Options, class Value>
bool read_field(PyObject* value, const Field<Options, Value>& field, Options& options) {
  return read(value, options.*field.at);
}
template <class Options>
bool read_field(PyObject* value, const Flag<Options>& flag, Options& options) {
  return read(value, options.*flag.at);
}
template <class Options>
bool read_field(PyObject* value, const Durations&, Options& options) {
  if (!PyList_Check(value)) return false;
  options.durationCount = PyList_GET_SIZE(value);
  for (Py_ssize_t i = 0; i < std::min<Py_ssize_t>(options.durationCount, PRNN_MAX_DURATIONS); ++i) {
    if (!read(PyList_GET_ITEM(value, i), options.durations[i])) return false;
  }
  return true;
}

template <class Options>
bool read_options(PyObject* values, Options& options) {
  const auto read_all = [&](const auto&... fields) {
    if (!PyTuple_Check(values) || PyTuple_GET_SIZE(values) != Py_ssize_t{sizeof...(fields)}) return false;
    Py_ssize_t i = 0;
    return (read_field(PyTuple_GET_ITEM(values, i++), fields, options) && ...);
  };
  options = {};
  const bool is_read = std::apply(read_all, kFields<Options>);
  PyErr_Clear();
  return is_read;
}

// Their names and kinds.
template <class Options>
py::tuple describe_fields() {
  py::list kinds;
  std::apply([&](const auto&... fields) { (kinds.append(py::make_tuple(fields.name, fields.kKind)), ...); },
             kFields<Options>);
  return py::tuple(kinds);
}

}  // namespace
}  // namespace prnn_python

// Functions take options as Python has them.
template <class Options>
class pybind11::detail::type_caster<Options, std::enable_if_t<prnn_python::kHasFields<Options>>> {
 public:
  PYBIND11_TYPE_CASTER(Options, const_name("tuple"));
  bool load(handle source, bool) { return prnn_python::read_options(source.ptr(), value); }
};

namespace prnn_python {
namespace {

template <class Options, prnnStatus_t (*query)(prnnHandle_t, const Options*, size_t*)>
size_t size(const Handle& handle, const Options& options) {
  size_t bytes = 0;
  check(query(handle.get(), &options, &bytes), handle.get());
  return bytes;
}

// The sizes of a loss's workspace and reserve space.
template <class Options, prnnStatus_t (*workspace)(prnnHandle_t, const Options*, size_t*),
          prnnStatus_t (*reserve)(prnnHandle_t, const Options*, size_t*)>
std::pair<size_t, size_t> sizes(const Handle& handle, const Options& options) {
  return {size<Options, workspace>(handle, options), size<Options, reserve>(handle, options)};
}

// A loss's options with the reduction of its costs, unless `reduces` is false. The loss is written to `loss`.
template <class Options>
class WithReduction {
 public:
  WithReduction(const Options& options, bool reduces, double scale, Address lengths, Address loss = 0)
      : reduction_{scale, pointer<int>(lengths), pointer(loss)}, options_(options) {
    if (reduces) options_.reduction = &reduction_;
  }
  WithReduction(const WithReduction&) = delete;
  const Options* get() const { return &options_; }

 private:
  prnnLossReduction_t reduction_;
  Options options_;
};

// Converts Python's int64 to the library's int32. Values that int does not hold stay out of any valid range.
void to_int32(Address from, int64_t count, Address to) {
  const auto* const values = pointer<int64_t>(from);
  int* const narrowed = pointer<int>(to);
  for (int64_t i = 0; i < count; ++i) {
    narrowed[i] = static_cast<int>(std::clamp<int64_t>(values[i], INT_MIN, INT_MAX));
  }
}

// An array of integers on the host as the library takes it: of int64 a copy.
class Integers {
 public:
  Integers(Address at, int64_t count, bool is_int64) : at_(at) {
    if (!is_int64) return;
    narrowed_.resize(static_cast<size_t>(count));
    at_ = reinterpret_cast<Address>(narrowed_.data());
    to_int32(at, count, at_);
  }
  Integers(const Integers&) = delete;
  Address address() const { return at_; }
  const int* get() const { return pointer<int>(at_); }

 private:
  Address at_;
  std::vector<int> narrowed_;
};

// Costs alone, or their reduction, of data on the host. forward(handle, options, symbols, frames, lengths, costs,
// workspace, workspace_size) is the loss's call. divided_by: one of the two lengths, or 0.
template <class Options, prnnStatus_t (*query)(prnnHandle_t, const Options*, size_t*), class Forward>
void define_costs_cpu(py::module_& module, const char* name, Forward forward) {
  module.def(
      name,
      [forward](const Handle& handle, const Options& options, Address activations, Address targets,
                Address frame_lengths, Address target_lengths, bool targets_int64, bool frames_int64,
                bool lengths_int64, Address result, bool reduces, double scale, Address divided_by) {
        const Integers symbols(targets, options.targetElements, targets_int64);
        const Integers frames(frame_lengths, options.batch, frames_int64);
        const Integers lengths(target_lengths, options.batch, lengths_int64);
        const Address divisors = divided_by == 0               ? 0
                                 : divided_by == frame_lengths ? frames.address()
                                                               : lengths.address();
        const size_t workspace = size<Options, query>(handle, options);
        const size_t costs = reduces ? sizeof(double) * static_cast<size_t>(options.batch) : 0;
        const std::unique_ptr<char[]> memory(new char[workspace + costs]);  // not cleared, as make_unique's would be
        const WithReduction reduced(options, reduces, scale, divisors, result);
        run(handle, [&](prnnHandle_t h) {
          return forward(h, reduced.get(), pointer(activations), symbols.get(), frames.get(), lengths.get(),
                         reduces ? memory.get() + workspace : pointer(result), memory.get(), workspace);
        });
      },
      "Costs alone, or their reduction, of data on the host: targets and lengths may be int64.");
}

void bind_ctc(py::module_& module) {
  using Options = prnnCTCLossOptions_t;
  module.attr("CTC_LOSS_FIELDS") = describe_fields<Options>();
  module.def("ctc_loss_sizes", &sizes<Options, prnnGetCTCLossWorkspaceSize, prnnGetCTCLossReserveSize>,
             "Bytes of workspace and of reserve space.");
  module.def("ctc_align_workspace_size", &size<Options, prnnGetCTCAlignWorkspaceSize>, "Bytes.");
  module.def("ctc_loss_forward",
             [](const Handle& handle, const Options& options, Address activations, Address targets,
                Address frame_lengths, Address target_lengths, Address costs, Address workspace, size_t workspace_size,
                Address reserve, size_t reserve_size, double scale, Address divided_by, Address loss) {
               const WithReduction reduced(options, loss != 0, scale, divided_by, loss);
               run(handle, [&](prnnHandle_t h) {
                 return prnnCTCLossForward(h, reduced.get(), pointer(activations), pointer<int>(targets),
                                           pointer<int>(frame_lengths), pointer<int>(target_lengths), pointer(costs),
                                           pointer(workspace), workspace_size, pointer(reserve), reserve_size);
               });
             });
  define_costs_cpu<Options, prnnGetCTCLossWorkspaceSize>(
      module, "ctc_costs_cpu",
      [](prnnHandle_t handle, const Options* options, const void* activations, const int* targets, const int* frames,
         const int* lengths, void* costs, void* workspace, size_t size) {
        return prnnCTCLossForward(handle, options, activations, targets, frames, lengths, costs, workspace, size,
                                  nullptr, 0);
      });
  module.def(
      "ctc_loss_backward", [](const Handle& handle, const Options& options, Address activations, Address targets,
                              Address frame_lengths, Address target_lengths, Address gradients, Address cost_gradients,
                              Address reserve, size_t reserve_size, double scale, Address divided_by, bool reduces) {
        const WithReduction reduced(options, reduces, scale, divided_by);
        run(handle, [&](prnnHandle_t h) {
          return prnnCTCLossBackward(h, reduced.get(), pointer(activations), pointer<int>(targets),
                                     pointer<int>(frame_lengths), pointer<int>(target_lengths), pointer(cost_gradients),
                                     pointer(gradients), pointer(reserve), reserve_size);
        });
      });
  module.def("ctc_align", [](const Handle& handle, const Options& options, Address activations, Address targets,
                             Address frame_lengths, Address target_lengths, Address scores, Address begins,
                             Address ends, Address workspace, size_t workspace_size) {
    run(handle, [&](prnnHandle_t h) {
      return prnnCTCAlign(h, &options, pointer(activations), pointer<int>(targets), pointer<int>(frame_lengths),
                          pointer<int>(target_lengths), pointer(scores), pointer<int>(begins), pointer<int>(ends),
                          pointer(workspace), workspace_size);
    });
  });
}

void bind_rnnt(py::module_& module) {
  using Options = prnnRNNTLossOptions_t;
  module.attr("RNNT_LOSS_FIELDS") = describe_fields<Options>();
  module.def("rnnt_loss_sizes", &sizes<Options, prnnGetRNNTLossWorkspaceSize, prnnGetRNNTLossReserveSize>,
             "Bytes of workspace and of reserve space.");
  module.def("rnnt_align_workspace_size", &size<Options, prnnGetRNNTAlignWorkspaceSize>, "Bytes.");
  module.def("rnnt_loss_forward", [](const Handle& handle, const Options& options, Address activations, Address targets,
                                     Address frame_lengths, Address target_lengths, Address range_begins, Address costs,
                                     Address workspace, size_t workspace_size, Address reserve, size_t reserve_size,
                                     double scale, Address divided_by, Address loss) {
    const WithReduction reduced(options, loss != 0, scale, divided_by, loss);
    run(handle, [&](prnnHandle_t h) {
      return prnnRNNTLossForward(h, reduced.get(), pointer(activations), pointer<int>(targets),
                                 pointer<int>(frame_lengths), pointer<int>(target_lengths), pointer<int>(range_begins),
                                 pointer(costs), pointer(workspace), workspace_size, pointer(reserve), reserve_size);
    });
  });
  module.def("rnnt_loss_backward", [](const Handle& handle, const Options& options, Address activations,
                                      Address targets, Address frame_lengths, Address target_lengths,
                                      Address range_begins, Address gradients, Address cost_gradients, Address reserve,
                                      size_t reserve_size, double scale, Address divided_by, bool reduces) {
    const WithReduction reduced(options, reduces, scale, divided_by);
    run(handle, [&](prnnHandle_t h) {
      return prnnRNNTLossBackward(h, reduced.get(), pointer(activations), pointer<int>(targets),
                                  pointer<int>(frame_lengths), pointer<int>(target_lengths), pointer<int>(range_begins),
                                  pointer(cost_gradients), pointer(gradients), pointer(reserve), reserve_size);
    });
  });
  define_costs_cpu<Options, prnnGetRNNTLossWorkspaceSize>(
      module, "rnnt_costs_cpu",
      [](prnnHandle_t handle, const Options* options, const void* activations, const int* targets, const int* frames,
         const int* lengths, void* costs, void* workspace, size_t size) {
        return prnnRNNTLossForward(handle, options, activations, targets, frames, lengths, nullptr, costs, workspace,
                                   size, nullptr, 0);
      });
  module.def("rnnt_align", [](const Handle& handle, const Options& options, Address activations, Address targets,
                              Address frame_lengths, Address target_lengths, Address range_begins, Address scores,
                              Address frames, Address workspace, size_t workspace_size) {
    run(handle, [&](prnnHandle_t h) {
      return prnnRNNTAlign(h, &options, pointer(activations), pointer<int>(targets), pointer<int>(frame_lengths),
                           pointer<int>(target_lengths), pointer<int>(range_begins), pointer(scores),
                           pointer<int>(frames), pointer(workspace), workspace_size);
    });
  });
}

void bind_joint_rnnt(py::module_& module) {
  using Options = prnnJointRNNTLossOptions_t;
  using Seed = unsigned long long;
  module.attr("JOINT_RNNT_LOSS_FIELDS") = describe_fields<Options>();
  module.def("joint_rnnt_loss_workspace_size", &size<Options, prnnGetJointRNNTLossWorkspaceSize>, "Bytes.");
  module.def("joint_rnnt_loss_reserve_size", &size<Options, prnnGetJointRNNTLossReserveSize>, "Bytes.");
  module.def("joint_rnnt_loss_forward", [](const Handle& handle, const Options& options, Address encoder,
                                           Address predictor, Address weight, Address bias, Address targets,
                                           Address frame_lengths, Address target_lengths, Address range_begins,
                                           Address dropout_seed, Address costs, Address workspace,
                                           size_t workspace_size, Address reserve, size_t reserve_size) {
    run(handle, [&](prnnHandle_t h) {
      return prnnJointRNNTLossForward(h, &options, pointer(encoder), pointer(predictor), pointer(weight), pointer(bias),
                                      pointer<int>(targets), pointer<int>(frame_lengths), pointer<int>(target_lengths),
                                      pointer<int>(range_begins), pointer<Seed>(dropout_seed), pointer(costs),
                                      pointer(workspace), workspace_size, pointer(reserve), reserve_size);
    });
  });
  module.def(
      "joint_rnnt_loss_backward",
      [](const Handle& handle, const Options& options, Address encoder, Address predictor, Address weight, Address bias,
         Address targets, Address frame_lengths, Address target_lengths, Address range_begins, Address dropout_seed,
         Address cost_gradients, Address encoder_gradients, Address predictor_gradients, Address weight_gradients,
         Address bias_gradients, Address workspace, size_t workspace_size, Address reserve, size_t reserve_size) {
        run(handle, [&](prnnHandle_t h) {
          return prnnJointRNNTLossBackward(
              h, &options, pointer(encoder), pointer(predictor), pointer(weight), pointer(bias), pointer<int>(targets),
              pointer<int>(frame_lengths), pointer<int>(target_lengths), pointer<int>(range_begins),
              pointer<Seed>(dropout_seed), pointer(cost_gradients), pointer(encoder_gradients),
              pointer(predictor_gradients), pointer(weight_gradients), pointer(bias_gradients), pointer(workspace),
              workspace_size, pointer(reserve), reserve_size);
        });
      });
}

void bind_joint_tdt(py::module_& module) {
  using Options = prnnJointTDTLossOptions_t;
  using Seed = unsigned long long;
  module.attr("JOINT_TDT_LOSS_FIELDS") = describe_fields<Options>();
  module.def("joint_tdt_loss_workspace_size", &size<Options, prnnGetJointTDTLossWorkspaceSize>, "Bytes.");
  module.def("joint_tdt_loss_reserve_size", &size<Options, prnnGetJointTDTLossReserveSize>, "Bytes.");
  module.def("joint_tdt_loss_forward",
             [](const Handle& handle, const Options& options, Address encoder, Address predictor, Address weight,
                Address bias, Address targets, Address frame_lengths, Address target_lengths, Address dropout_seed,
                Address costs, Address workspace, size_t workspace_size, Address reserve, size_t reserve_size) {
               run(handle, [&](prnnHandle_t h) {
                 return prnnJointTDTLossForward(h, &options, pointer(encoder), pointer(predictor), pointer(weight),
                                                pointer(bias), pointer<int>(targets), pointer<int>(frame_lengths),
                                                pointer<int>(target_lengths), pointer<Seed>(dropout_seed),
                                                pointer(costs), pointer(workspace), workspace_size, pointer(reserve),
                                                reserve_size);
               });
             });
  module.def(
      "joint_tdt_loss_backward",
      [](const Handle& handle, const Options& options, Address encoder, Address predictor, Address weight, Address bias,
         Address targets, Address frame_lengths, Address target_lengths, Address dropout_seed, Address cost_gradients,
         Address encoder_gradients, Address predictor_gradients, Address weight_gradients, Address bias_gradients,
         Address workspace, size_t workspace_size, Address reserve, size_t reserve_size) {
        run(handle, [&](prnnHandle_t h) {
          return prnnJointTDTLossBackward(
              h, &options, pointer(encoder), pointer(predictor), pointer(weight), pointer(bias), pointer<int>(targets),
              pointer<int>(frame_lengths), pointer<int>(target_lengths), pointer<Seed>(dropout_seed),
              pointer(cost_gradients), pointer(encoder_gradients), pointer(predictor_gradients),
              pointer(weight_gradients), pointer(bias_gradients), pointer(workspace), workspace_size, pointer(reserve),
              reserve_size);
        });
      });
}

void bind_mutual_information(py::module_& module) {
  using Options = prnnMutualInformationOptions_t;
  module.attr("MUTUAL_INFORMATION_FIELDS") = describe_fields<Options>();
  module.def("mutual_information_workspace_size", &size<Options, prnnGetMutualInformationWorkspaceSize>, "Bytes.");
  module.def("mutual_information", [](const Handle& handle, const Options& options, Address px, Address py,
                                      Address boundary, Address scores, Address px_gradients, Address py_gradients,
                                      Address workspace, size_t workspace_size) {
    run(handle, [&](prnnHandle_t h) {
      return prnnMutualInformation(h, &options, pointer(px), pointer(py), pointer<int>(boundary), pointer(scores),
                                   pointer(px_gradients), pointer(py_gradients), pointer(workspace), workspace_size);
    });
  });
  module.def("rnnt_prune_ranges",
             [](const Handle& handle, const Options& options, Address px_gradients, Address py_gradients,
                Address boundary, int64_t prune_range, Address range_begins) {
               run(handle, [&](prnnHandle_t h) {
                 return prnnRNNTPruneRanges(h, &options, pointer(px_gradients), pointer(py_gradients),
                                            pointer<int>(boundary), prune_range, pointer<int>(range_begins));
               });
             });
}

void bind_duration_rnnt(py::module_& module) {
  using Options = prnnDurationRNNTLossOptions_t;
  module.attr("DURATION_RNNT_LOSS_FIELDS") = describe_fields<Options>();
  module.def("duration_rnnt_loss_sizes",
             &sizes<Options, prnnGetDurationRNNTLossWorkspaceSize, prnnGetDurationRNNTLossReserveSize>,
             "Bytes of workspace and of reserve space.");
  module.def("duration_rnnt_loss_forward",
             [](const Handle& handle, const Options& options, Address tokens, Address durations, Address targets,
                Address frame_lengths, Address target_lengths, Address costs, Address workspace, size_t workspace_size,
                Address reserve, size_t reserve_size, double scale, Address divided_by, Address loss) {
               const WithReduction reduced(options, loss != 0, scale, divided_by, loss);
               run(handle, [&](prnnHandle_t h) {
                 return prnnDurationRNNTLossForward(h, reduced.get(), pointer(tokens), pointer(durations),
                                                    pointer<int>(targets), pointer<int>(frame_lengths),
                                                    pointer<int>(target_lengths), pointer(costs), pointer(workspace),
                                                    workspace_size, pointer(reserve), reserve_size);
               });
             });
  module.def("duration_rnnt_loss_backward", [](const Handle& handle, const Options& options, Address tokens,
                                               Address durations, Address targets, Address frame_lengths,
                                               Address target_lengths, Address token_gradients,
                                               Address duration_gradients, Address cost_gradients, Address reserve,
                                               size_t reserve_size, double scale, Address divided_by, bool reduces) {
    const WithReduction reduced(options, reduces, scale, divided_by);
    run(handle, [&](prnnHandle_t h) {
      return prnnDurationRNNTLossBackward(h, reduced.get(), pointer(tokens), pointer(durations), pointer<int>(targets),
                                          pointer<int>(frame_lengths), pointer<int>(target_lengths),
                                          pointer(cost_gradients), pointer(token_gradients),
                                          pointer(duration_gradients), pointer(reserve), reserve_size);
    });
  });
}

}  // namespace

void bind_losses(py::module_& module) {
  module.attr("LOSS_LOGITS") = static_cast<int>(PRNN_LOSS_LOGITS);
  module.attr("LOSS_LOG_PROBS") = static_cast<int>(PRNN_LOSS_LOG_PROBS);
  module.attr("LOSS_GATHERED") = static_cast<int>(PRNN_LOSS_GATHERED);
  module.attr("TARGETS_PADDED") = static_cast<int>(PRNN_TARGETS_PADDED);
  module.attr("TARGETS_CONCATENATED") = static_cast<int>(PRNN_TARGETS_CONCATENATED);
  module.attr("RNNT_PADDED") = static_cast<int>(PRNN_RNNT_PADDED);
  module.attr("RNNT_PACKED") = static_cast<int>(PRNN_RNNT_PACKED);
  module.attr("RNNT_PRUNED") = static_cast<int>(PRNN_RNNT_PRUNED);
  module.attr("RNNT_REGULAR") = static_cast<int>(PRNN_RNNT_REGULAR);
  module.attr("RNNT_MODIFIED") = static_cast<int>(PRNN_RNNT_MODIFIED);
  module.attr("RNNT_CONSTRAINED") = static_cast<int>(PRNN_RNNT_CONSTRAINED);
  module.attr("RNNT_FINAL_BLANK") = static_cast<int>(PRNN_RNNT_FINAL_BLANK);
  module.attr("DURATION_TDT") = static_cast<int>(PRNN_DURATION_TDT);
  module.attr("DURATION_MULTI_BLANK") = static_cast<int>(PRNN_DURATION_MULTI_BLANK);
  module.attr("MAX_DURATIONS") = PRNN_MAX_DURATIONS;
  module.def("to_int32", &to_int32, "`count` int64 on the host as int, the nearest one where that is too small.");
  bind_ctc(module);
  bind_rnnt(module);
  bind_joint_rnnt(module);
  bind_joint_tdt(module);
  bind_mutual_information(module);
  bind_duration_rnnt(module);
}

}  // namespace prnn_python
