/* A client of cuDNN, v5 or v7 as PRNN_COMPAT_CUDNN_MAJOR says: one training step of a stacked bidirectional LSTM,
 * written as against cudnn.h. Checks some weight gradients by central differences and prints "ok". */
#include <compat/cudnn_rnn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call)                                                                         \
  do {                                                                                      \
    const cudnnStatus_t status_ = (call);                                                   \
    if (status_ != CUDNN_STATUS_SUCCESS) {                                                  \
      fprintf(stderr, "%s: %s (line %d)\n", #call, cudnnGetErrorString(status_), __LINE__); \
      exit(1);                                                                              \
    }                                                                                       \
  } while (0)

#define EXPECT(condition)                                                   \
  do {                                                                      \
    if (!(condition)) {                                                     \
      fprintf(stderr, "line %d: %s does not hold\n", __LINE__, #condition); \
      exit(1);                                                              \
    }                                                                       \
  } while (0)

enum { kSteps = 4, kBatch = 3, kInput = 5, kHidden = 6, kLayers = 2, kDirections = 2 };

static void fill(double* values, size_t count, double scale) {
  size_t i;
  for (i = 0; i < count; ++i) values[i] = scale * ((double)rand() / RAND_MAX - 0.5);
}

static double* make(size_t count) { return (double*)calloc(count, sizeof(double)); }

static void set_tensor(cudnnTensorDescriptor_t* descriptor, int first, int second, int third) {
  int dims[3], strides[3];
  dims[0] = first, dims[1] = second, dims[2] = third;
  strides[0] = second * third, strides[1] = third, strides[2] = 1;
  CHECK(cudnnCreateTensorDescriptor(descriptor));
  CHECK(cudnnSetTensorNdDescriptor(*descriptor, CUDNN_DATA_DOUBLE, 3, dims, strides));
}

/* Names that other families' clients mention: four-dimensional descriptors, and convolutions, which prnn has not. */
static void check_other_families(void) {
  cudnnTensorDescriptor_t tensor;
  cudnnFilterDescriptor_t filter;
  cudnnConvolutionDescriptor_t convolution = NULL;
  cudnnDataType_t type;
  cudnnTensorFormat_t format;
  int rank, dims[4], strides[4];
  CHECK(cudnnCreateTensorDescriptor(&tensor));
  CHECK(cudnnSetTensor4dDescriptor(tensor, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 5, 4, 3, 2));
  CHECK(cudnnGetTensorNdDescriptor(tensor, 4, &type, &rank, dims, strides));
  EXPECT(rank == 4 && dims[0] == 5 && dims[3] == 2 && strides[0] == 24 && strides[1] == 6 && strides[2] == 2);
  CHECK(cudnnSetTensor4dDescriptor(tensor, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, 5, 4, 3, 2));
  CHECK(cudnnGetTensorNdDescriptor(tensor, 4, &type, &rank, dims, strides));
  EXPECT(strides[0] == 24 && strides[1] == 1 && strides[2] == 8 && strides[3] == 4);
  EXPECT(cudnnSetTensor4dDescriptor(tensor, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 5, 3, 1431655766, 1) ==
         CUDNN_STATUS_NOT_SUPPORTED); /* an image of 2^32 + 2 elements */
  EXPECT(cudnnSetTensor4dDescriptor(tensor, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 5, 4, 1 << 30, 1 << 30) ==
         CUDNN_STATUS_NOT_SUPPORTED);
  EXPECT(cudnnSetTensor4dDescriptor(tensor, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 5, -4, 3, 2) ==
         CUDNN_STATUS_BAD_PARAM);
  EXPECT(cudnnSetTensor4dDescriptor(tensor, (cudnnTensorFormat_t)2, CUDNN_DATA_FLOAT, 5, 4, 3, 2) ==
         CUDNN_STATUS_BAD_PARAM);
  CHECK(cudnnCreateFilterDescriptor(&filter));
  CHECK(cudnnSetFilter4dDescriptor(filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, 5, 4, 3, 2));
  CHECK(cudnnGetFilterNdDescriptor(filter, 4, &type, &format, &rank, dims));
  EXPECT(rank == 4 && dims[0] == 5 && dims[3] == 2);
  EXPECT(cudnnCreateConvolutionDescriptor(&convolution) == CUDNN_STATUS_NOT_SUPPORTED);
#if CUDNN_MAJOR >= 7
  EXPECT(cudnnSetConvolution2dDescriptor(convolution, 0, 0, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT) ==
         CUDNN_STATUS_NOT_SUPPORTED);
#else
  EXPECT(cudnnSetConvolution2dDescriptor(convolution, 0, 0, 1, 1, 1, 1, CUDNN_CONVOLUTION) ==
         CUDNN_STATUS_NOT_SUPPORTED);
#endif
  EXPECT(cudnnDestroyConvolutionDescriptor(convolution) == CUDNN_STATUS_NOT_SUPPORTED);
  CHECK(cudnnDestroyTensorDescriptor(tensor));
  CHECK(cudnnDestroyFilterDescriptor(filter));
}

int main(void) {
  cudnnHandle_t handle;
  cudnnRNNDescriptor_t rnn;
  cudnnDropoutDescriptor_t dropout;
  cudnnTensorDescriptor_t x_desc[kSteps], y_desc[kSteps], state_desc;
  cudnnFilterDescriptor_t w_desc, block_desc;
  size_t w_bytes, workspace_bytes, reserve_bytes, states_bytes;
  double *x, *w, *y, *dy, *dx, *dw;
  void *workspace, *reserve, *states;
  int t, layer, id, dims[3];
  const size_t rows = kSteps * kBatch, width = kHidden * kDirections;

  if (cudnnGetVersion() != CUDNN_VERSION) return 1;
  check_other_families();
  CHECK(cudnnCreate(&handle));
  CHECK(cudnnSetStream(handle, NULL));
  for (t = 0; t < kSteps; ++t) {
    set_tensor(&x_desc[t], kBatch, kInput, 1);
    set_tensor(&y_desc[t], kBatch, kHidden * kDirections, 1);
  }
  set_tensor(&state_desc, kLayers * kDirections, kBatch, kHidden);

  CHECK(cudnnCreateDropoutDescriptor(&dropout));
  CHECK(cudnnDropoutGetStatesSize(handle, &states_bytes));
  states = malloc(states_bytes);
  CHECK(cudnnSetDropoutDescriptor(dropout, handle, 0, states, states_bytes, 1337));
  CHECK(cudnnCreateRNNDescriptor(&rnn));
#if CUDNN_MAJOR >= 7
  EXPECT(cudnnSetRNNDescriptor(handle, rnn, kHidden, kLayers, dropout, CUDNN_LINEAR_INPUT, CUDNN_BIDIRECTIONAL,
                               CUDNN_LSTM, CUDNN_RNN_ALGO_PERSIST_DYNAMIC,
                               CUDNN_DATA_DOUBLE) == CUDNN_STATUS_NOT_SUPPORTED);
  EXPECT(cudnnSetRNNDescriptor(handle, rnn, kHidden, kLayers, dropout, CUDNN_LINEAR_INPUT, CUDNN_BIDIRECTIONAL,
                               CUDNN_LSTM, CUDNN_RNN_ALGO_STANDARD, CUDNN_DATA_INT8) != CUDNN_STATUS_SUCCESS);
  CHECK(cudnnSetRNNDescriptor(handle, rnn, kHidden, kLayers, dropout, CUDNN_LINEAR_INPUT, CUDNN_BIDIRECTIONAL,
                              CUDNN_LSTM, CUDNN_RNN_ALGO_STANDARD, CUDNN_DATA_DOUBLE));
  CHECK(cudnnSetRNNMatrixMathType(rnn, CUDNN_TENSOR_OP_MATH));
#else
  CHECK(cudnnSetRNNDescriptor(rnn, kHidden, kLayers, dropout, CUDNN_LINEAR_INPUT, CUDNN_BIDIRECTIONAL, CUDNN_LSTM,
                              CUDNN_DATA_DOUBLE));
#endif

  CHECK(cudnnGetRNNParamsSize(handle, rnn, x_desc[0], &w_bytes, CUDNN_DATA_DOUBLE));
  dims[0] = (int)(w_bytes / sizeof(double)), dims[1] = dims[2] = 1;
  CHECK(cudnnCreateFilterDescriptor(&w_desc));
  CHECK(cudnnSetFilterNdDescriptor(w_desc, CUDNN_DATA_DOUBLE, CUDNN_TENSOR_NCHW, 3, dims));
  CHECK(cudnnGetRNNWorkspaceSize(handle, rnn, kSteps, x_desc, &workspace_bytes));
  CHECK(cudnnGetRNNTrainingReserveSize(handle, rnn, kSteps, x_desc, &reserve_bytes));

  x = make(rows * kInput), dx = make(rows * kInput);
  y = make(rows * width), dy = make(rows * width);
  w = make(w_bytes / sizeof(double)), dw = make(w_bytes / sizeof(double));
  workspace = malloc(workspace_bytes), reserve = malloc(reserve_bytes);
  fill(x, rows * kInput, 2);
  fill(dy, rows * width, 2);

  /* Weights by the matrix, as clients set them. */
  CHECK(cudnnCreateFilterDescriptor(&block_desc));
  for (layer = 0; layer < kLayers * kDirections; ++layer) {
    for (id = 0; id < 8; ++id) {
      cudnnDataType_t type;
      cudnnTensorFormat_t format;
      int rank, block_dims[3];
      double* block;
      CHECK(cudnnGetRNNLinLayerMatrixParams(handle, rnn, layer, x_desc[0], w_desc, w, id, block_desc, (void**)&block));
      CHECK(cudnnGetFilterNdDescriptor(block_desc, 3, &type, &format, &rank, block_dims));
      fill(block, (size_t)block_dims[0] * block_dims[1] * block_dims[2], 0.8);
      CHECK(cudnnGetRNNLinLayerBiasParams(handle, rnn, layer, x_desc[0], w_desc, w, id, block_desc, (void**)&block));
      CHECK(cudnnGetFilterNdDescriptor(block_desc, 3, &type, &format, &rank, block_dims));
      fill(block, (size_t)block_dims[0] * block_dims[1] * block_dims[2], 0.8);
    }
  }

  CHECK(cudnnRNNForwardTraining(handle, rnn, kSteps, x_desc, x, state_desc, NULL, state_desc, NULL, w_desc, w, y_desc,
                                y, state_desc, NULL, state_desc, NULL, workspace, workspace_bytes, reserve,
                                reserve_bytes));
  CHECK(cudnnRNNBackwardData(handle, rnn, kSteps, y_desc, y, y_desc, dy, state_desc, NULL, state_desc, NULL, w_desc, w,
                             state_desc, NULL, state_desc, NULL, x_desc, dx, state_desc, NULL, state_desc, NULL,
                             workspace, workspace_bytes, reserve, reserve_bytes));
  CHECK(cudnnRNNBackwardWeights(handle, rnn, kSteps, x_desc, x, state_desc, NULL, y_desc, y, workspace, workspace_bytes,
                                w_desc, dw, reserve, reserve_bytes));

  for (t = 0; t < dims[0]; t += 97) {
    const double kept = w[t], step = 1e-5;
    double loss[2];
    int side;
    size_t i;
    for (side = 0; side < 2; ++side) {
      w[t] = kept + (side == 0 ? -step : step);
      CHECK(cudnnRNNForwardInference(handle, rnn, kSteps, x_desc, x, NULL, NULL, NULL, NULL, w_desc, w, y_desc, y, NULL,
                                     NULL, NULL, NULL, workspace, workspace_bytes));
      loss[side] = 0;
      for (i = 0; i < rows * width; ++i) loss[side] += y[i] * dy[i];
    }
    w[t] = kept;
    if (fabs((loss[1] - loss[0]) / (2 * step) - dw[t]) > 1e-7) {
      fprintf(stderr, "gradient of weight %d: %g, by differences %g\n", t, dw[t], (loss[1] - loss[0]) / (2 * step));
      return 1;
    }
  }

  for (t = 0; t < kSteps; ++t) {
    CHECK(cudnnDestroyTensorDescriptor(x_desc[t]));
    CHECK(cudnnDestroyTensorDescriptor(y_desc[t]));
  }
  CHECK(cudnnDestroyTensorDescriptor(state_desc));
  CHECK(cudnnDestroyFilterDescriptor(w_desc));
  CHECK(cudnnDestroyFilterDescriptor(block_desc));
  CHECK(cudnnDestroyRNNDescriptor(rnn));
  CHECK(cudnnDestroyDropoutDescriptor(dropout));
  CHECK(cudnnDestroy(handle));
  free(x), free(dx), free(y), free(dy), free(w), free(dw), free(workspace), free(reserve), free(states);
  puts("ok");
  return 0;
}
