/* A client of cuDNN 8 and 9: training steps of a stacked bidirectional LSTM with a projection, over sequences of
 * different lengths in all three layouts, written as against cudnn.h. Checks that the layouts agree, that padding is
 * zero, and gradients by central differences; prints "ok". */
#include <compat/cudnn_rnn_v8.h>
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

enum { kSteps = 5, kBatch = 4, kInput = 3, kHidden = 6, kProjection = 4, kLayers = 2, kDirections = 2 };
enum { kWidth = kProjection * kDirections, kStates = kLayers * kDirections * kBatch, kRows = 11 };
static const int kLengths[kBatch] = {2, 4, 1, 4}; /* in any order */
static const int kOrder[kBatch] = {1, 3, 0, 2};   /* from long to short */
static const int kSorted[kBatch] = {4, 4, 2, 1};

static cudnnHandle_t handle;
static cudnnRNNDescriptor_t rnn;
static cudnnTensorDescriptor_t h_desc, c_desc;

static double* make(size_t count) { return (double*)calloc(count, sizeof(double)); }

static void fill(double* values, size_t count) {
  size_t i;
  for (i = 0; i < count; ++i) values[i] = (double)rand() / RAND_MAX - 0.5;
}

static void set_tensor(cudnnTensorDescriptor_t* descriptor, int third) {
  const int dims[3] = {kLayers * kDirections, kBatch, third}, strides[3] = {kBatch * third, third, 1};
  CHECK(cudnnCreateTensorDescriptor(descriptor));
  CHECK(cudnnSetTensorNdDescriptor(*descriptor, CUDNN_DATA_DOUBLE, 3, dims, strides));
}

/* A training step over x of one layout. What the caller gives in the sequences' own order is {N, T, width}. */
typedef struct {
  double *y, *dx, *hy, *dhx, *dw;
} Step;

/* Where element v of sequence n, timestep t lies; -1 beyond its length in a packed layout. */
static long place(cudnnRNNDataLayout_t layout, int n, int t, int v, int width) {
  long row = 0;
  int i, j;
  if (layout == CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED) return ((long)n * kSteps + t) * width + v;
  if (layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED) return ((long)t * kBatch + n) * width + v;
  if (t >= kSorted[n]) return -1; /* packed: n counts from long to short */
  for (i = 0; i < t; ++i)
    for (j = 0; j < kBatch; ++j) row += kSorted[j] > i;
  return (row + n) * width + v;
}

static double* arrange(cudnnRNNDataLayout_t layout, const double* values, int width) {
  double* out = make((size_t)kBatch * kSteps * (size_t)width);
  int n, t, v;
  for (n = 0; n < kBatch; ++n)
    for (t = 0; t < kSteps; ++t)
      for (v = 0; v < width; ++v) {
        const int sequence = layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED ? kOrder[n] : n;
        const long at = place(layout, n, t, v, width);
        if (at >= 0) out[at] = values[(sequence * kSteps + t) * width + v];
      }
  return out;
}

static void bring_back(cudnnRNNDataLayout_t layout, const double* values, int width, double* out) {
  int n, t, v;
  for (n = 0; n < kBatch; ++n)
    for (t = 0; t < kSteps; ++t)
      for (v = 0; v < width; ++v) {
        const int sequence = layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED ? kOrder[n] : n;
        const long at = place(layout, n, t, v, width);
        out[(sequence * kSteps + t) * width + v] = at >= 0 ? values[at] : 0;
      }
}

/* States {L D, N, width}, sorted for the packed layout or sorted back. */
static double* arrange_states(cudnnRNNDataLayout_t layout, const double* values, int width, int back) {
  double* out = make((size_t)kStates * (size_t)width);
  int layer, n;
  for (layer = 0; layer < kLayers * kDirections; ++layer)
    for (n = 0; n < kBatch; ++n) {
      const int sequence = layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED ? kOrder[n] : n;
      const int from = back ? n : sequence, to = back ? sequence : n;
      memcpy(out + (layer * kBatch + to) * width, values + (layer * kBatch + from) * width,
             sizeof(double) * (size_t)width);
    }
  return out;
}

