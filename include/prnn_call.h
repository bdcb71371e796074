/* prnn_call.h: a recurrent call that is prepared once and run many times.
 *
 * prnnPrepareRNN takes a layer (prnnRNNDescriptor_t), a mode and the sizes of a batch, and decides everything that does
 * not depend on data: which backend and kernels run, and how large the workspace and the reserve space are. What it
 * makes is run with pointers alone: no descriptor for every timestep, as cuDNN v5's functions of persistent_rnn.h want.
 * cuDNN v5's functions run the same calls.
 *
 * T timesteps, B_t sequences in timestep t, N = B_0, rows = sum of B_t, and I, H, L, D, P are those of
 * persistent_rnn.h; with K heads, K recurrences stand for each direction (prnnSetRNNHeads). All data is of the layer's
 * data type, in the memory of the handle's device (a CPU handle's: host memory), owned by the caller, aligned to its
 * element, and does not overlap unless said. workspace and reserve are aligned to 16 bytes on a CUDA handle.
 *
 * Every function returns a status, and prnnGetLastErrorMessage(handle) the sentence; a call that fails launches nothing
 * and leaves its outputs as they were. Runs allocate nothing on the device and wait for nothing: all kernels go to the
 * handle's stream, and a run can be captured into a CUDA graph, which then holds the pointers of that run. */
#ifndef PRNN_CALL_H_
#define PRNN_CALL_H_

#include "persistent_rnn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Opaque. Made by prnnPrepareRNN, owned by the caller, used by one thread at a time. */
typedef struct prnnRNNCallStruct* prnnRNNCall_t;

/* A prepared call's plan, and the memory that its runs want. */
typedef struct {
  prnnRNNBackend_t backend; /* that serves runs with aligned data; PERSISTENT also on a CPU handle */
  size_t workspaceSize;     /* bytes of scratch of any run of the call */
  size_t reserveSize;       /* bytes of the reserve space, with which each backward run comes once after a forward run;
                               0 in inference */
  size_t retainedReserveSize; /* bytes with which backward runs may come several times after one forward run, on any
                                 backend but cuDNN; 0 in inference */
  size_t weightsSize;         /* bytes of the packed weights */
  size_t rows;                /* sum of B_t */
  prnnRNNInfo_t plan;         /* as prnnQueryRNNSequence fills it for these sizes */
} prnnRNNCallInfo_t;

/* Prepares calls of one layer and one batch; starts nothing on the device.
 * handle: whose device and stream the runs use; must outlive the call.
 * rnnDesc: copied, and may be changed or destroyed afterwards. A dropout descriptor that it names must outlive the
 *   call: each training run draws from the states that the descriptor has then, with the probability that it had here.
 *   Of its extras and masks it counts which pointers are NULL; the runs give their own.
 * mode: inference (prnnRunRNNForward alone), or the three runs of a training step.
 * inputSize: I >= 1. seqLength: T >= 1.
 * batchSizes: host memory, T numbers B_t >= 1 that do not increase; copied.
 * call: set to the new object, to be destroyed with prnnDestroyRNNCall.
 * BAD_PARAM: sizes that cannot be. NOT_SUPPORTED: no backend serves the layer. */
PRNN_API prnnStatus_t prnnPrepareRNN(prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc, prnnForwardMode_t mode,
                                     int inputSize, int seqLength, const int* batchSizes, prnnRNNCall_t* call);

/* Destroys the object and nothing that runs have enqueued. NULL is taken. */
PRNN_API prnnStatus_t prnnDestroyRNNCall(prnnRNNCall_t call);

PRNN_API prnnStatus_t prnnGetRNNCallInfo(prnnRNNCall_t call, prnnRNNCallInfo_t* info);

/* extras and masks of the runs: NULL, or what prnnSetRNNExtras and prnnSetRNNMasks take, for this run. Of the fields
 * that a run reads or writes, reset, cells, dcells, recurrent and zoneout are NULL exactly where rnnDesc's were when
 * the call was prepared, and zoneoutExpectation is rnnDesc's (BAD_PARAM); states at resets and their gradients are
 * free.
 *
 * norm and lengths are those of LSTMs with PRNN_GATES_INPUT (prnnSetRNNNormalization), and NULL for other layers.
 * lengths: {N}, each 0 to T; NULL: all are T. From timestep lengths[n] on, in either direction, sequence n's h and c
 * stay as they are: y_t is h, dx_t is 0, and x_t does not count. On a CUDA handle the host does not look at them. */

/* Parameters of a normalised LSTM, all of them given. */
typedef struct {
  const void* gateGain; /* {4, H} */
  const void* gateBias; /* {4, H} */
  const void* cellGain; /* {H} */
  const void* cellBias; /* {H} */
} prnnRNNNorm_t;

typedef struct {
  const void* x;   /* {rows, I} */
  const void* hx;  /* {L D, N, P}; NULL: zeros */
  const void* cx;  /* {L D, N, H}, LSTM, or {3 L D, N, H}, sLSTM, as all c below; NULL: zeros */
  const void* w;   /* the packed weights */
  void* y;         /* {rows, D P} */
  void* hy;        /* {L D, N, P}; NULL: not wanted */
  void* cy;        /* {L D, N, H}, LSTM; NULL: not wanted */
  void* workspace; /* at least workspaceSize bytes; NULL if that is 0 */
  size_t workspaceSize;
  void* reserve; /* training: at least reserveSize bytes, filled for the backward runs; inference: NULL */
  size_t reserveSize;
  const prnnRNNExtras_t* extras;
  const prnnRNNMasks_t* masks;
  const prnnRNNNorm_t* norm;
  const int* lengths;
} prnnRNNForwardArgs_t;

