#include "core/descriptors.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "core/cuda/cuda_state.h"
#include "core/enums.h"
#include "core/handle.h"

namespace prnn {
namespace {

std::string dims_text(const int* dims, int rank) {
  std::string text = "{";
  for (int i = 0; i < rank; ++i) text += (i > 0 ? ", " : "") + std::to_string(dims[i]);
  return text + "}";
}

void require_rank(int rank) {
  if (rank < 1 || rank > PRNN_DIM_MAX) {
    fail(PRNN_STATUS_BAD_PARAM, "nbDims is %d; it must lie between 1 and %d", rank, PRNN_DIM_MAX);
  }
}

void require_positive(const int* values, int count, const char* name) {
  require_not_null(values, name);
  for (int i = 0; i < count; ++i) {
    if (values[i] < 1) fail(PRNN_STATUS_BAD_PARAM, "%s[%d] is %d; it must be at least 1", name, i, values[i]);
  }
}

// How many of a descriptor's dimensions a Get... function writes.
int dims_to_copy(int requested, int rank) {
  if (requested < 0) fail(PRNN_STATUS_BAD_PARAM, "nbDimsRequested is %d; it must not be negative", requested);
  return std::min(requested, rank);
}

template <class Descriptor>
void require_type(const Descriptor& descriptor, const ArgumentName& name, prnnDataType_t type) {
  if (descriptor.type == type) return;
  fail(PRNN_STATUS_BAD_PARAM, "%s has type %s; it must be %s", name.text().c_str(), name_of(descriptor.type),
       name_of(type));
}

void require_dropout(prnnDropoutDescriptor_t descriptor, prnnHandle_t handle, float dropout, const void* states,
                     size_t bytes) {
  require_handle(handle);
  require_alive(descriptor, "dropoutDesc");
  if (!(dropout >= 0 && dropout < 1)) {
    fail(PRNN_STATUS_BAD_PARAM, "dropout is %g; it must be at least 0 and less than 1", static_cast<double>(dropout));
  }
  if (states == nullptr && bytes > 0) {
    fail(PRNN_STATUS_BAD_PARAM, "states is NULL with stateSizeInBytes %zu", bytes);
  }
  require_aligned(sizeof(uint64_t), {{states, "states"}});
  if (states != nullptr && bytes < sizeof(DropoutStates)) {
    fail(PRNN_STATUS_BAD_PARAM, "stateSizeInBytes is %zu; prnnDropoutGetStatesSize asks for %zu", bytes,
         sizeof(DropoutStates));
  }
}

void set_dropout(prnnDropoutStruct& descriptor, const prnnContext& context, float dropout, void* states) {
  descriptor.set = true;
  descriptor.probability = dropout;
  descriptor.states = states;
  descriptor.device = context.device;
}

}  // namespace

size_t type_size(prnnDataType_t type) {
  switch (type) {
    case PRNN_DATA_FLOAT: return 4;
    case PRNN_DATA_DOUBLE: return 8;
    case PRNN_DATA_HALF: return 2;
    case PRNN_DATA_BFLOAT16: return 2;
  }
  fail(PRNN_STATUS_INTERNAL_ERROR, "a data type has the value %d", integer_in(type));
}

void require_known_type(const prnnDataType_t& type, const char* name) {
  require_enumerator(type, {PRNN_DATA_FLOAT, PRNN_DATA_DOUBLE, PRNN_DATA_HALF, PRNN_DATA_BFLOAT16}, name);
}

std::string dims_text(const prnnTensorStruct& tensor) { return dims_text(tensor.dims.data(), tensor.rank); }

void require_packed_tensor(const prnnTensorStruct* tensor, const ArgumentName& name, prnnDataType_t type) {
  if (!is_alive(tensor)) require_alive(tensor, name.text().c_str());
  if (tensor->rank == 0) {
    fail(PRNN_STATUS_BAD_PARAM, "%s has no dimensions yet; call prnnSetTensorNdDescriptor", name.text().c_str());
  }
  require_type(*tensor, name, type);
  int64_t packed = 1;
  for (int i = tensor->rank - 1; i >= 0; --i) {
    if (tensor->dims[i] == 1) continue;  // nothing is ever reached through this stride
    if (tensor->strides[i] != packed) {
      fail(PRNN_STATUS_BAD_PARAM, "%s has dimensions %s with strides %s; it must be packed", name.text().c_str(),
           dims_text(*tensor).c_str(), dims_text(tensor->strides.data(), tensor->rank).c_str());
    }
    packed *= tensor->dims[i];  // stays below 2^62: the next stride is an int, or the check above fails
  }
}

void require_tensor(const prnnTensorStruct* tensor, const ArgumentName& name, prnnDataType_t type,
                    std::initializer_list<int64_t> expected) {
  require_packed_tensor(tensor, name, type);
  const int count = static_cast<int>(expected.size());
  bool same = tensor->rank >= count && std::equal(expected.begin(), expected.end(), tensor->dims.begin());
  for (int i = count; same && i < tensor->rank; ++i) same = tensor->dims[i] == 1;
  if (same) return;
  std::string wanted;
  for (int64_t dim : expected) wanted += (wanted.empty() ? "" : ", ") + std::to_string(dim);
  fail(PRNN_STATUS_BAD_PARAM, "%s has dimensions %s; they must be {%s} and ones after that", name.text().c_str(),
       dims_text(*tensor).c_str(), wanted.c_str());
}

void require_filter(const prnnFilterStruct* filter, const char* name, prnnDataType_t type, int64_t elements) {
  require_alive(filter, name);
  if (!filter->set) {
    fail(PRNN_STATUS_BAD_PARAM, "%s has no dimensions yet; call prnnSetFilterNdDescriptor", name);
  }
  require_type(*filter, name, type);
  int64_t count = filter->rank > 0 ? 1 : 0;
  for (int i = 0; i < filter->rank; ++i) {
    if (__builtin_mul_overflow(count, static_cast<int64_t>(filter->dims[i]), &count)) count = INT64_MAX;
  }
  if (count != elements) {
    fail(PRNN_STATUS_BAD_PARAM, "%s has dimensions %s; the packed weights of this layer have %lld elements", name,
         dims_text(filter->dims.data(), filter->rank).c_str(), static_cast<long long>(elements));
  }
}

}  // namespace prnn

