#include "core/enums.h"
#include "core/with_real.h"
#include "decode/cpu/beam.h"
#include "decode/cpu/search.h"

namespace prnn {
namespace {

class CpuDecodeBackend final : public DecodeBackend {
 public:
  void require_supported(prnnHandle_t, const TransducerModel& m) const override {
    if (m.dataType == PRNN_DATA_FLOAT || m.dataType == PRNN_DATA_DOUBLE) return;
    fail(PRNN_STATUS_NOT_SUPPORTED,
         "dataType is %s; on the CPU a transducer search takes PRNN_DATA_FLOAT and PRNN_DATA_DOUBLE",
         name_of(m.dataType));
  }
  size_t prepared_size(prnnHandle_t, const TransducerModel& m) const override {
    return with_real(m.dataType,
                     [&](auto real) { return PreparedTransducer<decltype(real)>(m, nullptr).arena.size(); });
  }
  void prepare(prnnHandle_t, const TransducerModel& m, const prnnTransducerWeights_t& weights,
               void* prepared) const override {
    with_real(m.dataType, [&](auto real) { PreparedTransducer<decltype(real)>(m, prepared).write(m, weights); });
  }
  WorkspaceSize workspace_size(prnnHandle_t, const TransducerModel& m,
                               const prnnTransducerSearchOptions_t& options) const override {
    return with_real(m.dataType,
                     [&](auto real) { return transducer_search_workspace_cpu<decltype(real)>(m, options); });
  }
  void search(prnnHandle_t, const TransducerModel& m, const TransducerSearchArgs& args) const override {
    with_real(m.dataType, [&](auto real) { transducer_search_cpu<decltype(real)>(m, args); });
  }
  WorkspaceSize beam_workspace_size(prnnHandle_t, const TransducerModel& m,
                                    const prnnTransducerBeamOptions_t& options) const override {
    return with_real(m.dataType, [&](auto real) { return transducer_beam_workspace_cpu<decltype(real)>(m, options); });
  }
  void beam_search(prnnHandle_t, const TransducerModel& m, const TransducerBeamArgs& args) const override {
    with_real(m.dataType, [&](auto real) { transducer_beam_search_cpu<decltype(real)>(m, args); });
  }
};

}  // namespace

const DecodeBackend& cpu_decode_backend() {
  static const CpuDecodeBackend backend;
  return backend;
}

}  // namespace prnn
