/* prnn: greedy and beam search with a transducer (Graves 2012, "Sequence Transduction with Recurrent Neural Networks")
 * or a token-and-duration transducer (TDT; Xu et al. 2023), given the frames of any encoder.
 *
 * Sizes in the comments: N utterances, T encoder frames, E encoder size, V classes with the blank, D durations, I size
 * of an embedding, H size of the predictor's output, J size of the joiner. Arrays are row-major without gaps, the last
 * dimension contiguous.
 *
 *   x[t]      = encoderWeight frames[t] + encoderBias                 once a frame
 *   g         = predictorWeight predictor(symbols so far) + predictorBias   once a symbol
 *   logits[t] = outputWeight activation(x[t] + g) + outputBias        {V + D}: V of the classes, D of the durations
 *
 * The predictor begins with zero states (STATELESS: with blanks as its last symbols) and reads the blank before the
 * first symbol.
 *
 * The search begins at frame 0 of an utterance. At frame t it takes the class with the highest logit, the lowest index
 * where several are equal.
 * - A blank: go on to frame t + 1.
 * - A symbol: append it, and stay at frame t; but the maxSymbols-th symbol of a frame goes on to frame t + 1.
 * - With durations: take the duration with the highest logit, too, the first where several are equal, and go on to
 * frame t + duration. A blank goes on by 1 where that is 0, and so does a frame's maxSymbols-th symbol. This is the
 * search of NeMo and of Transformers.
 * - Where the largest of the classes' logits is not finite, or one of them is NaN, the frame counts as a blank of
 *   duration 1; where that is so of the durations' alone, the duration is 1. The score is then -infinity.
 * A frame number of T_n or more ends the utterance.
 *
 * Conventions of prnn_decode.h, beyond those of prnn_types.h
 * - Every array is a device pointer. The caller owns them all. Structs of options and of pointers are host memory, read
 *   during the call. On a CUDA handle nothing allocates and nothing waits for the GPU: calls can be captured into a
 *   graph.
 * - Types: weights, frames and h have the model's dataType. Sums, logits, c and log-probabilities are of the compute
 *   type: double for DOUBLE, else float. A CPU handle takes FLOAT and DOUBLE, a CUDA handle FLOAT, HALF and BFLOAT16.
 * - What no kernel serves is answered NOT_SUPPORTED, with the limit in the message, by every function that takes the
 *   model.
 * - Results are bitwise reproducible, and those of an utterance do not depend on the others of the batch, on its place
 *   among them, or on how its frames are cut into calls. */
#ifndef PRNN_DECODE_H_
#define PRNN_DECODE_H_

#include "persistent_rnn.h" /* prnnRNNMode_t */
#include "prnn_losses.h"    /* prnnJointActivation_t, PRNN_MAX_DURATIONS */

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  PRNN_PREDICTOR_STATELESS =
      0,                   /* the sum of an embedding for each of the last `context` symbols (Ghodsi et al. 2020) */
  PRNN_PREDICTOR_LSTM = 1, /* an embedding and LSTM layers, gates in the order i, f, g, o */
  PRNN_PREDICTOR_GRU = 2   /* an embedding and GRU layers, gates in the order r, z, n, with
                            * n = tanh(W_n x + b_n + r * (R_n h + c_n)) as cuDNN and torch have it */
} prnnPredictorKind_t;

/* The most layers of a predictor, and the most symbols that a stateless one sees. */
#define PRNN_MAX_PREDICTOR_LAYERS 2
#define PRNN_MAX_PREDICTOR_CONTEXT 8

typedef struct {
  prnnDataType_t dataType;
  prnnPredictorKind_t predictor;
  int64_t layers;                    /* LSTM, GRU: 1 or 2; STATELESS: not used */
  int64_t context;                   /* STATELESS: 1 to PRNN_MAX_PREDICTOR_CONTEXT; else not used */
  int predictorRelu;                 /* STATELESS: 1: relu of the sum of embeddings, 0: the sum; else not used */
  int64_t embeddingSize;             /* I >= 1; STATELESS: not used, embeddings have H elements */
  int64_t hiddenSize;                /* H >= 1 */
  int64_t encoderSize;               /* E >= 1 */
  int64_t joinerSize;                /* J >= 1 */
  prnnJointActivation_t activation;  /* of the joiner */
  int64_t classes;                   /* V >= 2 */
  int64_t blank;                     /* 0 to V - 1 */
  int64_t durationCount;             /* D, 0 to PRNN_MAX_DURATIONS; 0: not a TDT model */
  int durations[PRNN_MAX_DURATIONS]; /* the first D: each >= 0, different ones, one of them positive */
} prnnTransducerModel_t;