using namespace prnn;

extern "C" prnnStatus_t prnnCreateTensorDescriptor(prnnTensorDescriptor_t* tensorDesc) {
  return create_object(tensorDesc, "tensorDesc");
}

extern "C" prnnStatus_t prnnDestroyTensorDescriptor(prnnTensorDescriptor_t tensorDesc) {
  return destroy_object(tensorDesc, "tensorDesc");
}

extern "C" prnnStatus_t prnnSetTensorNdDescriptor(prnnTensorDescriptor_t tensorDesc, prnnDataType_t dataType,
                                                  int nbDims, const int dimA[], const int strideA[]) {
  return guarded(nullptr, [&] {
    require_alive(tensorDesc, "tensorDesc");
    require_known_type(dataType, "dataType");
    require_rank(nbDims);
    require_positive(dimA, nbDims, "dimA");
    require_positive(strideA, nbDims, "strideA");
    tensorDesc->type = dataType;
    tensorDesc->rank = nbDims;
    std::copy_n(dimA, nbDims, tensorDesc->dims.begin());
    std::copy_n(strideA, nbDims, tensorDesc->strides.begin());
  });
}

extern "C" prnnStatus_t prnnGetTensorNdDescriptor(const prnnTensorDescriptor_t tensorDesc, int nbDimsRequested,
                                                  prnnDataType_t* dataType, int* nbDims, int dimA[], int strideA[]) {
  return guarded(nullptr, [&] {
    require_alive(tensorDesc, "tensorDesc");
    const int count = dims_to_copy(nbDimsRequested, tensorDesc->rank);
    if (dataType != nullptr) *dataType = tensorDesc->type;
    if (nbDims != nullptr) *nbDims = tensorDesc->rank;
    if (dimA != nullptr) std::copy_n(tensorDesc->dims.begin(), count, dimA);
    if (strideA != nullptr) std::copy_n(tensorDesc->strides.begin(), count, strideA);
  });
}

