/* prnn: the recurrence of an LSTM with layer normalisation (Ba, Kiros and Hinton 2016) or without, zoneout (Krueger et
 * al. 2017) and recurrent dropout with one mask for all timesteps (Gal and Ghahramani 2016).
 *
 * One layer, one direction. The products of the input, W x for all timesteps, are the caller's: one matrix product,
 * which prnnLayerNormLSTMInputForward makes, too.
 *
 * Sizes in the comments: T timesteps, N sequences, H hidden size. Arrays are row-major without gaps, the last dimension
 * contiguous. Gates lie in the order i, f, g, o. LN(v) = (v - mean) / sqrt(variance + epsilon) over the elements of v,
 * with the variance of the population; * between vectors is the product of their elements.
 *
 *   a  = R (m * h_{t-1})                     PRNN_NORMALIZE_PRODUCTS
 *   a  = x_t + R (m * h_{t-1})               PRNN_NORMALIZE_GATES
 *   u  = gateGain * LN(a) + gateBias         over all 4H elements; PRODUCTS: + x_t
 *   c' = sigma(u_f) * c_{t-1} + sigma(u_i) * tanh(u_g)
 *   v  = cellGain * LN(c') + cellBias
 *   c_t = v (GATES), c' (PRODUCTS)
 *   h' = sigma(u_o) * tanh(v)
 *   h_t = z_t * h_{t-1} + (1 - z_t) * h'
 *
 * GATES is torchaudio's LSTM with layer norm. PRODUCTS is the paper's and haste's, where x_t is the normalised product
 * of the input with its gain and bias. NONE is the plain LSTM, where x_t is the product of the input with both biases:
 * as GATES with u = a and c_t = v = c'.
 *
 * Conventions, beyond those of prnn_types.h
 * - Every array is a device pointer. The caller owns them all. Options and the structs of pointers are host memory,
 * read during the call. On a CUDA handle nothing allocates and nothing synchronises: calls can be captured into a
 * graph.
 * - Types: every array has the options' dataType. A CPU handle takes FLOAT and DOUBLE and answers NOT_SUPPORTED to HALF
 *   and BFLOAT16. Sums, statistics and cell states are float for HALF and BFLOAT16.
 * - Workspace is scratch for one call. Reserve space carries a forward call's state to the backward call, which only
 *   reads it and may be repeated. Both must be aligned to 16 bytes and may be larger than asked for.
 * - Results are bitwise reproducible. */
#ifndef PRNN_LAYER_NORM_LSTM_H_
#define PRNN_LAYER_NORM_LSTM_H_

#include "prnn_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The normalised values besides the cell state; see the formulas above. */
typedef enum {
  PRNN_NORMALIZE_GATES = 0,    /* the sum of both products; the normalised cell state is carried on */
  PRNN_NORMALIZE_PRODUCTS = 1, /* each product by itself; the cell state is normalised for h alone */
  PRNN_NORMALIZE_NONE = 2      /* nothing, the cell state neither */
} prnnLayerNormLSTMKind_t;

typedef struct {
  prnnDataType_t dataType;
  prnnLayerNormLSTMKind_t normalize;
  int64_t steps;      /* T >= 1 */
  int64_t batch;      /* N >= 1 */
  int64_t hiddenSize; /* H >= 1 */
  int reverse;        /* non-zero: from the last timestep to the first, so that h_{t-1} above reads h_{t+1} */
  double epsilon;     /* at least FLT_MIN, 1.2e-38; NONE: not used */
  double zoneout;     /* z_t of every element where zoneoutMask is NULL: 0 to 1; in inference the probability */
  int allowTf32;      /* 1: on a GPU, factors of FLOAT's matrix products may be rounded to TF32, 10 bits of mantissa,
                       * in either call; 0: they are not. No effect on other types and on a CPU handle */
} prnnLayerNormLSTMOptions_t;

/* Fills in FLOAT, GATES, forwards, epsilon 1e-5, no zoneout, no TF32, and sizes of 0, which the caller replaces. */
PRNN_API prnnStatus_t prnnInitLayerNormLSTMOptions(prnnLayerNormLSTMOptions_t* options);

/* Inputs of a forward call, which the backward call reads again. */
typedef struct {
  const void* x;             /* {T, N, 4, H} */
  const void* h0;            /* {N, H}; NULL: zeros */
  const void* c0;            /* {N, H}; NULL: zeros */
  const void* recurrent;     /* {4, H, H}: R, row by row */
  const void* gateGain;      /* {4, H}; NONE: this and the next three are NULL */
  const void* gateBias;      /* {4, H} */
  const void* cellGain;      /* {H} */
  const void* cellBias;      /* {H} */
  const void* zoneoutMask;   /* {T, N, H}: z_t, 1 keeps h_{t-1}, 0 takes h'; NULL: the options' zoneout */
  const void* recurrentMask; /* {N, H}: m, 0 or 1 / (1 - p); NULL: ones */
  const int* lengths;        /* {N}: each 0 to T; NULL: all are T. From timestep lengths[n] on, in either direction,
                              * sequence n's h and c stay as they are: y_t is h, dx_t is 0, and x_t does not count */
} prnnLayerNormLSTMInputs_t;

