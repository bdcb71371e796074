/* A C client of prnn_call.h: an LSTM over sequences of lengths 3, 2 and 1, a training step prepared once and run twice
 * on a CPU handle. Prints the sum of y and of the gradient of the weights. */
#include <prnn_call.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call)                                                        \
  do {                                                                     \
    prnnStatus_t status = (call);                                          \
    if (status != PRNN_STATUS_SUCCESS) {                                   \
      fprintf(stderr, "%s: %s\n", #call, prnnGetLastErrorMessage(handle)); \
      return 1;                                                            \
    }                                                                      \
  } while (0)

enum { kInput = 4, kHidden = 8, kSteps = 3 };

static float* filled(size_t count, float value) {
  float* made = malloc(count * sizeof(float));
  for (size_t i = 0; made != NULL && i < count; i++) made[i] = value * (float)(i % 7);
  return made;
}

static double sum_of(const float* values, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; i++) sum += values[i];
  return sum;
}

int main(void) {
  const int batch_sizes[kSteps] = {3, 2, 1};
  prnnHandle_t handle = NULL;
  prnnRNNDescriptor_t rnn;
  prnnRNNCall_t call;
  prnnRNNCallInfo_t info;
  CHECK(prnnCreateCPU(&handle));
  CHECK(prnnCreateRNNDescriptor(&rnn));
  CHECK(
      prnnSetRNNDescriptor(rnn, kHidden, 1, NULL, PRNN_LINEAR_INPUT, PRNN_UNIDIRECTIONAL, PRNN_LSTM, PRNN_DATA_FLOAT));
  CHECK(prnnPrepareRNN(handle, rnn, PRNN_FWD_MODE_TRAINING, kInput, kSteps, batch_sizes, &call));
  CHECK(prnnDestroyRNNDescriptor(rnn)); /* the call has a copy */
  CHECK(prnnGetRNNCallInfo(call, &info));

  const size_t weights = info.weightsSize / sizeof(float), outputs = info.rows * kHidden;
  float *x = filled(info.rows * kInput, 0.1f), *w = filled(weights, 0.05f), *y = filled(outputs, 0);
  float *dy = filled(outputs, 0.2f), *dx = filled(info.rows * kInput, 0), *dw = filled(weights, 0);
  void *workspace = malloc(info.workspaceSize), *reserve = malloc(info.reserveSize);
  if (x == NULL || w == NULL || y == NULL || dy == NULL || dx == NULL || dw == NULL || workspace == NULL ||
      reserve == NULL) {
    return 1;
  }

  prnnRNNForwardArgs_t forward = {0};
  forward.x = x, forward.w = w, forward.y = y;
  forward.workspace = workspace, forward.workspaceSize = info.workspaceSize;
  forward.reserve = reserve, forward.reserveSize = info.reserveSize;
  prnnRNNBackwardDataArgs_t data = {0};
  data.y = y, data.dy = dy, data.w = w, data.dx = dx;
  data.workspace = workspace, data.workspaceSize = info.workspaceSize;
  data.reserve = reserve, data.reserveSize = info.reserveSize;
  prnnRNNBackwardWeightsArgs_t gradient = {0};
  gradient.x = x, gradient.y = y, gradient.dw = dw;
  gradient.workspace = workspace, gradient.workspaceSize = info.workspaceSize;
  gradient.reserve = reserve, gradient.reserveSize = info.reserveSize;
  for (int step = 0; step < 2; step++) { /* the gradients of the second step are added to those of the first */
    CHECK(prnnRunRNNForward(call, &forward));
    CHECK(prnnRunRNNBackwardData(call, &data));
    CHECK(prnnRunRNNBackwardWeights(call, &gradient));
  }
  printf("%.6f %.6f\n", sum_of(y, outputs), sum_of(dw, weights));

  CHECK(prnnDestroyRNNCall(call));
  free(x), free(w), free(y), free(dy), free(dx), free(dw), free(workspace), free(reserve);
  return prnnDestroy(handle) != PRNN_STATUS_SUCCESS;
}
