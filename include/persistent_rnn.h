/* prnn: recurrent layers whose weights stay on the chip for a whole sequence.
 *
 * cuDNN v5's recurrent API with `prnn` for `cudnn`: the same functions, parameter order and semantics, plus a few of
 * prnn's own (prnnSetRNNBackend, prnnSetRNNProjectionSize, prnnSetRNNHeads, prnnQueryRNN) and prnnSetRNNMatrixMathType
 * of later versions.
 *
 * Sizes in the comments: T timesteps (seqLength), B_t sequences in timestep t (non-increasing; N = B_0), I input size,
 * H hidden size, L layers, D directions (1 or 2), P size of a state vector h: the projection size if one is set, else
 * H.
 *
 * Equations. sigma is the logistic function, * the elementwise product.
 *   RNN    h_t = f(W x_t + bW + R h_{t-1} + bR), f = relu or tanh
 *   LSTM   i, f, o = sigma(W x_t + bW + R h_{t-1} + bR), g = tanh(the same with its own matrices)
 *          c_t = f * c_{t-1} + i * g,  h_t = o * tanh(c_t), or with a projection h_t = Wp (o * tanh(c_t))
 *   GRU    r, z = sigma(W x_t + bW + R h_{t-1} + bR),  n = tanh(W x_t + bW + r * (R h_{t-1} + bR))
 *          h_t = (1 - z) * n + z * h_{t-1}
 *   sLSTM  (Beck et al. 2024) i, f, z, o = W x_t + bW + R h_{t-1} + bR, with log sigma(f) in place of f unless the mode
 *          is PRNN_SLSTM_EXP
 *          m_t = max(f + m_{t-1}, i), or i where n_{t-1} = 0;  i' = exp(i - m_t),  f' = min(exp(f + m_{t-1} - m_t), 1)
 *          c_t = f' * c_{t-1} + i' * tanh(z),  n_t = f' * n_{t-1} + i',  h_t = sigma(o) * c_t / n_t
 *          Gradients take c_{t-1} for 0 where n_{t-1} is.
 * Layer 0 reads x, layer l > 0 the outputs of layer l-1 (both directions', forward first), after dropout in training.
 *
 * Data. x is {total, I} and y {total, D P}, total = sum of B_t: timestep after timestep, packed, the sequences of a
 * timestep in the same order always. hx, hy and their gradients are {L D, N, P}, cx, cy and theirs {L D, N, H}, index
 * layer * D + direction. An sLSTM has c, n and m in cx, cy and theirs, {3 L D, N, H}, index 3 (layer * D + direction) +
 * 0, 1 and 2; where the rounding of m to 16 bits is not more than 1, cy has c e^m and n e^m as they were before it. hy
 * and cy hold each sequence's own last state; the reverse direction starts at each sequence's own end. */
#ifndef PERSISTENT_RNN_H_
#define PERSISTENT_RNN_H_

#include "prnn_types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  PRNN_RNN_RELU = 0,
  PRNN_RNN_TANH = 1,
  PRNN_LSTM = 2,
  PRNN_GRU = 3,
  PRNN_SLSTM = 4,    /* with a sigmoid forget gate */
  PRNN_SLSTM_EXP = 5 /* with an exponential one */
} prnnRNNMode_t;

typedef enum {
  PRNN_UNIDIRECTIONAL = 0,
  PRNN_BIDIRECTIONAL = 1,
  PRNN_REVERSE = 2 /* from the last timestep to the first; an LSTM with PRNN_GATES_INPUT alone */
} prnnDirectionMode_t;

/* In two modes layer 0 has no input matrices. SKIP_INPUT: I must be H, and x is added to all gates as it is.
 * GATES_INPUT, of an sLSTM or LSTM: x is what the input matrices would give, {rows, D, 4, H}, a gate after the other
 * with the units of all heads; I must be 4 D H. prnnSetRNNNormalization says more of such LSTMs. */
