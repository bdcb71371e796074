/* A C99 client, as somebody outside would write it: an LSTM layer forward and backward in double precision on a CPU
 * handle, checked against the equations of persistent_rnn.h and against differences, then the losses on lattices that
 * are small enough to know the answer. Prints "ok" and exits with 0. */
#include <math.h>
#include <persistent_rnn.h>
#include <prnn_losses.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kSteps = 3, kBatch = 2, kInput = 3, kHidden = 4, kGates = 4 };

static prnnHandle_t handle;

static void check(prnnStatus_t status, const char* call) {
  if (status == PRNN_STATUS_SUCCESS) return;
  fprintf(stderr, "%s: %s: %s\n", call, prnnGetErrorString(status), prnnGetLastErrorMessage(handle));
  exit(1);
}
#define CHECK(call) check(call, #call)

static void expect_close(const char* what, double got, double wanted, double tolerance) {
  if (fabs(got - wanted) <= tolerance) return;
  fprintf(stderr, "%s is %.17g and should be %.17g\n", what, got, wanted);
  exit(1);
}

static void* allocate(size_t bytes) {
  void* memory = calloc(bytes > 0 ? bytes : 1, 1);
  if (memory == NULL) exit(1);
  return memory;
}

static prnnTensorDescriptor_t describe(int a, int b, int c) {
  prnnTensorDescriptor_t descriptor;
  const int sizes[3] = {a, b, c}, strides[3] = {b * c, c, 1};
  CHECK(prnnCreateTensorDescriptor(&descriptor));
  CHECK(prnnSetTensorNdDescriptor(descriptor, PRNN_DATA_DOUBLE, 3, sizes, strides));
  return descriptor;
}

typedef struct {
  prnnRNNDescriptor_t rnn;
  prnnTensorDescriptor_t x[kSteps], y[kSteps], state;
  prnnFilterDescriptor_t w;
  double *weights, *input, *output, *reserve, *workspace;
  size_t weight_bytes, reserve_bytes, workspace_bytes;
} Layer;

/* The sum of all outputs, which are left in layer->output. */
static double forward(const Layer* layer) {
  double sum = 0;
  int i;
  CHECK(prnnRNNForwardTraining(handle, layer->rnn, kSteps, layer->x, layer->input, NULL, NULL, NULL, NULL, layer->w,
                               layer->weights, layer->y, layer->output, NULL, NULL, NULL, NULL, layer->workspace,
                               layer->workspace_bytes, layer->reserve, layer->reserve_bytes));
  for (i = 0; i < kSteps * kBatch * kHidden; i++) sum += layer->output[i];
  return sum;
}

static double* parameter(const Layer* layer, int bias, int id) {
  prnnFilterDescriptor_t descriptor;
  void* found;
  CHECK(prnnCreateFilterDescriptor(&descriptor));
  if (bias)
    CHECK(prnnGetRNNLinLayerBiasParams(handle, layer->rnn, 0, layer->x[0], layer->w, layer->weights, id, descriptor,
                                       &found));
  else
    CHECK(prnnGetRNNLinLayerMatrixParams(handle, layer->rnn, 0, layer->x[0], layer->w, layer->weights, id, descriptor,
                                         &found));
  CHECK(prnnDestroyFilterDescriptor(descriptor));
  return found;
}

/* Output of one unit of one sequence by the equations, with the states before the step. */
static double lstm_unit(const Layer* layer, const double* x, const double* h, double* c, int unit) {
  double gate[kGates];
  int g, k;
  for (g = 0; g < kGates; g++) {
    gate[g] = parameter(layer, 1, g)[unit] + parameter(layer, 1, g + kGates)[unit];
    for (k = 0; k < kInput; k++) gate[g] += parameter(layer, 0, g)[unit * kInput + k] * x[k];
    for (k = 0; k < kHidden; k++) gate[g] += parameter(layer, 0, g + kGates)[unit * kHidden + k] * h[k];
    gate[g] = g == 2 ? tanh(gate[g]) : 1 / (1 + exp(-gate[g]));
  }
  *c = gate[1] * *c + gate[0] * gate[2];
  return gate[3] * tanh(*c);
}