/* Fills in FLOAT, LSTM of one layer, context 2, TANH, blank 0, no durations, and sizes of 0, which the caller
 * replaces. */
PRNN_API prnnStatus_t prnnInitTransducerModel(prnnTransducerModel_t* model);

/* The weights of a model. Biases may be NULL: zeros. */
typedef struct {
  const void* encoderWeight; /* {J, E}; NULL, as a CUDA handle wants it: E is J, and frames are x already */
  const void* encoderBias;   /* {J}; NULL if encoderWeight is */
  const void* embedding;     /* LSTM, GRU: {V, I}; STATELESS: {context, V, H}, that of the oldest symbol first */
  const void* inputWeights[PRNN_MAX_PREDICTOR_LAYERS];     /* {G H, I}, then {G H, H}: G is 4 (LSTM) or 3 (GRU) */
  const void* recurrentWeights[PRNN_MAX_PREDICTOR_LAYERS]; /* {G H, H} */
  const void* inputBiases[PRNN_MAX_PREDICTOR_LAYERS];      /* {G H} */
  const void* recurrentBiases[PRNN_MAX_PREDICTOR_LAYERS];  /* {G H} */
  const void* predictorWeight;                             /* {J, H} */
  const void* predictorBias;                               /* {J} */
  const void* outputWeight;                                /* {V + D, J} */
  const void* outputBias;                                  /* {V + D} */
} prnnTransducerWeights_t;

/* Bytes of a prepared model. */
PRNN_API prnnStatus_t prnnGetTransducerPreparedSize(prnnHandle_t handle, const prnnTransducerModel_t* model,
                                                    size_t* sizeInBytes);

/* Writes the weights into `prepared` in the form in which searches read them, once a model. Later calls take only
 * `prepared`, on handles of the same device, and several searches may read it at the same time.
 * prepared: of at least the bytes asked for, aligned to 16 bytes. */
PRNN_API prnnStatus_t prnnPrepareTransducer(prnnHandle_t handle, const prnnTransducerModel_t* model,
                                            const prnnTransducerWeights_t* weights, void* prepared,
                                            size_t preparedSizeInBytes);

typedef struct {
  int64_t batch;      /* N >= 1 */
  int64_t maxFrames;  /* T >= 1 */
  int64_t maxSymbols; /* most symbols in one frame, >= 1 */
} prnnTransducerSearchOptions_t;

/* Scores that are added to the log-probabilities of the symbols before the class with the highest sum is taken: phrases
 * or an n-gram language model as a deterministic automaton. It begins at node 0. */
typedef struct {
  int64_t nodes;     /* >= 1 */
  const int* next;   /* {nodes, V}: the node after a symbol; of the blank not read */
  const void* gains; /* {nodes, V}, compute type, finite: of each symbol; of the blank not read, it counts as 0 */
} prnnTransducerBias_t;

typedef struct {
  const void* frames;               /* {N, T, E} */
  const int* lengths;               /* {N}: T_n, each 0 to T; NULL: all are T */
  const prnnTransducerBias_t* bias; /* NULL: none */
} prnnTransducerInputs_t;

/* States of streams, in slots of a pool of S streams: read at the beginning of a call and written at its end. Arrays
 * that the model's predictor has no use for are NULL. */
typedef struct {
  const int* slots; /* {N}: the slot of each utterance of the call, different ones of 0 to S - 1; NULL: 0 to N - 1 */
  int* ahead;       /* {S}: the first so many frames of the call are passed over, which the last duration of the call
                     * before reached across; -1: the stream has not begun, and nothing else of its slot is read */
  void* h;          /* LSTM, GRU: {S, layers, H}, after the symbols so far */
  void* c;          /* LSTM: {S, layers, H}, compute type */
  int* context;     /* STATELESS: {S, context}, the last symbols, oldest first */
  int* node;        /* with a bias: {S} */
  double* score;    /* {S}: the scores so far, which outputs->scores go on from; NULL: they begin at 0 in each call */
} prnnTransducerState_t;

/* Results of a search. L = maxFrames * maxSymbols. Each row of the arrays {N, L} holds counts[n] elements, and what
 * follows them is not written. All but symbols and counts may be NULL: not wanted. */
typedef struct {
  int* symbols;      /* {N, L} */
  int* counts;       /* {N} */
  int* frames;       /* {N, L}: the frame of each symbol, counted from the call's first */
  int* durations;    /* {N, L}: by how many frames each symbol went on; NULL unless the model has durations */
  void* logProbs;    /* {N, L}, compute type: natural log-probability of each symbol among all V, without the bias */
  void* confidences; /* {N, L}, compute type: the same among all symbols but the blank */
  double* scores;    /* {N}: the sum of the log-probabilities of all that was taken, blanks and durations included, and
                      * of the gains of the symbols, one added after the other */
} prnnTransducerOutputs_t;