typedef enum { PRNN_LINEAR_INPUT = 0, PRNN_SKIP_INPUT = 1, PRNN_GATES_INPUT = 2 } prnnRNNInputMode_t;

/* The calls that prnnGetRNNTempSpaceSizes serves: prnnRNNForwardInference, or the three calls of a training step. */
typedef enum { PRNN_FWD_MODE_INFERENCE = 0, PRNN_FWD_MODE_TRAINING = 1 } prnnForwardMode_t;

/* The backends that may serve a layer on a CUDA handle. A CPU handle has one implementation, which serves all three. */
typedef enum {
  PRNN_PERSISTENT_BACKEND = 0, /* the resident kernels, or NOT_SUPPORTED */
  PRNN_CUDNN_BACKEND = 1,      /* libcudnn, loaded at run time, or NOT_SUPPORTED */
  PRNN_BEST_BACKEND = 2        /* the resident kernels where they can and are not slower, else cuDNN; the default */
} prnnRNNBackend_t;

/* How prnnRNNBackwardWeights writes dw, under cuDNN's names. */
typedef enum {
  PRNN_WGRAD_MODE_ADD = 0, /* adds the gradients to it; the default */
  PRNN_WGRAD_MODE_SET = 1  /* overwrites it, whatever it holds; CPU handles alone */
} prnnWgradMode_t;

/* How float matrices may be multiplied on a GPU; half and bfloat16 always go to the tensor cores, with sums in float.
 */
typedef enum {
  PRNN_DEFAULT_MATH = 0,                    /* with float's accuracy */
  PRNN_TENSOR_OP_MATH = 1,                  /* the same: tensor cores only where that costs no accuracy */
  PRNN_TENSOR_OP_MATH_ALLOW_CONVERSION = 2, /* factors may be rounded to tf32, 11 significant bits */
  PRNN_FMA_MATH = 3                         /* as PRNN_DEFAULT_MATH */
} prnnMathType_t;

typedef struct prnnRNNStruct* prnnRNNDescriptor_t;

PRNN_API prnnStatus_t prnnCreateRNNDescriptor(prnnRNNDescriptor_t* rnnDesc);
PRNN_API prnnStatus_t prnnDestroyRNNDescriptor(prnnRNNDescriptor_t rnnDesc);

/* hiddenSize, numLayers >= 1. dropoutDesc may be NULL (no dropout) and must outlive rnnDesc. dataType is that of all
 * data and weights. Resets the backend to BEST, the heads to 1, the projection, the extras, the masks, the frozen
 * layers and the normalization to none, the math type to DEFAULT, the mode of weight gradients to ADD and the plan to
 * the library's. An LSTM with GATES_INPUT has one layer and one direction (NOT_SUPPORTED). */
PRNN_API prnnStatus_t prnnSetRNNDescriptor(prnnRNNDescriptor_t rnnDesc, int hiddenSize, int numLayers,
                                           prnnDropoutDescriptor_t dropoutDesc, prnnRNNInputMode_t inputMode,
                                           prnnDirectionMode_t direction, prnnRNNMode_t mode, prnnDataType_t dataType);

PRNN_API prnnStatus_t prnnSetRNNBackend(prnnRNNDescriptor_t rnnDesc, prnnRNNBackend_t backend);

/* Lets the products of float matrices on a GPU be rounded to tf32, or not, which is the default. */
PRNN_API prnnStatus_t prnnSetRNNMatrixMathType(prnnRNNDescriptor_t rnnDesc, prnnMathType_t mType);

/* Engines of the resident kernels whose split can be chosen (docs/resident_kernels.md). */
typedef enum {
  PRNN_ENGINE_BEST = 0,           /* the library chooses engine and split */
  PRNN_ENGINE_MMA = 1,            /* mma.sync */
  PRNN_ENGINE_WGMMA = 2,          /* wgmma: LSTM and GRU in 16 bits on compute capability 9.0 */
  PRNN_ENGINE_WGMMA_SPLIT_K = 3,  /* the same, clusters of 2 blocks split K */
  PRNN_ENGINE_WGMMA_MULTICAST = 4 /* clusters of 2 read states together; H a multiple of 256, forward 128 */
} prnnRNNEngine_t;

