// Binds prnn_losses.h.
#include "prnn_losses.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "errors.h"
#include "handle.h"

namespace py = pybind11;

namespace prnn_python {
namespace {

using Address = uintptr_t;  // of an array; 0 is NULL

template <class Call>
void run(const Handle& handle, Call call) {
  prnnStatus_t status;
  {
    py::gil_scoped_release release;
    status = call(handle.get());
  }
  check(status, handle.get());
}

template <class Options, prnnStatus_t (*query)(prnnHandle_t, const Options*, size_t*)>
size_t size(const Handle& handle, const Options& options) {
  size_t bytes = 0;
  check(query(handle.get(), &options, &bytes), handle.get());
  return bytes;
}

// Of the workspace and of the reserve space of a loss.
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

// A field of an options struct as Python sees it: an enumeration as an integer, a flag as a bool.
template <class Options, class Value>
struct Field {
  using Python = std::conditional_t<std::is_enum_v<Value>, int, Value>;
  static constexpr const char* kKind = std::is_floating_point_v<Value> ? "float" : "int";
  const char* name;
  Value Options::* at;
};
template <class Options>
struct Flag {
  using Python = bool;
  static constexpr const char* kKind = "bool";
  const char* name;
  int Options::* at;
};
template <class Options, class Value>
Field(const char*, Value Options::*) -> Field<Options, Value>;
template <class Options>
Flag(const char*, int Options::*) -> Flag<Options>;

// Binds an options struct: its constructor takes the fields in the order given here, all at once, for a call for each
// would take longer than the launches of a small loss. FIELDS has their names and kinds.
template <class Options, class... Fields>
py::class_<Options> def_options(py::module_& module, const char* name, const char* doc, Fields... fields) {
  py::class_<Options> options(module, name, doc);
  options.def(py::init([=](typename Fields::Python... values) {
    Options o{};
    ((o.*fields.at = static_cast<std::decay_t<decltype(o.*fields.at)>>(values)), ...);
    return o;
  }));
  py::list kinds;
  (kinds.append(py::make_tuple(fields.name, Fields::kKind)), ...);
  options.attr("FIELDS") = py::tuple(kinds);
  return options;
}

void bind_ctc(py::module_& module) {
  using Options = prnnCTCLossOptions_t;
  def_options<Options>(module, "CtcLossOptions", "prnnCTCLossOptions_t.", Field{"dtype", &Options::dataType},
                       Field{"target_layout", &Options::targetLayout}, Field{"batch", &Options::batch},
                       Field{"max_frames", &Options::maxFrames}, Field{"max_targets", &Options::maxTargets},
                       Field{"target_elements", &Options::targetElements}, Field{"classes", &Options::classes},
                       Field{"time_stride", &Options::timeStride}, Field{"batch_stride", &Options::batchStride},
                       Field{"input", &Options::input}, Field{"blank", &Options::blank},
                       Flag{"zero_infinity", &Options::zeroInfinity});

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
  def_options<Options>(module, "RnntLossOptions", "prnnRNNTLossOptions_t: what shapes tell, and what a caller chooses.",
                       Field{"dtype", &Options::dataType}, Field{"layout", &Options::layout},
                       Field{"target_layout", &Options::targetLayout}, Field{"batch", &Options::batch},
                       Field{"max_frames", &Options::maxFrames}, Field{"max_targets", &Options::maxTargets},
                       Field{"target_elements", &Options::targetElements}, Field{"rows", &Options::rows},
                       Field{"prune_range", &Options::pruneRange}, Field{"classes", &Options::classes},
                       Field{"input", &Options::input}, Field{"rnnt_type", &Options::type},
                       Field{"blank", &Options::blank}, Flag{"blank_targets", &Options::blankTargets},
                       Flag{"zero_infinity", &Options::zeroInfinity},
                       Field{"fastemit_lambda", &Options::fastEmitLambda}, Field{"clamp", &Options::clamp},
                       Field{"delay_penalty", &Options::delayPenalty});

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
  def_options<Options>(
      module, "JointRnntLossOptions", "prnnJointRNNTLossOptions_t: what shapes tell, and what a caller chooses.",
      Field{"dtype", &Options::dataType}, Field{"batch", &Options::batch}, Field{"max_frames", &Options::maxFrames},
      Field{"max_targets", &Options::maxTargets}, Field{"rows", &Options::rows},
      Field{"prune_range", &Options::pruneRange}, Field{"joiner_size", &Options::joinerSize},
      Field{"classes", &Options::classes}, Flag{"allow_tf32", &Options::allowTf32},
      Field{"activation", &Options::activation}, Field{"dropout", &Options::dropout},
      Field{"chunk_cells", &Options::chunkCells}, Field{"rnnt_type", &Options::type}, Field{"blank", &Options::blank},
      Flag{"zero_infinity", &Options::zeroInfinity}, Field{"fastemit_lambda", &Options::fastEmitLambda},
      Field{"clamp", &Options::clamp}, Field{"delay_penalty", &Options::delayPenalty});

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

void bind_mutual_information(py::module_& module) {
  using Options = prnnMutualInformationOptions_t;
  def_options<Options>(module, "MutualInformationOptions", "prnnMutualInformationOptions_t.",
                       Field{"dtype", &Options::dataType}, Field{"type", &Options::type},
                       Field{"batch", &Options::batch}, Field{"symbols", &Options::symbols},
                       Field{"frames", &Options::frames});

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
  def_options<Options>(
      module, "DurationRnntLossOptions", "prnnDurationRNNTLossOptions_t: what shapes tell, and what a caller chooses.",
      Field{"dtype", &Options::dataType}, Field{"batch", &Options::batch}, Field{"max_frames", &Options::maxFrames},
      Field{"max_targets", &Options::maxTargets}, Field{"classes", &Options::classes},
      Field{"token_stride", &Options::tokenStride}, Field{"duration_stride", &Options::durationStride},
      Field{"type", &Options::type}, Field{"blank", &Options::blank}, Field{"sigma", &Options::sigma},
      Field{"omega", &Options::omega}, Field{"fastemit_lambda", &Options::fastEmitLambda},
      Field{"clamp", &Options::clamp}, Flag{"zero_infinity", &Options::zeroInfinity})
      .def_readonly("classes", &Options::classes)
      .def_property_readonly("type", [](const Options& o) { return static_cast<int>(o.type); })
      .def("set_durations", [](Options& o, const std::vector<int>& durations) {
        o.durationCount = static_cast<int64_t>(durations.size());  // too many are refused by the library
        std::copy_n(durations.begin(), std::min<size_t>(durations.size(), PRNN_MAX_DURATIONS), o.durations);
      });

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
  bind_ctc(module);
  bind_rnnt(module);
  bind_joint_rnnt(module);
  bind_mutual_information(module);
  bind_duration_rnnt(module);
}

}  // namespace prnn_python