static void test_lstm(void) {
  Layer layer;
  int sizes[3] = {0, 1, 1}, i, n, t;
  double h[kBatch][kHidden] = {{0}}, c[kBatch][kHidden] = {{0}};
  double *dy, *dx, *dw;
  CHECK(prnnCreateRNNDescriptor(&layer.rnn));
  CHECK(prnnSetRNNDescriptor(layer.rnn, kHidden, 1, NULL, PRNN_LINEAR_INPUT, PRNN_UNIDIRECTIONAL, PRNN_LSTM,
                             PRNN_DATA_DOUBLE));
  for (t = 0; t < kSteps; t++) {
    layer.x[t] = describe(kBatch, kInput, 1);
    layer.y[t] = describe(kBatch, kHidden, 1);
  }
  CHECK(prnnGetRNNParamsSize(handle, layer.rnn, layer.x[0], &layer.weight_bytes, PRNN_DATA_DOUBLE));
  CHECK(prnnGetRNNWorkspaceSize(handle, layer.rnn, kSteps, layer.x, &layer.workspace_bytes));
  CHECK(prnnGetRNNTrainingReserveSize(handle, layer.rnn, kSteps, layer.x, &layer.reserve_bytes));
  CHECK(prnnCreateFilterDescriptor(&layer.w));
  sizes[0] = (int)(layer.weight_bytes / sizeof(double));
  CHECK(prnnSetFilterNdDescriptor(layer.w, PRNN_DATA_DOUBLE, PRNN_TENSOR_NCHW, 3, sizes));
  layer.weights = allocate(layer.weight_bytes);
  layer.workspace = allocate(layer.workspace_bytes);
  layer.reserve = allocate(layer.reserve_bytes);
  layer.input = allocate(sizeof(double) * kSteps * kBatch * kInput);
  layer.output = allocate(sizeof(double) * kSteps * kBatch * kHidden);
  for (i = 0; i < sizes[0]; i++) layer.weights[i] = 0.5 * sin(i + 1.0);
  for (i = 0; i < kSteps * kBatch * kInput; i++) layer.input[i] = cos(i + 1.0);

  forward(&layer);
  for (t = 0; t < kSteps; t++) {
    for (n = 0; n < kBatch; n++) {
      double next[kHidden];
      for (i = 0; i < kHidden; i++) {
        next[i] = lstm_unit(&layer, layer.input + (t * kBatch + n) * kInput, h[n], &c[n][i], i);
        expect_close("an output of the LSTM", layer.output[(t * kBatch + n) * kHidden + i], next[i], 1e-12);
      }
      memcpy(h[n], next, sizeof next);
    }
  }

  dy = allocate(sizeof(double) * kSteps * kBatch * kHidden);
  dx = allocate(sizeof(double) * kSteps * kBatch * kInput);
  dw = allocate(layer.weight_bytes);
  for (i = 0; i < kSteps * kBatch * kHidden; i++) dy[i] = 1;
  CHECK(prnnRNNBackwardData(handle, layer.rnn, kSteps, layer.y, layer.output, layer.y, dy, NULL, NULL, NULL, NULL,
                            layer.w, layer.weights, NULL, NULL, NULL, NULL, layer.x, dx, NULL, NULL, NULL, NULL,
                            layer.workspace, layer.workspace_bytes, layer.reserve, layer.reserve_bytes));
  CHECK(prnnRNNBackwardWeights(handle, layer.rnn, kSteps, layer.x, layer.input, NULL, NULL, layer.y, layer.output,
                               layer.workspace, layer.workspace_bytes, layer.w, dw, layer.reserve,
                               layer.reserve_bytes));
  for (i = 0; i < sizes[0] + kSteps * kBatch * kInput; i++) {
    double* at = i < sizes[0] ? layer.weights + i : layer.input + (i - sizes[0]);
    const double got = i < sizes[0] ? dw[i] : dx[i - sizes[0]], kept = *at, step = 1e-5;
    double difference;
    *at = kept + step;
    difference = forward(&layer);
    *at = kept - step;
    difference -= forward(&layer);
    *at = kept;
    expect_close("a gradient of the LSTM", got, difference / (2 * step), 1e-8);
  }

  for (t = 0; t < kSteps; t++) {
    CHECK(prnnDestroyTensorDescriptor(layer.x[t]));
    CHECK(prnnDestroyTensorDescriptor(layer.y[t]));
  }
  CHECK(prnnDestroyFilterDescriptor(layer.w));
  CHECK(prnnDestroyRNNDescriptor(layer.rnn));
  free(layer.weights);
  free(layer.workspace);
  free(layer.reserve);
  free(layer.input);
  free(layer.output);
  free(dy);
  free(dx);
  free(dw);
}