/* Outputs of a backward call; nothing is added to what was there. dh0, dc0 and each gradient of a parameter may be
 * NULL: not wanted. */
typedef struct {
  void* dx;         /* {T, N, 4, H} */
  void* dh0;        /* {N, H} */
  void* dc0;        /* {N, H} */
  void* dRecurrent; /* {4, H, H} */
  void* dGateGain;  /* {4, H}; NONE: this and the next three are NULL */
  void* dGateBias;  /* {4, H} */
  void* dCellGain;  /* {H} */
  void* dCellBias;  /* {H} */
} prnnLayerNormLSTMGradients_t;

/* Bytes of workspace, enough for either call, and of the reserve space between Forward and Backward. */
PRNN_API prnnStatus_t prnnGetLayerNormLSTMWorkspaceSize(prnnHandle_t handle, const prnnLayerNormLSTMOptions_t* options,
                                                        size_t* sizeInBytes);
PRNN_API prnnStatus_t prnnGetLayerNormLSTMReserveSize(prnnHandle_t handle, const prnnLayerNormLSTMOptions_t* options,
                                                      size_t* sizeInBytes);

/* h_t of all timesteps, and c of the last one.
 * y: {T, N, H}. cy: {N, H}; NULL: not wanted.
 * reserveSpace: NULL when no backward call follows. */
PRNN_API prnnStatus_t prnnLayerNormLSTMForward(prnnHandle_t handle, const prnnLayerNormLSTMOptions_t* options,
                                               const prnnLayerNormLSTMInputs_t* inputs, void* y, void* cy,
                                               void* workspace, size_t workspaceSizeInBytes, void* reserveSpace,
                                               size_t reserveSizeInBytes);

/* The gradients of everything but the masks.
 * y: what Forward wrote. dy: {T, N, H}; a gradient of the last h belongs into its timestep. dcy: {N, H}; NULL: zeros.
 */
PRNN_API prnnStatus_t prnnLayerNormLSTMBackward(prnnHandle_t handle, const prnnLayerNormLSTMOptions_t* options,
                                                const prnnLayerNormLSTMInputs_t* inputs, const void* y, const void* dy,
                                                const void* dcy, const prnnLayerNormLSTMGradients_t* gradients,
                                                void* workspace, size_t workspaceSizeInBytes, const void* reserveSpace,
                                                size_t reserveSizeInBytes);

/* The products of the input of all timesteps, without biases, for callers who have no matrix product of their own that
 * follows allowTf32: x = W input.
 * inputSize: I >= 1. input: {T, N, I}. weight: {4, H, I}: W, row by row. x: {T, N, 4, H}. */
PRNN_API prnnStatus_t prnnLayerNormLSTMInputForward(prnnHandle_t handle, const prnnLayerNormLSTMOptions_t* options,
                                                    int64_t inputSize, const void* input, const void* weight, void* x);

/* Their gradients; nothing is added to what was there.
 * dx: {T, N, 4, H}. dInput: {T, N, I}; NULL: not wanted. dWeight: {4, H, I}; NULL: not wanted. */
PRNN_API prnnStatus_t prnnLayerNormLSTMInputBackward(prnnHandle_t handle, const prnnLayerNormLSTMOptions_t* options,
                                                     int64_t inputSize, const void* input, const void* weight,
                                                     const void* dx, void* dInput, void* dWeight);

/* The kernels that run a call. */
typedef enum {
  PRNN_LAYER_NORM_LSTM_CPU = 0,
  PRNN_LAYER_NORM_LSTM_STEPS = 1,   /* two launches a timestep: a matrix product and the rest */
  PRNN_LAYER_NORM_LSTM_CLUSTER = 2, /* one launch; R stays in the registers of a thread-block cluster */
  PRNN_LAYER_NORM_LSTM_GRID = 3     /* one launch or two; R stays on the chip, spread over the whole GPU */
} prnnLayerNormLSTMEngine_t;

typedef struct {
  prnnLayerNormLSTMEngine_t engine; /* of the forward pass */
  int clusters; /* CLUSTER: thread-block clusters in a launch, each with a share of the sequences; else 0 */
  int blocks;   /* CLUSTER: blocks of each; GRID: of each copy of R in a forward launch; else 0 */
  prnnLayerNormLSTMEngine_t backwardEngine; /* of the backward pass */
} prnnLayerNormLSTMInfo_t;

/* The plan of calls with these options. gpu: NULL for the handle's device; else a row of the GPU table
 * (prnnGetGPUName), and handle is not looked at. */
PRNN_API prnnStatus_t prnnQueryLayerNormLSTM(prnnHandle_t handle, const char* gpu,
                                             const prnnLayerNormLSTMOptions_t* options, prnnLayerNormLSTMInfo_t* info);

#ifdef __cplusplus
}
#endif

#endif /* PRNN_LAYER_NORM_LSTM_H_ */
