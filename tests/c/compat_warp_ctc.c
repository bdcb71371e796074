/* A client of warp-ctc. Three sequences whose costs are known without a recursion; prints "ok". */
#include <compat/warp_ctc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kFrames = 3, kBatch = 3, kClasses = 4 };

#define EXPECT(condition)                                                   \
  do {                                                                      \
    if (!(condition)) {                                                     \
      fprintf(stderr, "line %d: %s does not hold\n", __LINE__, #condition); \
      return 1;                                                             \
    }                                                                       \
  } while (0)

static double logits[kFrames][kBatch][kClasses];

/* Probability of class k in frame t of sequence n. */
static double p(int t, int n, int k) {
  double sum = 0;
  int i;
  for (i = 0; i < kClasses; ++i) sum += exp(logits[t][n][i]);
  return exp(logits[t][n][k]) / sum;
}

int main(void) {
  /* Sequence 0 has as many frames as labels: one path. 1 has one label in two frames: three paths. 2 has no label. */
  const int labels[] = {1, 2, 3, 2}, label_lengths[] = {3, 1, 0}, input_lengths[] = {3, 2, 3};
  const int equal_labels[] = {1, 1}, equal_lengths[] = {2};
  double expected[kBatch], costs64[kBatch], gradients64[kFrames][kBatch][kClasses];
  float activations[kFrames][kBatch][kClasses], gradients[kFrames][kBatch][kClasses], costs[kBatch];
  ctcOptions options;
  size_t bytes = 0, bytes64 = 0;
  void* workspace;
  int t, n, k;

  for (t = 0; t < kFrames; ++t) {
    for (n = 0; n < kBatch; ++n) {
      for (k = 0; k < kClasses; ++k) {
        logits[t][n][k] = 4.0 * rand() / RAND_MAX - 2;
        activations[t][n][k] = (float)logits[t][n][k];
      }
    }
  }
  expected[0] = -log(p(0, 0, 1) * p(1, 0, 2) * p(2, 0, 3));
  expected[1] = -log(p(0, 1, 2) * p(1, 1, 2) + p(0, 1, 0) * p(1, 1, 2) + p(0, 1, 2) * p(1, 1, 0));
  expected[2] = -log(p(0, 2, 0) * p(1, 2, 0) * p(2, 2, 0));

  memset(&options, 0, sizeof options);
  options.loc = CTC_CPU;
  options.num_threads = 1;
  EXPECT(get_warpctc_version() == 2);
  EXPECT(get_workspace_size(label_lengths, input_lengths, kClasses, kBatch, options, &bytes) == CTC_STATUS_SUCCESS);
  EXPECT(get_workspace_size_double(label_lengths, input_lengths, kClasses, kBatch, options, &bytes64) ==
         CTC_STATUS_SUCCESS);
  workspace = malloc(bytes > bytes64 ? bytes : bytes64);
  EXPECT(compute_ctc_loss(&activations[0][0][0], &gradients[0][0][0], labels, label_lengths, input_lengths, kClasses,
                          kBatch, costs, workspace, options) == CTC_STATUS_SUCCESS);
  EXPECT(compute_ctc_loss_double(&logits[0][0][0], &gradients64[0][0][0], labels, label_lengths, input_lengths,
                                 kClasses, kBatch, costs64, workspace, options) == CTC_STATUS_SUCCESS);
  for (n = 0; n < kBatch; ++n) {
    EXPECT(fabs(costs[n] - expected[n]) < 1e-5);
    EXPECT(fabs(costs64[n] - expected[n]) < 1e-12);
  }
  /* With one path, softmax minus one at its class; zero in the frame that sequence 1 does not have. */
  for (t = 0; t < kFrames; ++t) {
    for (k = 0; k < kClasses; ++k) {
      EXPECT(fabs(gradients64[t][0][k] - (p(t, 0, k) - (k == labels[t]))) < 1e-12);
      EXPECT(fabs(gradients[t][2][k] - (p(t, 2, k) - (k == 0))) < 1e-5);
    }
  }
  for (k = 0; k < kClasses; ++k) EXPECT(gradients[2][1][k] == 0);

  EXPECT(compute_ctc_loss(&activations[0][0][0], NULL, labels, label_lengths, input_lengths, kClasses, kBatch, costs,
                          workspace, options) == CTC_STATUS_SUCCESS);

  /* Two equal labels in two frames have no path; they cost 0, as in warp-ctc. */
  EXPECT(compute_ctc_loss(&activations[0][0][0], &gradients[0][0][0], equal_labels, equal_lengths, input_lengths + 1,
                          kClasses, 1, costs, workspace, options) == CTC_STATUS_SUCCESS);
  EXPECT(costs[0] == 0 && gradients[0][0][1] == 0);

  EXPECT(compute_ctc_loss(NULL, NULL, labels, label_lengths, input_lengths, kClasses, kBatch, costs, workspace,
                          options) == CTC_STATUS_INVALID_VALUE);
  EXPECT(get_workspace_size(NULL, input_lengths, kClasses, kBatch, options, &bytes) == CTC_STATUS_INVALID_VALUE);
  EXPECT(get_workspace_size(label_lengths, input_lengths, 0, kBatch, options, &bytes) == CTC_STATUS_INVALID_VALUE);
  for (t = CTC_STATUS_SUCCESS; t <= CTC_STATUS_UNKNOWN_ERROR; ++t) {
    EXPECT(strlen(ctcGetStatusString((ctcStatus_t)t)) > 0);
  }
  free(workspace);
  puts("ok");
  return 0;
}