/* How the resident kernels split a layer, for tuning (prnn bench rnn --tune). */
typedef struct {
  prnnRNNEngine_t engine; /* not BEST */
  int unitsPerBlock;      /* MMA: hidden units that a thread block finishes, a multiple of 8; else 0 */
  int clusterBlocks; /* MMA: blocks of a cluster, which own their units together and split K, 1: no clusters; else 0 */
  int replicas;      /* copies of the weights, each serving a share of the batch: 1 to N */
  int pollDelayCycles; /* from a block's own store of states to its first look at those of the others: at least 0 */
} prnnRNNPlan_t;

/* Has the resident kernels split the layer so, forward and in the data gradient; NULL: as the library chooses, the
 * default. A plan that has no kernel or does not fit makes the calls return NOT_SUPPORTED. */
PRNN_API prnnStatus_t prnnSetRNNPlan(prnnRNNDescriptor_t rnnDesc, const prnnRNNPlan_t* forward,
                                     const prnnRNNPlan_t* backward);

/* Has prnnRNNBackwardWeights overwrite dw, which then need not be cleared before; on a CUDA handle that call returns
 * NOT_SUPPORTED. Without the call: PRNN_WGRAD_MODE_ADD. */
PRNN_API prnnStatus_t prnnSetRNNWgradMode(prnnRNNDescriptor_t rnnDesc, prnnWgradMode_t wgradMode);

/* The lowest frozenLayers layers want no gradients, of weights or data, 0 <= frozenLayers <= numLayers: a training step
 * leaves out what these alone would take. (All: a forward pass with dropout and no backward pass.) prnnRNNBackwardData
 * then takes NULL alone for dx, dhx, dcx, dresetHx and dresetCx (BAD_PARAM), and what prnnRNNBackwardWeights does with
 * these layers' part of dw is not said. On a CPU handle the reserve space has nothing of these layers and the backward
 * calls end above them; the resident kernels end with the launch that has the lowest layer above them, and cuDNN
 * computes all. The three calls of a training step and the queries before them want the same number. Without the call:
 * 0. */
PRNN_API prnnStatus_t prnnSetRNNFrozenLayers(prnnRNNDescriptor_t rnnDesc, int frozenLayers);

/* LSTM with a recurrent projection (Sak et al. 2014), 1 <= projSize < hiddenSize; 0 takes the projection away. Its
 * matrix {P, H} is linLayerID 8; it has no bias. */
PRNN_API prnnStatus_t prnnSetRNNProjectionSize(prnnRNNDescriptor_t rnnDesc, int projSize);

/* Block-diagonal recurrent weights: a layer of `heads` heads, a divisor of hiddenSize; 1, the default, is a plain
 * layer. A head is a layer of H/K units (K heads) over the whole input, beside the others: FlashRNN's (Poeppel et al.
 * 2024) and DreamerV3's block GRU. y has the heads' outputs side by side, direction after direction. What the plain
 * layer has for every direction it has for every head of a direction: states are {L D K, N, H/K}, and a pseudo-layer is
 * (layer * D + direction) * K + head. In the packed weights a direction has the input matrices of its heads, then their
 * recurrent ones, {K, G H/K, H/K} and {K, G H/K} for the biases, likewise. No projection and no SKIP_INPUT
 * (NOT_SUPPORTED). On a CUDA handle the resident kernels serve it, up to 8 heads a launch; cuDNN has none. */
PRNN_API prnnStatus_t prnnSetRNNHeads(prnnRNNDescriptor_t rnnDesc, int heads);

/* Inputs and outputs of a training step besides the arguments that it shares with cuDNN v5. Pointers are to memory of
 * the handle's device, owned by the caller. */
