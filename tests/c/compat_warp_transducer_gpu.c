/* A client of warp-transducer on a GPU, where activations are logits: costs are those of their log-probabilities on the
 * CPU, and gradients those taken through the log-softmax. Prints "ok". */
#include <compat/warp_transducer.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  kBatch = 3,
  kFrames = 5,
  kWidth = 4,
  kClasses = 7,
  kCells = kBatch * kFrames * kWidth,
  kElements = kCells * kClasses
};

#define EXPECT(condition)                                                   \
  do {                                                                      \
    if (!(condition)) {                                                     \
      fprintf(stderr, "line %d: %s does not hold\n", __LINE__, #condition); \
      return 1;                                                             \
    }                                                                       \
  } while (0)

int main(void) {
  const int labels[] = {1, 2, 2, 3, 4, 0, 0, 0, 0}, label_lengths[] = {3, 2, 0}, input_lengths[] = {5, 3, 5};
  float logits[kElements], gradients[kElements], costs[kBatch];
  double logits64[kElements], log_probs[kElements], expected[kElements], gradients64[kElements], costs64[kBatch],
      expected_costs[kBatch];
  rnntOptions on_cpu, on_gpu;
  cudaStream_t stream;
  size_t bytes = 0, gpu_bytes = 0;
  void *workspace, *gpu_workspace, *gpu_activations, *gpu_gradients;
  int *gpu_labels, *gpu_label_lengths, *gpu_input_lengths;
  int i, k;

  for (i = 0; i < kElements; ++i) logits[i] = (float)(logits64[i] = 4.0 * rand() / RAND_MAX - 2);
  for (i = 0; i < kCells; ++i) {
    double sum = 0;
    for (k = 0; k < kClasses; ++k) sum += exp(logits64[i * kClasses + k]);
    for (k = 0; k < kClasses; ++k) log_probs[i * kClasses + k] = logits64[i * kClasses + k] - log(sum);
  }
  memset(&on_cpu, 0, sizeof on_cpu);
  on_cpu.loc = RNNT_CPU;
  on_cpu.blank_label = 5;
  on_cpu.maxT = kFrames;
  on_cpu.maxU = kWidth;
  on_cpu.batch_first = true;
  on_gpu = on_cpu;
  on_gpu.loc = RNNT_GPU;
  EXPECT(cudaStreamCreate(&stream) == cudaSuccess);
  on_gpu.stream = stream;
  on_gpu.num_threads = 1;
  on_gpu.batch_first = false; /* not read on a GPU */

  EXPECT(get_workspace_size(kFrames, kWidth, kBatch, false, &bytes) == RNNT_STATUS_SUCCESS);
#ifdef __cplusplus
  EXPECT(get_workspace_size(kFrames, kWidth, kBatch, true, &gpu_bytes, sizeof(double)) == RNNT_STATUS_SUCCESS);
  bytes *= 2;
#else
  EXPECT(get_workspace_size(kFrames, kWidth, kBatch, true, &gpu_bytes) == RNNT_STATUS_SUCCESS);
#endif
  workspace = malloc(bytes);
  EXPECT(cudaMalloc(&gpu_workspace, gpu_bytes) == cudaSuccess);
  EXPECT(cudaMalloc(&gpu_activations, sizeof logits64) == cudaSuccess);
  EXPECT(cudaMalloc(&gpu_gradients, sizeof gradients64) == cudaSuccess);
  EXPECT(cudaMalloc((void**)&gpu_labels, sizeof labels) == cudaSuccess);
  EXPECT(cudaMalloc((void**)&gpu_label_lengths, sizeof label_lengths) == cudaSuccess);
  EXPECT(cudaMalloc((void**)&gpu_input_lengths, sizeof input_lengths) == cudaSuccess);
  EXPECT(cudaMemcpy(gpu_labels, labels, sizeof labels, cudaMemcpyDefault) == cudaSuccess);
  EXPECT(cudaMemcpy(gpu_label_lengths, label_lengths, sizeof label_lengths, cudaMemcpyDefault) == cudaSuccess);
  EXPECT(cudaMemcpy(gpu_input_lengths, input_lengths, sizeof input_lengths, cudaMemcpyDefault) == cudaSuccess);

  EXPECT(compute_rnnt_loss_fp64(log_probs, expected, labels, label_lengths, input_lengths, kClasses, kBatch,
                                expected_costs, workspace, on_cpu) == RNNT_STATUS_SUCCESS);
  for (i = 0; i < kCells; ++i) { /* through the log-softmax */
    double sum = 0;
    for (k = 0; k < kClasses; ++k) sum += expected[i * kClasses + k];
    for (k = 0; k < kClasses; ++k) expected[i * kClasses + k] -= sum * exp(log_probs[i * kClasses + k]);
  }

  /* Labels and lengths on the host. */
  EXPECT(cudaMemcpy(gpu_activations, logits, sizeof logits, cudaMemcpyDefault) == cudaSuccess);
  EXPECT(compute_rnnt_loss((float*)gpu_activations, (float*)gpu_gradients, labels, label_lengths, input_lengths,
                           kClasses, kBatch, costs, gpu_workspace, on_gpu) == RNNT_STATUS_SUCCESS);
  EXPECT(cudaMemcpy(gradients, gpu_gradients, sizeof gradients, cudaMemcpyDefault) == cudaSuccess);
  for (i = 0; i < kBatch; ++i) EXPECT(fabs(costs[i] - expected_costs[i]) < 1e-5);
  for (i = 0; i < kElements; ++i) EXPECT(fabs(gradients[i] - expected[i]) < 1e-5);

  /* On the GPU, as warp-transducer's own clients give them. */
  EXPECT(cudaMemcpy(gpu_activations, logits64, sizeof logits64, cudaMemcpyDefault) == cudaSuccess);
  EXPECT(compute_rnnt_loss_fp64((double*)gpu_activations, (double*)gpu_gradients, gpu_labels, gpu_label_lengths,
                                gpu_input_lengths, kClasses, kBatch, costs64, gpu_workspace,
                                on_gpu) == RNNT_STATUS_SUCCESS);
  EXPECT(cudaMemcpy(gradients64, gpu_gradients, sizeof gradients64, cudaMemcpyDefault) == cudaSuccess);
  for (i = 0; i < kBatch; ++i) EXPECT(fabs(costs64[i] - expected_costs[i]) < 1e-12);
  for (i = 0; i < kElements; ++i) EXPECT(fabs(gradients64[i] - expected[i]) < 1e-12);

  EXPECT(compute_rnnt_loss((float*)gpu_activations, NULL, labels, label_lengths, input_lengths, kClasses, kBatch, costs,
                           NULL, on_gpu) == RNNT_STATUS_INVALID_VALUE);
  free(workspace);
  cudaFree(gpu_workspace);
  cudaFree(gpu_activations);
  cudaFree(gpu_gradients);
  cudaFree(gpu_labels);
  cudaFree(gpu_label_lengths);
  cudaFree(gpu_input_lengths);
  cudaStreamDestroy(stream);
  puts("ok");
  return 0;
}
