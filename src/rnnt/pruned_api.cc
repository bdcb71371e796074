// prnnMutualInformation and prnnRNNTPruneRanges: checks every argument, then calls the backend of the handle's device.
#include "core/loss_checks.h"
#include "rnnt/rnnt.h"

using namespace prnn;

namespace {

void check_options(const prnnMutualInformationOptions_t* options) {
  require_not_null(options, "options");
  const prnnMutualInformationOptions_t& o = *options;
  require_known_type(o.dataType, "dataType");
  if (o.dataType != PRNN_DATA_FLOAT && o.dataType != PRNN_DATA_DOUBLE)
    fail(PRNN_STATUS_NOT_SUPPORTED, "dataType is %s; scores of a lattice are PRNN_DATA_FLOAT or PRNN_DATA_DOUBLE",
         name_of(o.dataType));
  require_enumerator(o.type, {PRNN_RNNT_REGULAR, PRNN_RNNT_MODIFIED, PRNN_RNNT_CONSTRAINED}, "type");
  const int64_t most = std::numeric_limits<int>::max() - 1;  // boundaries are int
  require_in_range(o.batch, 1, most, "batch");
  require_in_range(o.symbols, 0, most, "symbols");
  require_in_range(o.frames, 1, most, "frames");
  product_of_sizes({o.batch, o.symbols + o.frames, o.symbols + 1});
  product_of_sizes({o.batch, o.symbols + 1, o.frames + 1});
}

void check_boundary(const prnnMutualInformationOptions_t& o, const int* boundary) {
  for (int64_t n = 0; n < o.batch; ++n) {
    const int* b = boundary + 4 * n;
    if (b[0] < 0 || b[0] > b[2] || b[2] > o.symbols)
      fail(PRNN_STATUS_BAD_PARAM,
           "boundary[%" PRId64 "] has s_begin %d and s_end %d; they must rise from 0 to at most %" PRId64, n, b[0],
           b[2], o.symbols);
    if (b[1] < 0 || b[1] > b[3] || b[3] > o.frames)
      fail(PRNN_STATUS_BAD_PARAM,
           "boundary[%" PRId64 "] has t_begin %d and t_end %d; they must rise from 0 to at most %" PRId64, n, b[1],
           b[3], o.frames);
  }
}

}  // namespace

extern "C" prnnStatus_t prnnGetMutualInformationWorkspaceSize(prnnHandle_t handle,
                                                              const prnnMutualInformationOptions_t* options,
                                                              size_t* sizeInBytes) {
  return guarded(handle, [&] {
    const RnntBackend& backend = rnnt_backend(handle);
    check_options(options);
    write_size(backend.mutual_information_workspace_size(*options), sizeInBytes);
  });
}

extern "C" prnnStatus_t prnnMutualInformation(prnnHandle_t handle, const prnnMutualInformationOptions_t* options,
                                              const void* px, const void* py, const int* boundary, void* scores,
                                              void* pxGradients, void* pyGradients, void* workspace,
                                              size_t workspaceSizeInBytes) {
  return guarded(handle, [&] {
    const RnntBackend& backend = rnnt_backend(handle);
    check_options(options);
    const prnnMutualInformationOptions_t& o = *options;
    if (o.symbols > 0) require_not_null(px, "px");
    require_not_null(py, "py");
    require_not_null(scores, "scores");
    require_aligned(
        type_size(o.dataType),
        {{px, "px"}, {py, "py"}, {scores, "scores"}, {pxGradients, "pxGradients"}, {pyGradients, "pyGradients"}});
    require_aligned(sizeof(int), {{boundary, "boundary"}});
    if (o.symbols > 0 && (pxGradients == nullptr) != (pyGradients == nullptr))
      fail(PRNN_STATUS_BAD_PARAM, "%s is NULL and the other is not; give both gradients or none",
           pxGradients ? "pyGradients" : "pxGradients");
    require_space(workspace, workspaceSizeInBytes, backend.mutual_information_workspace_size(o), "workspace");
    if (handle->is_cpu() && boundary) check_boundary(o, boundary);
    backend.mutual_information(handle, {o, px, py, boundary, scores, pxGradients, pyGradients, workspace});
  });
}

extern "C" prnnStatus_t prnnRNNTPruneRanges(prnnHandle_t handle, const prnnMutualInformationOptions_t* options,
                                            const void* pxGradients, const void* pyGradients, const int* boundary,
                                            int64_t pruneRange, int* rangeBegins) {
  return guarded(handle, [&] {
    const RnntBackend& backend = rnnt_backend(handle);
    check_options(options);
    const prnnMutualInformationOptions_t& o = *options;
    if (o.symbols > 0) require_not_null(pxGradients, "pxGradients");
    require_not_null(pyGradients, "pyGradients");
    require_not_null(rangeBegins, "rangeBegins");
    require_aligned(type_size(o.dataType), {{pxGradients, "pxGradients"}, {pyGradients, "pyGradients"}});
    require_aligned(sizeof(int), {{boundary, "boundary"}, {rangeBegins, "rangeBegins"}});
    require_in_range(pruneRange, o.type == PRNN_RNNT_REGULAR && o.symbols > 0 ? 2 : 1, o.symbols + 1, "pruneRange");
    if (handle->is_cpu() && boundary) check_boundary(o, boundary);
    backend.prune_ranges(handle, {o, pxGradients, pyGradients, boundary, pruneRange, rangeBegins});
  });
}
