#include "cudnn_standin/weights.h"

#include <algorithm>
#include <climits>
#include <numeric>

namespace prnn_cudnn {
namespace {

// Both libraries add offsets to an address that they do not read.
char* const kBase = reinterpret_cast<char*>(uintptr_t{1} << 40);

size_t elements(const Cudnn& cudnn, const CudnnObject& tensor) {
  int type = 0, rank = 0, dims[8] = {}, strides[8] = {};
  require(cudnn.get_tensor(tensor.get(), 8, &type, &rank, dims, strides), "to tell the size of a matrix");
  size_t count = rank > 0 ? 1 : 0;
  for (int i = 0; i < std::min(rank, 8); ++i) count *= static_cast<size_t>(dims[i]);
  return count;
}

size_t elements(const Prnn& prnn, prnnFilterDescriptor_t filter) {
  int rank = 0, dims[PRNN_DIM_MAX] = {};
  prnn.require(prnn.GetFilterNdDescriptor(filter, PRNN_DIM_MAX, nullptr, nullptr, &rank, dims));
  size_t count = rank > 0 ? 1 : 0;
  for (int i = 0; i < rank; ++i) count *= static_cast<size_t>(dims[i]);
  return count;
}

// The linLayerIDs of a layer's matrices, which are the same in both libraries.
std::vector<int> matrix_ids(const Configuration& c) {
  constexpr int kProjectionId = 8;
  std::vector<int> ids(2 * c.gates());
  std::iota(ids.begin(), ids.end(), 0);
  if (c.is_projected()) ids.push_back(kProjectionId);
  return ids;
}

}  // namespace

void finish(WeightLayout& layout) {
  std::vector<WeightBlock>& blocks = layout.blocks;
  std::sort(blocks.begin(), blocks.end(), [](const WeightBlock& a, const WeightBlock& b) { return a.prnn < b.prnn; });
  size_t last = 0;
  for (size_t i = 1; i < blocks.size(); ++i) {
    WeightBlock& before = blocks[last];
    if (blocks[i].prnn == before.prnn + before.size && blocks[i].cudnn == before.cudnn + before.size) {
      before.size += blocks[i].size;
    } else {
      blocks[++last] = blocks[i];
    }
  }
  if (!blocks.empty()) blocks.resize(last + 1);
  size_t covered = 0;
  for (const WeightBlock& block : blocks) covered += block.size;
  layout.covers = covered == layout.packed_size;
  // 16 bytes: the vectors that prnn's kernels read.
  layout.is_same = layout.covers && blocks.size() == 1 && blocks[0].cudnn % 16 == 0;
  layout.same_at = layout.is_same ? blocks[0].cudnn : 0;
}

WeightLayout read_weight_layout(const Cudnn& cudnn, const Prnn& prnn, prnnHandle_t prnn_handle, void* cudnn_handle,
                                void* cudnn_rnn, prnnRNNDescriptor_t prnn_rnn, const Configuration& c) {
  WeightLayout layout;
  const TensorDesc input(prnn);
  const int dims[] = {c.batch, c.input, 1}, strides[] = {c.input, 1, 1};
  const auto type = static_cast<prnnDataType_t>(c.type);
  prnn.require(prnn.SetTensorNdDescriptor(input.get(), type, 3, dims, strides));
  prnn.require(prnn.GetRNNParamsSize(prnn_handle, prnn_rnn, input.get(), &layout.packed_size, type), prnn_handle);
  if (layout.packed_size / c.element() > INT_MAX) throw Failure(kNotSupported, "more than 2^31 - 1 weights");
  const FilterDesc weights(prnn), matrix(prnn), bias(prnn);
  const int count[] = {static_cast<int>(layout.packed_size / c.element()), 1, 1};
  prnn.require(prnn.SetFilterNdDescriptor(weights.get(), type, PRNN_TENSOR_NCHW, 3, count));

  require(cudnn.get_weights_size(cudnn_handle, cudnn_rnn, &layout.space_size), "to tell the size of the weights");
  const CudnnObject cudnn_matrix(cudnn.create_tensor, cudnn.destroy_tensor);
  const CudnnObject cudnn_bias(cudnn.create_tensor, cudnn.destroy_tensor);
  const auto add = [&](const void* own, size_t own_elements, void* other, const CudnnObject& described) {
    if (other == nullptr) return;
    if (own == nullptr || elements(cudnn, described) != own_elements) {
      throw Failure(kNotSupported, "cuDNN has a matrix or bias of another size than prnn");
    }
    layout.blocks.push_back({static_cast<size_t>(static_cast<const char*>(own) - kBase),
                             static_cast<size_t>(static_cast<char*>(other) - kBase), own_elements * c.element()});
  };
  for (int pseudo = 0; pseudo < c.layers * c.directions(); ++pseudo) {
    for (int id : matrix_ids(c)) {
      void *own_matrix = nullptr, *own_bias = nullptr, *other_matrix = nullptr, *other_bias = nullptr;
      prnn.require(prnn.GetRNNLinLayerMatrixParams(prnn_handle, prnn_rnn, pseudo, input.get(), weights.get(), kBase, id,
                                                   matrix.get(), &own_matrix),
                   prnn_handle);
      prnn.require(prnn.GetRNNLinLayerBiasParams(prnn_handle, prnn_rnn, pseudo, input.get(), weights.get(), kBase, id,
                                                 bias.get(), &own_bias),
                   prnn_handle);
      require(cudnn.get_weights(cudnn_handle, cudnn_rnn, pseudo, layout.space_size, kBase, id, cudnn_matrix.get(),
                                &other_matrix, cudnn_bias.get(), &other_bias),
              "to tell where the weights lie");
      add(own_matrix, elements(prnn, matrix.get()), other_matrix, cudnn_matrix);
      add(own_bias, elements(prnn, bias.get()), other_bias, cudnn_bias);
    }
  }
  finish(layout);
  return layout;
}

}  // namespace prnn_cudnn