static Step run(cudnnRNNDataLayout_t layout, const double* x_in, const double* dy_in, const double* hx_in,
                const double* dhy_in, const double* w, size_t w_bytes) {
  const int is_packed = layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED;
  cudnnRNNDataDescriptor_t x_desc, y_desc;
  double *x = arrange(layout, x_in, kInput), *dy = arrange(layout, dy_in, kWidth),
         *hx = arrange_states(layout, hx_in, kProjection, 0), *dhy = arrange_states(layout, dhy_in, kProjection, 0);
  double *y = make(kBatch * kSteps * kWidth), *dx = make(kBatch * kSteps * kInput), *hy = make(kStates * kProjection),
         *dhx = make(kStates * kProjection), *inferred = make(kBatch * kSteps * kWidth);
  void *workspace, *reserve;
  size_t workspace_bytes, reserve_bytes, least_bytes;
  Step step;
  int i;
  for (i = 0; i < kBatch * kSteps * kWidth; ++i) y[i] = inferred[i] = 7; /* padding is written */
  CHECK(cudnnCreateRNNDataDescriptor(&x_desc));
  CHECK(cudnnCreateRNNDataDescriptor(&y_desc));
  CHECK(cudnnSetRNNDataDescriptor(x_desc, CUDNN_DATA_DOUBLE, layout, kSteps, kBatch, kInput,
                                  is_packed ? kSorted : kLengths, NULL));
  CHECK(cudnnSetRNNDataDescriptor(y_desc, CUDNN_DATA_DOUBLE, layout, kSteps, kBatch, kWidth,
                                  is_packed ? kSorted : kLengths, NULL));
  CHECK(cudnnGetRNNTempSpaceSizes(handle, rnn, CUDNN_FWD_MODE_INFERENCE, x_desc, &least_bytes, &reserve_bytes));
  EXPECT(reserve_bytes == 0);
  CHECK(cudnnGetRNNTempSpaceSizes(handle, rnn, CUDNN_FWD_MODE_TRAINING, x_desc, &workspace_bytes, &reserve_bytes));
  EXPECT(least_bytes <= workspace_bytes);
  workspace = malloc(workspace_bytes), reserve = malloc(reserve_bytes);
  CHECK(cudnnRNNForward(handle, rnn, CUDNN_FWD_MODE_INFERENCE, NULL, x_desc, x, y_desc, inferred, h_desc, hx, NULL,
                        c_desc, NULL, NULL, w_bytes, w, least_bytes, workspace, 0, NULL));
  CHECK(cudnnRNNForward(handle, rnn, CUDNN_FWD_MODE_TRAINING, NULL, x_desc, x, y_desc, y, h_desc, hx, hy, c_desc, NULL,
                        NULL, w_bytes, w, workspace_bytes, workspace, reserve_bytes, reserve));
  step.y = make(kBatch * kSteps * kWidth), step.dx = make(kBatch * kSteps * kInput), step.dw = make(w_bytes / 8);
  bring_back(layout, inferred, kWidth, step.y);
  CHECK(cudnnRNNBackwardData_v8(handle, rnn, NULL, y_desc, y, dy, x_desc, dx, h_desc, hx, dhy, dhx, c_desc, NULL, NULL,
                                NULL, w_bytes, w, workspace_bytes, workspace, reserve_bytes, reserve));
  CHECK(cudnnRNNBackwardWeights_v8(handle, rnn, CUDNN_WGRAD_MODE_ADD, NULL, x_desc, x, h_desc, hx, y_desc, y, w_bytes,
                                   step.dw, workspace_bytes, workspace, reserve_bytes, reserve));
  for (i = 0; i < (is_packed ? (int)kRows : kBatch * kSteps) * kWidth; ++i) EXPECT(inferred[i] == y[i]);
  bring_back(layout, y, kWidth, step.y);
  bring_back(layout, dx, kInput, step.dx);
  step.hy = arrange_states(layout, hy, kProjection, 1), step.dhx = arrange_states(layout, dhx, kProjection, 1);
  CHECK(cudnnDestroyRNNDataDescriptor(x_desc));
  CHECK(cudnnDestroyRNNDataDescriptor(y_desc));
  free(x), free(dy), free(hx), free(dhy), free(y), free(dx), free(hy), free(dhx), free(inferred);
  free(workspace), free(reserve);
  return step;
}