typedef struct {
  const unsigned char* reset; /* {rows}, in x's order, or NULL: where it is not 0, a sequence starts anew. Its state
                                 before that timestep is resetHx and resetCx, also in the first one (then hx and cx are
                                 not looked at); in the reverse direction, where no state goes from that timestep to the
                                 one before, it is that of the latter. */
  void* cells;                /* LSTM, prnnRNNForwardTraining: {rows, D H}, filled with c of the last layer; or NULL.
                                 prnnRNNForwardInference with it is NOT_SUPPORTED */
  const void* dcells;         /* LSTM, prnnRNNBackwardData: {rows, D H}, the gradient of cells; NULL: zeros */
  const void* resetHx;        /* as hx, with `reset`: the states of sequences that start anew; NULL: zeros */
  const void* resetCx;        /* as cx, LSTM and sLSTM */
  void* dresetHx;             /* prnnRNNBackwardData, with `reset`: as dhx, the gradients of both; NULL: not wanted */
  void* dresetCx;
} prnnRNNExtras_t;

/* Has the calls that follow use these; NULL: none, the default. The three calls of a training step and the queries
 * before them want the same ones: on a CPU handle the backward calls refuse other reset, resetHx or resetCx than the
 * forward call's, wherever they lie (BAD_PARAM). On a CUDA handle the resident kernels cluster, simt, mma and mma-large
 * serve them, wgmma-multicast all but dcells, and any but projected fills cells; else the answer is NOT_SUPPORTED. */
PRNN_API prnnStatus_t prnnSetRNNExtras(prnnRNNDescriptor_t rnnDesc, const prnnRNNExtras_t* extras);

/* Recurrent dropout (Gal and Ghahramani 2016), and zoneout (Krueger et al. 2017) of a GRU's or LSTM's h; an LSTM's c
 * has none. The caller draws the masks. Pointers are to memory of the handle's device, owned by the caller. */
typedef struct {
  const void* recurrent;     /* {L D, N, H} of the data type, or NULL: what h_{t-1} is multiplied with where R reads
                                it, in all timesteps; y, and the z * h_{t-1} of a GRU, have h as it is. 0 where h is
                                dropped, else 1 / (1 - probability). {L D K, N, H/K} with K heads. */
  const void* zoneout;       /* GRU, LSTM: unsigned char, {rows, L D, H}, rows in x's order, or NULL: where it is not
                                0, h_t is h_{t-1}, a GRU's to a unit in the last place; {rows, L D K, H/K} with K
                                heads. A backward call asks no more than whether it is NULL. An LSTM with
                                GATES_INPUT: of the data type, z_t, which the backward call reads again. */
  double zoneoutExpectation; /* GRU, LSTM, 0 to 1: h_t = e h_{t-1} + (1 - e) h'_t, with h'_t of the equation above:
                                what evaluation takes in place of `zoneout` */
} prnnRNNMasks_t;

/* Has the calls that follow use these; NULL: none, the default. The three calls of a training step and the queries
 * before them want the same ones, which the backward calls on a CPU handle check as they do extras (of zoneout, that it
 * is given). Where a sequence starts anew (prnnSetRNNExtras) h_{t-1} is resetHx, which both masks take as any other. No
 * SKIP_INPUT and no projection with masks (NOT_SUPPORTED). On a CUDA handle the resident kernels cluster, simt, mma and
 * mma-large serve them, and wgmma those of a GRU with `zoneout` alone; cuDNN has none. (Larger LSTMs with masks, and in
 * double: PRNN_GATES_INPUT.) */
PRNN_API prnnStatus_t prnnSetRNNMasks(prnnRNNDescriptor_t rnnDesc, const prnnRNNMasks_t* masks);

/* The values that layer normalisation (Ba, Kiros and Hinton 2016) acts on, besides the cell state. */
typedef enum {
  PRNN_NORMALIZE_GATES = 0,    /* the sum of both products; the normalised cell state is carried on */
  PRNN_NORMALIZE_PRODUCTS = 1, /* each product by itself; the cell state is normalised for h alone */
  PRNN_NORMALIZE_NONE = 2      /* nothing, the cell state neither; the default */
} prnnNormalization_t;