/* Bytes of workspace of a search. */
PRNN_API prnnStatus_t prnnGetTransducerSearchWorkspaceSize(prnnHandle_t handle, const prnnTransducerModel_t* model,
                                                           const prnnTransducerSearchOptions_t* options,
                                                           size_t* sizeInBytes);

/* Searches N utterances, or the next frames of N streams.
 * prepared: from prnnPrepareTransducer with the same model.
 * state: NULL: the utterances are whole. Else also written.
 * workspace: of at least the bytes asked for, aligned to 16 bytes. */
PRNN_API prnnStatus_t prnnTransducerSearch(prnnHandle_t handle, const prnnTransducerModel_t* model,
                                           const void* prepared, const prnnTransducerSearchOptions_t* options,
                                           const prnnTransducerInputs_t* inputs, const prnnTransducerState_t* state,
                                           const prnnTransducerOutputs_t* outputs, void* workspace,
                                           size_t workspaceSizeInBytes);

/* Beam search: K hypotheses of an utterance, of which no two spell the same. Let p(k) be the softmax over the classes'
 * logits for a frame and a hypothesis, and p(d) that over the durations'. The probabilities of hypotheses that come to
 * spell the same are added, and the one goes on whose own is larger, with the frames of its symbols.
 *
 * MODIFIED: a frame emits at most one symbol (Kang et al. 2023, "Fast and parallel decoding for transducer"). Every
 * hypothesis goes on with the blank or with a symbol, to the next frame; the K most probable stay.
 * STANDARD: time-synchronous search (Saon et al. 2020, "Alignment-length synchronous decoding for RNN transducer"). At
 * each level of a frame, every hypothesis of the level leaves the frame with the blank. The K most probable extensions
 * by a symbol, of those more probable than the K-th that has left, are the next level, up to level maxSymbols. The K
 * most probable that have left reach the next frame.
 * With durations, in both modes: the K hypotheses are at different frames. At each level of a frame, its hypotheses go
 * on with the blank or a symbol, and any duration; a blank goes on by 1 frame at least, and so does a frame's
 * maxSymbols-th symbol. The K most probable ways on that leave the frame wait for where they land. The K most probable
 * symbols of duration 0, of those more probable than the K-th hypothesis that waits, are the next level. The K most
 * probable that wait stay. Those are one that spell the same and wait for the same frame.
 * A hypothesis whose logits greedy search would not take goes nowhere. */
typedef enum { PRNN_BEAM_MODIFIED = 0, PRNN_BEAM_STANDARD = 1 } prnnTransducerBeamMode_t;

typedef struct {
  int64_t batch;      /* N >= 1 */
  int64_t maxFrames;  /* T >= 1 */
  int64_t maxSymbols; /* most symbols in one frame, >= 1; MODIFIED: 1 */
  int64_t beam;       /* K >= 1 */
  prnnTransducerBeamMode_t mode;
} prnnTransducerBeamOptions_t;

/* Hypotheses of streams, in slots of a pool of S streams, as prnnTransducerState_t has them. */
typedef struct {
  const int* slots; /* {N}, or NULL */
  int* ahead;       /* {S, K}: of each hypothesis; -1 as a slot's first element: the stream has not begun */
  void* h;          /* LSTM, GRU: {S, K, layers, H} */
  void* c;          /* LSTM: {S, K, layers, H}, compute type */
  int* context;     /* STATELESS: {S, K, context} */
  int* node;        /* with a bias: {S, K} */
  double* score;    /* {S, K}: -infinity: there is no such hypothesis, and nothing else of it is read or written */
  uint64_t* hash;   /* {S, K}: of the symbols so far; 0 without any, and with each, modulo 2^64,
                     * hash * 0x9E3779B97F4A7C15 + symbol + 1. Hypotheses of one hash spell the same */
} prnnTransducerBeamState_t;

/* The hypotheses after the call, the most probable first. L = maxFrames * maxSymbols. Of the arrays {N, K, L} each row
 * holds counts[n][k] elements, what the call has added to the hypothesis, and what follows them is not written. Of an
 * utterance without any hypothesis left, the first one has the symbols up to there. */
typedef struct {
  int* symbols;      /* {N, K, L} */
  int* counts;       /* {N, K} */
  int* origins;      /* {N, K}: the hypothesis of the state before the call that each goes on from; 0 where the
                      * utterance begins. NULL: not wanted */
  int* frames;       /* {N, K, L}: as prnnTransducerOutputs_t has them, or NULL */
  void* confidences; /* {N, K, L}: as prnnTransducerOutputs_t has them, or NULL */
  double* scores;    /* {N, K}: natural logarithms of the probabilities, and what the bias gave; -infinity: there is no
                      * such hypothesis */
} prnnTransducerBeamOutputs_t;