static void release(Step step) { free(step.y), free(step.dx), free(step.hy), free(step.dhx), free(step.dw); }

static double dot(const double* a, const double* b, size_t count) {
  double sum = 0;
  size_t i;
  for (i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

static void expect_same(const double* a, const double* b, size_t count) {
  size_t i;
  for (i = 0; i < count; ++i) EXPECT(fabs(a[i] - b[i]) < 1e-12);
}

static void check_refusals(void) {
  const double fill_value = 1;
  const int wrong[kBatch] = {2, 0, 1, 4};
  cudnnRNNDataDescriptor_t data;
  cudnnRNNDataLayout_t layout;
  cudnnRNNDescriptor_t other;
  int32_t hidden, layers;
  int steps, lengths[kBatch];
  CHECK(cudnnCreateRNNDataDescriptor(&data));
  EXPECT(cudnnGetRNNDataDescriptor(data, NULL, &layout, NULL, NULL, NULL, 0, NULL, NULL) == CUDNN_STATUS_BAD_PARAM);
  EXPECT(cudnnSetRNNDataDescriptor(data, CUDNN_DATA_FLOAT, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED, kSteps, kBatch, 1,
                                   kLengths, NULL) == CUDNN_STATUS_BAD_PARAM);
  EXPECT(cudnnSetRNNDataDescriptor(data, CUDNN_DATA_FLOAT, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED, kSteps, kBatch, 1,
                                   wrong, NULL) == CUDNN_STATUS_BAD_PARAM);
  EXPECT(cudnnSetRNNDataDescriptor(data, CUDNN_DATA_DOUBLE, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED, kSteps, kBatch, 1,
                                   kLengths, (void*)&fill_value) == CUDNN_STATUS_NOT_SUPPORTED);
  CHECK(cudnnSetRNNDataDescriptor(data, CUDNN_DATA_FLOAT, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED, kSteps, kBatch, 1,
                                  kLengths, NULL));
  CHECK(cudnnGetRNNDataDescriptor(data, NULL, &layout, &steps, NULL, NULL, kBatch, lengths, NULL));
  EXPECT(layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED && steps == kSteps && lengths[1] == kLengths[1]);
  CHECK(cudnnDestroyRNNDataDescriptor(data));
  CHECK(cudnnCreateRNNDescriptor(&other));
  EXPECT(cudnnGetRNNDescriptor_v8(other, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, &hidden, NULL, NULL,
                                  NULL, NULL) == CUDNN_STATUS_BAD_PARAM);
  EXPECT(cudnnSetRNNDescriptor_v8(other, CUDNN_RNN_ALGO_STANDARD, CUDNN_GRU, CUDNN_RNN_NO_BIAS, CUDNN_UNIDIRECTIONAL,
                                  CUDNN_LINEAR_INPUT, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, CUDNN_FMA_MATH, 4, 8, 8, 1,
                                  NULL, CUDNN_RNN_PADDED_IO_ENABLED) == CUDNN_STATUS_NOT_SUPPORTED);
  EXPECT(cudnnSetRNNDescriptor_v8(other, CUDNN_RNN_ALGO_PERSIST_DYNAMIC, CUDNN_GRU, CUDNN_RNN_DOUBLE_BIAS,
                                  CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT,
                                  CUDNN_FMA_MATH, 4, 8, 8, 1, NULL, 0) == CUDNN_STATUS_NOT_SUPPORTED);
  CHECK(cudnnSetRNNDescriptor_v8(other, CUDNN_RNN_ALGO_STANDARD, CUDNN_GRU, CUDNN_RNN_DOUBLE_BIAS, CUDNN_UNIDIRECTIONAL,
                                 CUDNN_LINEAR_INPUT, CUDNN_DATA_BFLOAT16, CUDNN_DATA_FLOAT, CUDNN_DEFAULT_MATH, 4, 8, 8,
                                 3, NULL, 0));
  CHECK(cudnnGetRNNDescriptor_v8(other, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, &hidden, NULL, &layers,
                                 NULL, NULL));
  EXPECT(hidden == 8 && layers == 3);
  CHECK(cudnnRNNSetClip_v8(other, CUDNN_RNN_CLIP_NONE, CUDNN_NOT_PROPAGATE_NAN, 0, 0));
  EXPECT(cudnnRNNSetClip_v9(other, CUDNN_RNN_CLIP_MINMAX, -1, 1) == CUDNN_STATUS_NOT_SUPPORTED);
  CHECK(cudnnDestroyRNNDescriptor(other));
}

int main(void) {
  const cudnnRNNDataLayout_t layouts[3] = {CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED,
                                           CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED,
                                           CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED};
  cudnnDropoutDescriptor_t dropout;
  cudnnTensorDescriptor_t matrix_desc, bias_desc;
  cudnnDataType_t type;
  size_t w_bytes, states_bytes, found = 0, i;
  double *x = make(kBatch * kSteps * kInput), *dy = make(kBatch * kSteps * kWidth), *hx = make(kStates * kProjection),
         *dhy = make(kStates * kProjection), *w;
  void* states;
  Step steps[3];
  int layout, layer, id, n, t, v, rank, dims[3], strides[3];

  if (cudnnGetVersion() != CUDNN_VERSION || CUDNN_VERSION < 8000) return 1;
  CHECK(cudnnCreate(&handle));
  CHECK(cudnnSetStream(handle, NULL));
  check_refusals();
  CHECK(cudnnCreateDropoutDescriptor(&dropout));
  CHECK(cudnnDropoutGetStatesSize(handle, &states_bytes));
  states = malloc(states_bytes);
  CHECK(cudnnSetDropoutDescriptor(dropout, handle, 0, states, states_bytes, 1337));
  CHECK(cudnnCreateRNNDescriptor(&rnn));
  CHECK(cudnnSetRNNDescriptor_v8(rnn, CUDNN_RNN_ALGO_STANDARD, CUDNN_LSTM, CUDNN_RNN_DOUBLE_BIAS, CUDNN_BIDIRECTIONAL,
                                 CUDNN_LINEAR_INPUT, CUDNN_DATA_DOUBLE, CUDNN_DATA_DOUBLE, CUDNN_DEFAULT_MATH, kInput,
                                 kHidden, kProjection, kLayers, dropout, CUDNN_RNN_PADDED_IO_ENABLED));
  set_tensor(&h_desc, kProjection);
  set_tensor(&c_desc, kHidden);
  CHECK(cudnnGetRNNWeightSpaceSize(handle, rnn, &w_bytes));
  w = make(w_bytes / sizeof(double));

  /* All weights are found, once each, and filled through their addresses. */
  CHECK(cudnnCreateTensorDescriptor(&matrix_desc));
  CHECK(cudnnCreateTensorDescriptor(&bias_desc));
  for (layer = 0; layer < kLayers * kDirections; ++layer)
    for (id = 0; id < 9; ++id) {
      void *matrix, *bias;
      CHECK(cudnnGetRNNWeightParams(handle, rnn, layer, w_bytes, w, id, matrix_desc, &matrix, bias_desc, &bias));
      CHECK(cudnnGetTensorNdDescriptor(matrix_desc, 3, &type, &rank, dims, strides));
      EXPECT(rank == 3 && dims[0] == 1 && dims[1] == (id == 8 ? (int)kProjection : (int)kHidden));
      EXPECT(dims[2] == (id == 8               ? (int)kHidden
                         : id >= 4             ? (int)kProjection
                         : layer < kDirections ? (int)kInput
                                               : (int)kWidth));
      fill((double*)matrix, (size_t)dims[1] * (size_t)dims[2]);
      found += (size_t)dims[1] * (size_t)dims[2];
      EXPECT((bias == NULL) == (id == 8));
      if (bias != NULL) fill((double*)bias, kHidden), found += kHidden;
    }
  EXPECT(found * sizeof(double) == w_bytes);
  for (i = 0; i < w_bytes / sizeof(double); ++i) EXPECT(w[i] != 0);

  fill(x, kBatch * kSteps * kInput), fill(hx, kStates * kProjection), fill(dhy, kStates * kProjection);
  for (n = 0; n < kBatch; ++n)
    for (t = 0; t < kSteps; ++t) {
      if (t < kLengths[n]) fill(dy + (n * kSteps + t) * kWidth, kWidth);
      for (v = 0; t >= kLengths[n] && v < kInput; ++v) x[(n * kSteps + t) * kInput + v] = NAN; /* never read */
    }
  for (layout = 0; layout < 3; ++layout) steps[layout] = run(layouts[layout], x, dy, hx, dhy, w, w_bytes);
  for (layout = 1; layout < 3; ++layout) {
    expect_same(steps[layout].y, steps[0].y, kBatch * kSteps * kWidth);
    expect_same(steps[layout].dx, steps[0].dx, kBatch * kSteps * kInput);
    expect_same(steps[layout].hy, steps[0].hy, kStates * kProjection);
    expect_same(steps[layout].dhx, steps[0].dhx, kStates * kProjection);
    expect_same(steps[layout].dw, steps[0].dw, w_bytes / sizeof(double));
  }
  for (n = 0; n < kBatch; ++n)
    for (t = kLengths[n]; t < kSteps; ++t) {
      for (v = 0; v < kWidth; ++v) EXPECT(steps[0].y[(n * kSteps + t) * kWidth + v] == 0);
      for (v = 0; v < kInput; ++v) EXPECT(steps[0].dx[(n * kSteps + t) * kInput + v] == 0);
    }

  /* Checks gradients of loss = sum(dy * y) + sum(dhy * hy): some weights, some inputs, some initial states. */
  for (i = 0; i < 30; ++i) {
    const size_t weight = i * 37 % (w_bytes / sizeof(double)), state = i * 11 % (kStates * kProjection);
    const int sequence = (int)i % kBatch, input = (sequence * kSteps + (int)i % kLengths[sequence]) * kInput;
    double* const places[3] = {w + weight, x + input, hx + state};
    const double gradients[3] = {steps[0].dw[weight], steps[0].dx[input], steps[0].dhx[state]};
    for (v = 0; v < 3; ++v) {
      const double before = *places[v], delta = 1e-6;
      double losses[2];
      int side;
      for (side = 0; side < 2; ++side) {
        Step step;
        *places[v] = before + (side ? delta : -delta);
        step = run(layouts[0], x, dy, hx, dhy, w, w_bytes);
        losses[side] = dot(dy, step.y, kBatch * kSteps * kWidth) + dot(dhy, step.hy, kStates * kProjection);
        release(step);
      }
      *places[v] = before;
      EXPECT(fabs((losses[1] - losses[0]) / (2 * delta) - gradients[v]) < 1e-7);
    }
  }
  for (layout = 0; layout < 3; ++layout) release(steps[layout]);
  CHECK(cudnnDestroyTensorDescriptor(matrix_desc));
  CHECK(cudnnDestroyTensorDescriptor(bias_desc));
  CHECK(cudnnDestroyTensorDescriptor(h_desc));
  CHECK(cudnnDestroyTensorDescriptor(c_desc));
  CHECK(cudnnDestroyRNNDescriptor(rnn));
  CHECK(cudnnDestroyDropoutDescriptor(dropout));
  CHECK(cudnnDestroy(handle));
  free(x), free(dy), free(hx), free(dhy), free(w), free(states);
  puts("ok");
  return 0;
}