/* Normalises an LSTM with PRNN_GATES_INPUT. With LN(v) = (v - mean) / sqrt(variance + epsilon) over the elements of v
 * and the variance of the population, gates in the order i, f, g, o, the masks m and z of prnnSetRNNMasks (z the
 * expectation where there is no mask), and gains and biases of each run (prnn_call.h):
 *
 *   a  = R (m * h_{t-1})                     PRODUCTS
 *   a  = x_t + R (m * h_{t-1})               GATES
 *   u  = gateGain * LN(a) + gateBias         over all 4H elements; PRODUCTS: + x_t
 *   c' = sigma(u_f) * c_{t-1} + sigma(u_i) * tanh(u_g)
 *   v  = cellGain * LN(c') + cellBias
 *   c_t = v (GATES), c' (PRODUCTS)
 *   h' = sigma(u_o) * tanh(v)
 *   h_t = z_t * h_{t-1} + (1 - z_t) * h'
 *
 * GATES is torchaudio's LSTM with layer norm. PRODUCTS is the paper's and haste's, where x_t is the normalised product
 * of the input with its gain and bias. NONE is the plain LSTM: as GATES with u = a and c_t = v = c'.
 *
 * LSTMs with PRNN_GATES_INPUT, normalised or not, have one layer of one direction, forward or reverse, and no
 * projection, heads, frozen layers and extras (NOT_SUPPORTED). Their packed weights are R alone, {4, H, H}, without
 * biases, which x has. All sequences have T timesteps in x, of which prnn_call.h's runs may leave out the last ones of
 * each. prnnRunRNNBackward is their one backward run. CPU handles take FLOAT and DOUBLE; on a CUDA handle kernels of
 * their own serve them, which for large layers and for DOUBLE are not resident, and not PRNN_PERSISTENT_BACKEND's.
 *
 * epsilon: finite and at least FLT_MIN, 1.2e-38; NONE: not used. Other layers take NONE alone (NOT_SUPPORTED). */
PRNN_API prnnStatus_t prnnSetRNNNormalization(prnnRNNDescriptor_t rnnDesc, prnnNormalization_t kind, double epsilon);

/* Bytes of scratch that any one call for these sizes wants. The workspace holds nothing between calls.
 * xDesc: seqLength descriptors {B_t, I, 1}, the same I everywhere, B_t non-increasing; further dimensions of 1 are
 * taken, and the same descriptor may be repeated. */
PRNN_API prnnStatus_t prnnGetRNNWorkspaceSize(prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc,
                                              const int seqLength, const prnnTensorDescriptor_t* xDesc,
                                              size_t* sizeInBytes);

/* Bytes of the reserve space that carries a training step from prnnRNNForwardTraining to the two backward calls, which
 * may then come several times after one forward call; not on cuDNN. */
PRNN_API prnnStatus_t prnnGetRNNTrainingReserveSize(prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc,
                                                    const int seqLength, const prnnTensorDescriptor_t* xDesc,
                                                    size_t* sizeInBytes);

/* Both in one call, and no more than the mode wants, as of cuDNN v8: the workspace of prnnRNNForwardInference alone,
 * and no reserve space; or the workspace of each of the three calls of a training step, and the least reserve space.
 * That workspace is for a prnnRNNBackwardData that is given dx; one without may want prnnGetRNNWorkspaceSize bytes.
 * With less than prnnGetRNNTrainingReserveSize prnnRNNBackwardData may leave gradients where the gates were: it runs
 * once after each forward call, as cuDNN's. The calls of a training step are given the same size. */
PRNN_API prnnStatus_t prnnGetRNNTempSpaceSizes(prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc,
                                               prnnForwardMode_t fwdMode, const int seqLength,
                                               const prnnTensorDescriptor_t* xDesc, size_t* workSpaceSize,
                                               size_t* reserveSpaceSize);