/* Bytes of workspace of a beam search. A CUDA handle answers NOT_SUPPORTED for more than 16 hypotheses. */
PRNN_API prnnStatus_t prnnGetTransducerBeamSearchWorkspaceSize(prnnHandle_t handle, const prnnTransducerModel_t* model,
                                                               const prnnTransducerBeamOptions_t* options,
                                                               size_t* sizeInBytes);

/* Searches N utterances, or the next frames of N streams; its arguments are those of prnnTransducerSearch. */
PRNN_API prnnStatus_t prnnTransducerBeamSearch(prnnHandle_t handle, const prnnTransducerModel_t* model,
                                               const void* prepared, const prnnTransducerBeamOptions_t* options,
                                               const prnnTransducerInputs_t* inputs,
                                               const prnnTransducerBeamState_t* state,
                                               const prnnTransducerBeamOutputs_t* outputs, void* workspace,
                                               size_t workspaceSizeInBytes);

/* Recurrent layers of the encoder of streams, on a CPU handle alone: prnnRNNForwardInference for chunks of few
 * timesteps, in which it would read every weight as the caller has it. Here weights are prepared once, and states lie
 * in slots of a pool, as those of the search do. Results are the same bits. A CUDA handle answers NOT_SUPPORTED. */
typedef struct {
  prnnDataType_t dataType; /* FLOAT or DOUBLE */
  prnnRNNMode_t mode;      /* PRNN_LSTM or PRNN_GRU */
  int64_t layers;          /* L >= 1, in one direction */
  int64_t inputSize;       /* I >= 1 */
  int64_t hiddenSize;      /* H >= 1 */
  int64_t
      projectionSize; /* LSTM: P, the size of the recurrent projection, 0 to H - 1; 0: none, and then P is H below */
} prnnStreamLayers_t;

/* Fills in FLOAT, LSTM, one layer, no projection, and sizes of 0, which the caller replaces. */
PRNN_API prnnStatus_t prnnInitStreamLayers(prnnStreamLayers_t* layers);

/* The weights of a layer, with G = 4 or 3 gates as in the predictor above. */
typedef struct {
  const void* input;         /* {G H, I}, of layers but the first {G H, P} */
  const void* recurrent;     /* {G H, P} */
  const void* inputBias;     /* {G H}; NULL: zeros */
  const void* recurrentBias; /* {G H}; NULL: zeros */
  const void* projection;    /* {P, H}; NULL without a projection */
} prnnStreamLayerWeights_t;

/* Bytes of prepared layers. */
PRNN_API prnnStatus_t prnnGetStreamLayersPreparedSize(prnnHandle_t handle, const prnnStreamLayers_t* layers,
                                                      size_t* sizeInBytes);

/* Writes the weights into `prepared`, in the form in which they are read. Several calls may read it at the same time.
 * weights: {L}.
 * prepared: of at least the bytes asked for, aligned to 16 bytes. */
PRNN_API prnnStatus_t prnnPrepareStreamLayers(prnnHandle_t handle, const prnnStreamLayers_t* layers,
                                              const prnnStreamLayerWeights_t* weights, void* prepared,
                                              size_t preparedSizeInBytes);

/* Bytes of workspace of a call with N streams. */
PRNN_API prnnStatus_t prnnGetStreamLayersWorkspaceSize(prnnHandle_t handle, const prnnStreamLayers_t* layers,
                                                       int64_t batch, int64_t maxFrames, size_t* sizeInBytes);

/* Runs the layers over the next timesteps of N streams.
 * batch, maxFrames: N >= 1 and T >= 1.
 * x: {N, T, I}.
 * lengths: {N}, timesteps of each stream, 0 to T; NULL: all are T.
 * slots: {N}, the slot of each stream, different ones of 0 to S - 1; NULL: 0 to N - 1.
 * h, c: {S, L, P} and {S, L, H}, in and out; zeros are what a stream begins with. c: LSTM; else NULL.
 * y: {N, T, P}; rows beyond a stream's length are not written.
 * workspace: of at least the bytes asked for, aligned to 16 bytes. */
PRNN_API prnnStatus_t prnnRunStreamLayers(prnnHandle_t handle, const prnnStreamLayers_t* layers, const void* prepared,
                                          int64_t batch, int64_t maxFrames, const void* x, const int* lengths,
                                          const int* slots, void* h, void* c, void* y, void* workspace,
                                          size_t workspaceSizeInBytes);

#ifdef __cplusplus
}
#endif

#endif /* PRNN_DECODE_H_ */