extern "C" prnnStatus_t prnnCreateFilterDescriptor(prnnFilterDescriptor_t* filterDesc) {
  return create_object(filterDesc, "filterDesc");
}

extern "C" prnnStatus_t prnnDestroyFilterDescriptor(prnnFilterDescriptor_t filterDesc) {
  return destroy_object(filterDesc, "filterDesc");
}

extern "C" prnnStatus_t prnnSetFilterNdDescriptor(prnnFilterDescriptor_t filterDesc, prnnDataType_t dataType,
                                                  prnnTensorFormat_t format, int nbDims, const int filterDimA[]) {
  return guarded(nullptr, [&] {
    require_alive(filterDesc, "filterDesc");
    require_known_type(dataType, "dataType");
    require_enumerator(format, {PRNN_TENSOR_NCHW, PRNN_TENSOR_NHWC}, "format");
    require_rank(nbDims);
    require_positive(filterDimA, nbDims, "filterDimA");
    filterDesc->type = dataType;
    filterDesc->format = format;
    filterDesc->set = true;
    filterDesc->rank = nbDims;
    std::copy_n(filterDimA, nbDims, filterDesc->dims.begin());
  });
}

extern "C" prnnStatus_t prnnGetFilterNdDescriptor(const prnnFilterDescriptor_t filterDesc, int nbDimsRequested,
                                                  prnnDataType_t* dataType, prnnTensorFormat_t* format, int* nbDims,
                                                  int filterDimA[]) {
  return guarded(nullptr, [&] {
    require_alive(filterDesc, "filterDesc");
    const int count = dims_to_copy(nbDimsRequested, filterDesc->rank);
    if (dataType != nullptr) *dataType = filterDesc->type;
    if (format != nullptr) *format = filterDesc->format;
    if (nbDims != nullptr) *nbDims = filterDesc->rank;
    if (filterDimA != nullptr) std::copy_n(filterDesc->dims.begin(), count, filterDimA);
  });
}

extern "C" prnnStatus_t prnnCreateDropoutDescriptor(prnnDropoutDescriptor_t* dropoutDesc) {
  return create_object(dropoutDesc, "dropoutDesc");
}

extern "C" prnnStatus_t prnnDestroyDropoutDescriptor(prnnDropoutDescriptor_t dropoutDesc) {
  return destroy_object(dropoutDesc, "dropoutDesc");
}

extern "C" prnnStatus_t prnnDropoutGetStatesSize(prnnHandle_t handle, size_t* sizeInBytes) {
  return guarded(handle, [&] {
    require_handle(handle);
    require_not_null(sizeInBytes, "sizeInBytes");
    *sizeInBytes = sizeof(DropoutStates);
  });
}

extern "C" prnnStatus_t prnnSetDropoutDescriptor(prnnDropoutDescriptor_t dropoutDesc, prnnHandle_t handle,
                                                 float dropout, void* states, size_t stateSizeInBytes,
                                                 unsigned long long seed) {
  return guarded(handle, [&] {
    require_dropout(dropoutDesc, handle, dropout, states, stateSizeInBytes);
    const DropoutStates initial{seed, 0};
    if (states != nullptr && handle->is_cpu()) std::memcpy(states, &initial, sizeof initial);
    if (states != nullptr && !handle->is_cpu()) write_dropout_states(*handle, states, initial);
    set_dropout(*dropoutDesc, *handle, dropout, states);
  });
}

extern "C" prnnStatus_t prnnRestoreDropoutDescriptor(prnnDropoutDescriptor_t dropoutDesc, prnnHandle_t handle,
                                                     float dropout, void* states, size_t stateSizeInBytes,
                                                     unsigned long long) {
  return guarded(handle, [&] {
    require_dropout(dropoutDesc, handle, dropout, states, stateSizeInBytes);
    set_dropout(*dropoutDesc, *handle, dropout, states);
  });
}