/* Bytes of the packed weights for inputs of xDesc's {N, I, 1}. */
PRNN_API prnnStatus_t prnnGetRNNParamsSize(prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc,
                                           const prnnTensorDescriptor_t xDesc, size_t* sizeInBytes,
                                           prnnDataType_t dataType);

/* One matrix (or bias vector) inside the packed weights.
 * layer: pseudo-layer, layer * D + direction. linLayerID: 0..G-1 the matrices on the input, G..2G-1 those on the state,
 *   gates in the order of LSTM i f g o, GRU r z n, sLSTM i f z o; 8 the LSTM projection.
 * w: the packed weights; never read, only added to, and NULL is taken for the sake of offsets.
 * linLayerMatDesc: set to {elements, 1, 1} ({1, elements, 1} for a bias).
 * linLayerMat: a pointer into w. Matrices are row-major, outputs x inputs. With SKIP_INPUT and GATES_INPUT the layer-0
 * input matrices give NULL and a descriptor without dimensions, and so does a bias of linLayerID 8. */
PRNN_API prnnStatus_t prnnGetRNNLinLayerMatrixParams(prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc,
                                                     const int layer, const prnnTensorDescriptor_t xDesc,
                                                     const prnnFilterDescriptor_t wDesc, const void* w,
                                                     const int linLayerID, prnnFilterDescriptor_t linLayerMatDesc,
                                                     void** linLayerMat);
PRNN_API prnnStatus_t prnnGetRNNLinLayerBiasParams(prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc,
                                                   const int layer, const prnnTensorDescriptor_t xDesc,
                                                   const prnnFilterDescriptor_t wDesc, const void* w,
                                                   const int linLayerID, prnnFilterDescriptor_t linLayerBiasDesc,
                                                   void** linLayerBias);

/* Arguments common to the four calls below.
 * - All data pointers are device pointers, owned by the caller, and do not overlap unless said.
 * - hx, cx, dhy, dcy NULL: zeros. hy, cy, dhx, dcx, dx NULL: not wanted. Their descriptors may be NULL when the pointer
 *   is. cx, cy, dcy, dcx are not looked at unless the mode is LSTM or sLSTM.
 * - workspace and reserveSpace are aligned to 16 bytes, as cudaMalloc aligns; on a CPU handle they may lie anywhere.
 *   The reserve space may be copied to another address between the calls; on a CUDA handle to one that differs by a
 *   multiple of 256 bytes.
 * - Nothing is allocated and nothing waits for the GPU. */

/* y and, where wanted, the last states, without what a backward pass would need; no dropout. */
PRNN_API prnnStatus_t prnnRNNForwardInference(
    prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc, const int seqLength, const prnnTensorDescriptor_t* xDesc,
    const void* x, const prnnTensorDescriptor_t hxDesc, const void* hx, const prnnTensorDescriptor_t cxDesc,
    const void* cx, const prnnFilterDescriptor_t wDesc, const void* w, const prnnTensorDescriptor_t* yDesc, void* y,
    const prnnTensorDescriptor_t hyDesc, void* hy, const prnnTensorDescriptor_t cyDesc, void* cy, void* workspace,
    size_t workSpaceSizeInBytes);

/* The same, with dropout between layers, filling reserveSpace for the backward calls. */
PRNN_API prnnStatus_t prnnRNNForwardTraining(
    prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc, const int seqLength, const prnnTensorDescriptor_t* xDesc,
    const void* x, const prnnTensorDescriptor_t hxDesc, const void* hx, const prnnTensorDescriptor_t cxDesc,
    const void* cx, const prnnFilterDescriptor_t wDesc, const void* w, const prnnTensorDescriptor_t* yDesc, void* y,
    const prnnTensorDescriptor_t hyDesc, void* hy, const prnnTensorDescriptor_t cyDesc, void* cy, void* workspace,
    size_t workSpaceSizeInBytes, void* reserveSpace, size_t reserveSpaceSizeInBytes);

