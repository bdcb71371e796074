/* A client of warp-transducer. Two sequences whose costs are known without a recursion, batch-first and time-first;
 * prints "ok". */
#include <compat/warp_transducer.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kBatch = 2, kFrames = 2, kWidth = 2, kClasses = 3 };

#define EXPECT(condition)                                                   \
  do {                                                                      \
    if (!(condition)) {                                                     \
      fprintf(stderr, "line %d: %s does not hold\n", __LINE__, #condition); \
      return 1;                                                             \
    }                                                                       \
  } while (0)

static double log_probs[kBatch][kFrames][kWidth][kClasses];

static double p(int n, int t, int u, int k) { return exp(log_probs[n][t][u][k]); }

int main(void) {
  /* Sequence 0: label 2 in frame 0 or in frame 1. Sequence 1: one frame, no label. */
  const int labels[] = {2, 0}, label_lengths[] = {1, 0}, input_lengths[] = {2, 1};
  double costs64[kBatch], gradients64[kBatch][kFrames][kWidth][kClasses];
  float activations[kBatch][kFrames][kWidth][kClasses], costs[kBatch];
  double time_first[kFrames][kWidth][kBatch][kClasses], time_first_gradients[kFrames][kWidth][kBatch][kClasses];
  const int bad_labels[] = {kClasses, 0}, bad_lengths[] = {kFrames + 1, 1};
  double early, late, expected[kBatch];
  rnntOptions options;
  size_t bytes = 0, bytes64 = 0;
  void* workspace;
  int i, k, n, t, u;

  for (i = 0; i < kBatch * kFrames * kWidth; ++i) {
    double* cell = &log_probs[0][0][0][0] + (size_t)i * kClasses;
    double sum = 0;
    for (k = 0; k < kClasses; ++k) sum += exp(cell[k] = 4.0 * rand() / RAND_MAX - 2);
    for (k = 0; k < kClasses; ++k) {
      cell[k] -= log(sum);
      (&activations[0][0][0][0])[i * kClasses + k] = (float)cell[k];
    }
  }
  early = p(0, 0, 0, 2) * p(0, 0, 1, 0) * p(0, 1, 1, 0);
  late = p(0, 0, 0, 0) * p(0, 1, 0, 2) * p(0, 1, 1, 0);
  expected[0] = -log(early + late);
  expected[1] = -log(p(1, 0, 0, 0));

  memset(&options, 0, sizeof options);
  options.loc = RNNT_CPU;
  options.maxT = kFrames;
  options.maxU = kWidth;
  options.batch_first = true;
  EXPECT(get_warprnnt_version() == 1);
  options.stream = (prnnStream_t)(void*)&options;
  options.num_threads = 1;
  EXPECT(options.stream == (prnnStream_t)(void*)&options); /* members of their own, as clients set both */
  EXPECT(get_workspace_size(kFrames, kWidth, kBatch, false, &bytes) == RNNT_STATUS_SUCCESS);
#ifdef __cplusplus
  EXPECT(get_workspace_size(kFrames, kWidth, kBatch, false, &bytes64, sizeof(double)) == RNNT_STATUS_SUCCESS);
  EXPECT(bytes64 >= bytes);
  bytes = bytes64;
#else
  (void)bytes64;
#endif
  workspace = malloc(bytes);
  EXPECT(compute_rnnt_loss(&activations[0][0][0][0], NULL, labels, label_lengths, input_lengths, kClasses, kBatch,
                           costs, workspace, options) == RNNT_STATUS_SUCCESS);
  EXPECT(compute_rnnt_loss_fp64(&log_probs[0][0][0][0], &gradients64[0][0][0][0], labels, label_lengths, input_lengths,
                                kClasses, kBatch, costs64, workspace, options) == RNNT_STATUS_SUCCESS);
  for (i = 0; i < kBatch; ++i) {
    EXPECT(fabs(costs[i] - expected[i]) < 1e-5);
    EXPECT(fabs(costs64[i] - expected[i]) < 1e-12);
  }
  EXPECT(fabs(gradients64[0][0][0][2] + early / (early + late)) < 1e-12);
  EXPECT(fabs(gradients64[0][1][0][2] + late / (early + late)) < 1e-12);
  EXPECT(fabs(gradients64[0][1][1][0] + 1) < 1e-12);
  EXPECT(fabs(gradients64[1][0][0][0] + 1) < 1e-12);
  EXPECT(gradients64[0][0][0][1] == 0 && gradients64[1][1][0][0] == 0);

  for (n = 0; n < kBatch; ++n) {
    for (t = 0; t < kFrames; ++t) {
      for (u = 0; u < kWidth; ++u) memcpy(time_first[t][u][n], log_probs[n][t][u], sizeof time_first[t][u][n]);
    }
  }
  options.batch_first = false;
  memset(costs64, 0, sizeof costs64);
  EXPECT(compute_rnnt_loss_fp64(&time_first[0][0][0][0], NULL, labels, label_lengths, input_lengths, kClasses, kBatch,
                                costs64, workspace, options) == RNNT_STATUS_SUCCESS);
  for (i = 0; i < kBatch; ++i) EXPECT(fabs(costs64[i] - expected[i]) < 1e-12);
  memset(costs64, 0, sizeof costs64);
  memset(time_first_gradients, -1, sizeof time_first_gradients);
  EXPECT(compute_rnnt_loss_fp64(&time_first[0][0][0][0], &time_first_gradients[0][0][0][0], labels, label_lengths,
                                input_lengths, kClasses, kBatch, costs64, workspace, options) == RNNT_STATUS_SUCCESS);
  for (i = 0; i < kBatch; ++i) EXPECT(fabs(costs64[i] - expected[i]) < 1e-12);
  for (n = 0; n < kBatch; ++n) {
    for (t = 0; t < kFrames; ++t) {
      for (u = 0; u < kWidth; ++u) {
        for (k = 0; k < kClasses; ++k) {
          EXPECT(fabs(time_first_gradients[t][u][n][k] - gradients64[n][t][u][k]) < 1e-15);
        }
      }
    }
  }
  EXPECT(compute_rnnt_loss_fp64(&time_first[0][0][0][0], NULL, bad_labels, label_lengths, input_lengths, kClasses,
                                kBatch, costs64, workspace, options) == RNNT_STATUS_INVALID_VALUE);
  EXPECT(compute_rnnt_loss_fp64(&time_first[0][0][0][0], NULL, labels, label_lengths, bad_lengths, kClasses, kBatch,
                                costs64, workspace, options) == RNNT_STATUS_INVALID_VALUE);
  EXPECT(compute_rnnt_loss_fp64(&time_first[0][0][0][0], NULL, labels, bad_lengths, input_lengths, kClasses, kBatch,
                                costs64, workspace, options) == RNNT_STATUS_INVALID_VALUE);
  EXPECT(compute_rnnt_loss_fp64(NULL, NULL, labels, label_lengths, input_lengths, kClasses, kBatch, costs64, workspace,
                                options) == RNNT_STATUS_INVALID_VALUE);
  options.batch_first = true;
  options.blank_label = kClasses;
  EXPECT(compute_rnnt_loss(&activations[0][0][0][0], NULL, labels, label_lengths, input_lengths, kClasses, kBatch,
                           costs, workspace, options) == RNNT_STATUS_INVALID_VALUE);
  EXPECT(get_workspace_size(0, kWidth, kBatch, false, &bytes) == RNNT_STATUS_INVALID_VALUE);
  EXPECT(get_workspace_size(kFrames, kWidth, kBatch, false, NULL) == RNNT_STATUS_INVALID_VALUE);
  for (i = RNNT_STATUS_SUCCESS; i <= RNNT_STATUS_UNKNOWN_ERROR; ++i) {
    EXPECT(strlen(rnntGetStatusString((rnntStatus_t)i)) > 0);
  }
  free(workspace);
  puts("ok");
  return 0;
}
