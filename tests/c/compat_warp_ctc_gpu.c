/* A client of warp-ctc on a GPU: costs and gradients are those of the same calls on the CPU. Prints "ok". */
#include <compat/warp_ctc.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kFrames = 9, kBatch = 3, kClasses = 7, kElements = kFrames * kBatch * kClasses };

#define EXPECT(condition)                                                   \
  do {                                                                      \
    if (!(condition)) {                                                     \
      fprintf(stderr, "line %d: %s does not hold\n", __LINE__, #condition); \
      return 1;                                                             \
    }                                                                       \
  } while (0)

int main(void) {
  const int labels[] = {1, 2, 2, 3, 4}, label_lengths[] = {3, 2, 0}, input_lengths[] = {9, 5, 9};
  float activations[kElements], gradients[kElements], expected[kElements], costs[kBatch], expected_costs[kBatch];
  double activations64[kElements], gradients64[kElements], expected64[kElements], costs64[kBatch],
      expected_costs64[kBatch];
  ctcOptions on_cpu, on_gpu;
  cudaStream_t stream;
  size_t bytes = 0, bytes64 = 0, gpu_bytes = 0, gpu_bytes64 = 0;
  void *workspace, *gpu_workspace, *gpu_activations, *gpu_gradients;
  int i;

  for (i = 0; i < kElements; ++i) activations[i] = (float)(activations64[i] = 4.0 * rand() / RAND_MAX - 2);
  memset(&on_cpu, 0, sizeof on_cpu);
  memset(&on_gpu, 0, sizeof on_gpu);
  on_cpu.loc = CTC_CPU;
  on_cpu.num_threads = 1;
  on_cpu.blank_label = on_gpu.blank_label = 5;
  on_gpu.loc = CTC_GPU;
  EXPECT(cudaStreamCreate(&stream) == cudaSuccess);
  on_gpu.stream = stream;

  EXPECT(get_workspace_size(label_lengths, input_lengths, kClasses, kBatch, on_cpu, &bytes) == CTC_STATUS_SUCCESS);
  EXPECT(get_workspace_size_double(label_lengths, input_lengths, kClasses, kBatch, on_cpu, &bytes64) ==
         CTC_STATUS_SUCCESS);
  EXPECT(get_workspace_size(label_lengths, input_lengths, kClasses, kBatch, on_gpu, &gpu_bytes) == CTC_STATUS_SUCCESS);
  EXPECT(get_workspace_size_double(label_lengths, input_lengths, kClasses, kBatch, on_gpu, &gpu_bytes64) ==
         CTC_STATUS_SUCCESS);
  workspace = malloc(bytes > bytes64 ? bytes : bytes64);
  EXPECT(cudaMalloc(&gpu_workspace, gpu_bytes > gpu_bytes64 ? gpu_bytes : gpu_bytes64) == cudaSuccess);
  EXPECT(cudaMalloc(&gpu_activations, sizeof activations64) == cudaSuccess);
  EXPECT(cudaMalloc(&gpu_gradients, sizeof gradients64) == cudaSuccess);

  EXPECT(compute_ctc_loss(activations, expected, labels, label_lengths, input_lengths, kClasses, kBatch, expected_costs,
                          workspace, on_cpu) == CTC_STATUS_SUCCESS);
  EXPECT(compute_ctc_loss_double(activations64, expected64, labels, label_lengths, input_lengths, kClasses, kBatch,
                                 expected_costs64, workspace, on_cpu) == CTC_STATUS_SUCCESS);

  EXPECT(cudaMemcpy(gpu_activations, activations, sizeof activations, cudaMemcpyDefault) == cudaSuccess);
  EXPECT(compute_ctc_loss((float*)gpu_activations, (float*)gpu_gradients, labels, label_lengths, input_lengths,
                          kClasses, kBatch, costs, gpu_workspace, on_gpu) == CTC_STATUS_SUCCESS);
  EXPECT(cudaMemcpy(gradients, gpu_gradients, sizeof gradients, cudaMemcpyDefault) == cudaSuccess);
  for (i = 0; i < kBatch; ++i) EXPECT(fabs(costs[i] - expected_costs[i]) < 1e-5);
  for (i = 0; i < kElements; ++i) EXPECT(fabs(gradients[i] - expected[i]) < 1e-5);

  EXPECT(cudaMemcpy(gpu_activations, activations64, sizeof activations64, cudaMemcpyDefault) == cudaSuccess);
  EXPECT(compute_ctc_loss_double((double*)gpu_activations, (double*)gpu_gradients, labels, label_lengths, input_lengths,
                                 kClasses, kBatch, costs64, gpu_workspace, on_gpu) == CTC_STATUS_SUCCESS);
  EXPECT(cudaMemcpy(gradients64, gpu_gradients, sizeof gradients64, cudaMemcpyDefault) == cudaSuccess);
  for (i = 0; i < kBatch; ++i) EXPECT(fabs(costs64[i] - expected_costs64[i]) < 1e-12);
  for (i = 0; i < kElements; ++i) EXPECT(fabs(gradients64[i] - expected64[i]) < 1e-12);

  costs64[0] = 0;
  EXPECT(compute_ctc_loss_double((double*)gpu_activations, NULL, labels, label_lengths, input_lengths, kClasses, kBatch,
                                 costs64, gpu_workspace, on_gpu) == CTC_STATUS_SUCCESS);
  EXPECT(fabs(costs64[0] - expected_costs64[0]) < 1e-12);
  EXPECT(compute_ctc_loss(NULL, NULL, labels, label_lengths, input_lengths, kClasses, kBatch, costs, gpu_workspace,
                          on_gpu) == CTC_STATUS_INVALID_VALUE);
  EXPECT(compute_ctc_loss((float*)gpu_activations, NULL, labels, label_lengths, input_lengths, kClasses, kBatch, costs,
                          NULL, on_gpu) == CTC_STATUS_INVALID_VALUE);
  EXPECT(compute_ctc_loss((float*)gpu_activations, NULL, NULL, label_lengths, input_lengths, kClasses, kBatch, costs,
                          gpu_workspace, on_gpu) == CTC_STATUS_INVALID_VALUE);
  free(workspace);
  cudaFree(gpu_workspace);
  cudaFree(gpu_activations);
  cudaFree(gpu_gradients);
  cudaStreamDestroy(stream);
  puts("ok");
  return 0;
}