/* Gradients of the data: from dy and the last states' dhy, dcy to dx and the initial states' dhx, dcx. reserveSpace is
 * that of the forward call and is added to for prnnRNNBackwardWeights (const only in cuDNN's prototype). */
PRNN_API prnnStatus_t prnnRNNBackwardData(
    prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc, const int seqLength, const prnnTensorDescriptor_t* yDesc,
    const void* y, const prnnTensorDescriptor_t* dyDesc, const void* dy, const prnnTensorDescriptor_t dhyDesc,
    const void* dhy, const prnnTensorDescriptor_t dcyDesc, const void* dcy, const prnnFilterDescriptor_t wDesc,
    const void* w, const prnnTensorDescriptor_t hxDesc, const void* hx, const prnnTensorDescriptor_t cxDesc,
    const void* cx, const prnnTensorDescriptor_t* dxDesc, void* dx, const prnnTensorDescriptor_t dhxDesc, void* dhx,
    const prnnTensorDescriptor_t dcxDesc, void* dcx, void* workspace, size_t workSpaceSizeInBytes,
    const void* reserveSpace, size_t reserveSpaceSizeInBytes);

/* Adds the gradients of the weights to dw, or overwrites it (prnnSetRNNWgradMode). Comes after prnnRNNBackwardData with
 * the same reserveSpace. */
PRNN_API prnnStatus_t prnnRNNBackwardWeights(prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc,
                                             const int seqLength, const prnnTensorDescriptor_t* xDesc, const void* x,
                                             const prnnTensorDescriptor_t hxDesc, const void* hx,
                                             const prnnTensorDescriptor_t* yDesc, const void* y, const void* workspace,
                                             size_t workSpaceSizeInBytes, const prnnFilterDescriptor_t dwDesc, void* dw,
                                             const void* reserveSpace, size_t reserveSpaceSizeInBytes);

/* Sequences of different lengths lie packed in the calls above: from long to short, timestep after timestep, without
 * padding. prnnPackSequences copies padded data there, prnnUnpackSequences back.
 * batchSizes: host, the B_t of seqLength timesteps, each >= 1, non-increasing. N = B_0.
 * order: host, N numbers: sequence i of the packed data is sequence order[i] of the padded data. NULL: i itself.
 * rowBytes: bytes of one timestep of one sequence, >= 1.
 * padded: device; the row of timestep t, sequence n begins at byte t * stepStride + n * sequenceStride.
 *   Nothing beyond a sequence's end is read; prnnUnpackSequences fills it with zeros, up to paddedLength timesteps, and
 *   takes strides of at least rowBytes.
 * packed: device, {rows, rowBytes}, rows = sum of B_t. The two do not overlap.
 * The host arrays are read before the call returns; in a captured graph they are constants. With seqLength L D and
 * every B_t = N, the two sort states {L D, N, width} like their sequences, and back. */
PRNN_API prnnStatus_t prnnPackSequences(prnnHandle_t handle, const int seqLength, const int* batchSizes,
                                        const int* order, size_t rowBytes, const void* padded, size_t stepStride,
                                        size_t sequenceStride, void* packed);
PRNN_API prnnStatus_t prnnUnpackSequences(prnnHandle_t handle, const int seqLength, const int* batchSizes,
                                          const int* order, size_t rowBytes, const void* packed, void* padded,
                                          const int paddedLength, size_t stepStride, size_t sequenceStride);

/* The plan that would run, filled by prnnQueryRNN and its relatives: that of a training call with aligned data, where
 * the query names no timesteps of 64, or of as many as make 2^31 - 1 rows. Sizes are per layer and direction, of the
 * forward pass unless said. */