/* One frame and one symbol: the path emits it, so that the cost is its negative log-probability, and the gradient is
 * the softmax less one at the symbol. */
static void test_ctc(void) {
  const double logits[3] = {0.1, 0.9, -0.4};
  const int target = 1, frames = 1, length = 1;
  const double total = exp(logits[0]) + exp(logits[1]) + exp(logits[2]);
  double cost = 0, gradients[3];
  prnnCTCLossOptions_t options;
  size_t bytes, reserve_bytes;
  void* workspace;
  int v;
  CHECK(prnnInitCTCLossOptions(&options));
  options.dataType = PRNN_DATA_DOUBLE;
  options.maxFrames = options.batch = options.maxTargets = 1;
  options.classes = 3;
  CHECK(prnnGetCTCLossWorkspaceSize(handle, &options, &bytes));
  CHECK(prnnGetCTCLossReserveSize(handle, &options, &reserve_bytes));
  bytes += reserve_bytes;
  workspace = allocate(bytes);
  CHECK(prnnCTCLoss(handle, &options, logits, &target, &frames, &length, &cost, gradients, workspace, bytes));
  expect_close("the CTC cost", cost, log(total) - logits[1], 1e-12);
  for (v = 0; v < 3; v++) expect_close("a CTC gradient", gradients[v], exp(logits[v]) / total - (v == 1), 1e-12);
  free(workspace);
}

/* One frame and one symbol: the symbol, and then the blank. */
static void test_rnnt(void) {
  const double logits[2][2] = {{0.3, -0.2}, {1.1, 0.4}}; /* [u][v], the blank is 0 */
  const int target = 1, frames = 1, length = 1;
  double cost = 0, gradients[4];
  prnnRNNTLossOptions_t options;
  size_t bytes, reserve_bytes;
  void* workspace;
  CHECK(prnnInitRNNTLossOptions(&options));
  options.dataType = PRNN_DATA_DOUBLE;
  options.batch = options.maxFrames = options.maxTargets = 1;
  options.classes = 2;
  CHECK(prnnGetRNNTLossWorkspaceSize(handle, &options, &bytes));
  CHECK(prnnGetRNNTLossReserveSize(handle, &options, &reserve_bytes));
  bytes += reserve_bytes;
  workspace = allocate(bytes);
  CHECK(prnnRNNTLoss(handle, &options, logits, &target, &frames, &length, NULL, &cost, gradients, workspace, bytes));
  expect_close("the RNN-T cost", cost,
               log(1 + exp(logits[0][0] - logits[0][1])) + log(1 + exp(logits[1][1] - logits[1][0])), 1e-12);
  expect_close("an RNN-T gradient", gradients[0], 1 / (1 + exp(logits[0][1] - logits[0][0])), 1e-12);
  free(workspace);
}

int main(void) {
  if (prnnGetVersion() != PRNN_VERSION) return 1;
  CHECK(prnnCreateCPU(&handle));
  test_lstm();
  test_ctc();
  test_rnnt();
  if (prnnGetRNNParamsSize(handle, NULL, NULL, NULL, PRNN_DATA_FLOAT) == PRNN_STATUS_SUCCESS) return 1;
  if (strlen(prnnGetLastErrorMessage(handle)) == 0) return 1;
  CHECK(prnnDestroy(handle));
  puts("ok");
  return 0;
}