/* y, hy and cy from x; in training with dropout between layers. */
PRNN_API prnnStatus_t prnnRunRNNForward(prnnRNNCall_t call, const prnnRNNForwardArgs_t* args);

typedef struct {
  const void* y;   /* {rows, D P}, of the forward run */
  const void* dy;  /* {rows, D P} */
  const void* dhy; /* {L D, N, P}; NULL: zeros */
  const void* dcy; /* {L D, N, H}, LSTM; NULL: zeros */
  const void* w;   /* this and the next two as in the forward run */
  const void* hx;
  const void* cx;
  void* dx;        /* {rows, I}; NULL: not wanted */
  void* dhx;       /* {L D, N, P}; NULL: not wanted */
  void* dcx;       /* {L D, N, H}, LSTM; NULL: not wanted */
  void* workspace; /* as in the forward run */
  size_t workspaceSize;
  void* reserve; /* that of the forward run, with the same size; written */
  size_t reserveSize;
  const prnnRNNExtras_t* extras;
  const prnnRNNMasks_t* masks;
} prnnRNNBackwardDataArgs_t;

/* Gradients of the data, after prnnRunRNNForward with the same reserve space. */
PRNN_API prnnStatus_t prnnRunRNNBackwardData(prnnRNNCall_t call, const prnnRNNBackwardDataArgs_t* args);

typedef struct {
  const void* x; /* this and the next two as in the forward run */
  const void* hx;
  const void* y;
  void* dw; /* as large as the packed weights: added to, or overwritten (prnnSetRNNWgradMode) */
  void* workspace;
  size_t workspaceSize;
  void* reserve; /* that of prnnRunRNNBackwardData */
  size_t reserveSize;
  const prnnRNNExtras_t* extras;
  const prnnRNNMasks_t* masks;
} prnnRNNBackwardWeightsArgs_t;

/* Gradients of the weights, after prnnRunRNNBackwardData with the same reserve space. */
PRNN_API prnnStatus_t prnnRunRNNBackwardWeights(prnnRNNCall_t call, const prnnRNNBackwardWeightsArgs_t* args);

/* Where the gradients of norm go, which they overwrite; each may be NULL: not wanted. */
typedef struct {
  void* gateGain; /* {4, H} */
  void* gateBias; /* {4, H} */
  void* cellGain; /* {H} */
  void* cellBias; /* {H} */
} prnnRNNNormGradients_t;

typedef struct {
  const void* x; /* this and the next four as in the forward run */
  const void* hx;
  const void* cx;
  const void* w;
  const void* y;
  const void* dy;  /* {rows, H}; a gradient of hy belongs into its row of y */
  const void* dcy; /* {1, N, H}; NULL: zeros */
  void* dx;        /* {rows, 4 H} */
  void* dhx;       /* {1, N, H}; NULL: not wanted */
  void* dcx;       /* {1, N, H}; NULL: not wanted */
  void* dw;        /* {4, H, H}, overwritten; NULL: not wanted */
  void* workspace; /* this and the next six as in the forward run */
  size_t workspaceSize;
  void* reserve;
  size_t reserveSize;
  const prnnRNNMasks_t* masks;
  const prnnRNNNorm_t* norm;
  const int* lengths;
  const prnnRNNNormGradients_t* normGradients; /* NULL: none is wanted */
} prnnRNNBackwardArgs_t;

/* All gradients of an LSTM with PRNN_GATES_INPUT, after prnnRunRNNForward with the same reserve space, which may be
 * repeated. Other layers have the two runs above, and such an LSTM has not (NOT_SUPPORTED). */
PRNN_API prnnStatus_t prnnRunRNNBackward(prnnRNNCall_t call, const prnnRNNBackwardArgs_t* args);

/* x of layers with PRNN_GATES_INPUT, for callers who have no matrix product of their own that follows
 * prnnSetRNNMatrixMathType: x = W input, without biases.
 * rnnDesc: the layer, of one direction (BAD_PARAM); a CPU handle takes FLOAT and DOUBLE (NOT_SUPPORTED).
 * rows, inputSize: at least 1. input: {rows, inputSize}. weight: {4 H, inputSize}: W, row by row. x: {rows, 4 H}. */
PRNN_API prnnStatus_t prnnRNNGatesInputForward(prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc, int64_t rows,
                                               int64_t inputSize, const void* input, const void* weight, void* x);

/* Its gradients, which overwrite what was there.
 * dx: {rows, 4 H}. dInput: {rows, inputSize}; NULL: not wanted. dWeight: {4 H, inputSize}; NULL: not wanted. */
PRNN_API prnnStatus_t prnnRNNGatesInputBackward(prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc, int64_t rows,
                                                int64_t inputSize, const void* input, const void* weight,
                                                const void* dx, void* dInput, void* dWeight);

/* The least T of which the library decides everything, backends, kernels and schedules, as for seqLength: a cache of
 * plans or choices needs no key that tells more lengths apart. seqLength itself where it is less than 1. */
PRNN_API int prnnGetRNNCanonicalLength(int seqLength);

#ifdef __cplusplus
}
#endif

#endif /* PRNN_CALL_H_ */