typedef struct {
  int supported;               /* 1: the resident kernels (on a CPU handle, the CPU's) serve the layer; 0: see reason */
  prnnRNNBackend_t backend;    /* what a training step would use; PERSISTENT also on a CPU handle */
  char device[64];             /* the tile-table row ("H200"), or "CPU" and its instruction set ("CPU AVX2") */
  int measured;                /* 1: plans for this GPU have run on one; 0: they follow from its published figures */
  char forwardEngine[24];      /* "mma", "mma-large", "wgmma", "wgmma-split-k", "wgmma-multicast", "cluster", "simt", */
  char backwardEngine[24];     /* "projected", "cpu"; a wavefront: "wavefront-mma", "wavefront-wgmma",
                                  "wavefront-chunked"; LSTMs with PRNN_GATES_INPUT: "cluster", "grid" (spread over the
                                  whole GPU), "steps" (two launches a timestep); "": none */
  int blocks;                  /* thread blocks that hold the layer's weights (CPU: threads) */
  int replicas;                /* copies of the weights, each serving a share of the batch */
  int unitsPerBlock;           /* hidden units that one block owns */
  int batchPerPass;            /* sequences served at once; a larger batch takes more passes */
  int layersTogether;          /* layers of the stack that one launch runs forward; 2 with an engine that is not a
                                  wavefront's: side by side, each on half of the GPU; one after the other: 1 */
  int layersTogetherBackward;  /* the same in the data gradient */
  int layersTogetherInference; /* the same in prnnRNNForwardInference, which has no dropout */
  size_t registerBytes;        /* weights in registers, over all blocks of a replica: recurrent ones, and where layers
                                  run together (not by chunks) those on the layer below */
  size_t sharedBytes;          /* ... and in shared memory (CPU: in the cores' caches) */
  int largestHiddenSize;       /* the largest H of this mode, type, N, layers and directions that stays resident */
  char reason[256];            /* one sentence when supported is 0 or a backend is not PERSISTENT; else "" */
  char engineReason[256];      /* why the forward engine is not a faster one that other layers have; else "" */
  char layersReason[256];      /* why layers of the stack do not run together forward; else, "backward: " and why
                                  they do not in the data gradient; else "" */
  prnnRNNBackend_t inferenceBackend; /* what prnnRNNForwardInference would use */
  size_t workspaceSize; /* bytes, what prnnGetRNNTempSpaceSizes says for training on the handle's device; 0 in */
  size_t reserveSize;   /* a query for a GPU by its name, and where `backend` is not PERSISTENT */
} prnnRNNInfo_t;

/* The plan for inputs of xDesc's {N, I, 1} on the handle's device. Starts nothing. */
PRNN_API prnnStatus_t prnnQueryRNN(prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc,
                                   const prnnTensorDescriptor_t xDesc, prnnRNNInfo_t* info);

/* The plan for a GPU named by its row of the tile table, without needing that GPU, where there is a cuDNN. */
PRNN_API prnnStatus_t prnnQueryRNNForGPU(const char* gpu, const prnnRNNDescriptor_t rnnDesc,
                                         const prnnTensorDescriptor_t xDesc, prnnRNNInfo_t* info);

/* The plan of a call with these sizes, seqLength and xDesc as prnnRNNForwardTraining's.
 * gpu: NULL for the handle's device; else a row of the tile table, and handle is not looked at. */
PRNN_API prnnStatus_t prnnQueryRNNSequence(prnnHandle_t handle, const char* gpu, const prnnRNNDescriptor_t rnnDesc,
                                           const int seqLength, const prnnTensorDescriptor_t* xDesc,
                                           prnnRNNInfo_t* info);

/* Writes a line for the GPU table (src/core/gpu_table.cc) that describes the GPU of the handle, with its own name
 * and what was measured on it, whether or not the table has it already. `size`: of text, in bytes; 256 are enough. */
PRNN_API prnnStatus_t prnnDescribeGPU(prnnHandle_t handle, char* text, size_t size);

/* The name of row `index` of the tile table, NULL past the last. Static storage. */
PRNN_API const char* prnnGetGPUName(int index);

#ifdef __cplusplus
}
#endif

#endif /* PERSISTENT_RNN_H_ */
