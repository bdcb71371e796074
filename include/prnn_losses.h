/* prnn: sequence losses. CTC, RNN-T (transducer), TDT and multi-blank transducers, and what the pruned RNN-T and forced
 * alignment are made of.
 *
 * Sizes in the comments: N sequences, T frames, L or U target symbols, V classes with the blank, T_n and U_n those of
 * sequence n. Arrays are row-major, the last dimension contiguous; "{N, T}" gives the dimensions.
 *
 * Conventions, beyond those of prnn_types.h
 * - Every array is a device pointer: host memory on a CPU handle, GPU memory on a CUDA handle; lengths, targets, costs,
 *   workspace and reserve space too. The caller owns them all. Options structs are host memory, read during the call.
 *   On a CUDA handle nothing allocates and nothing synchronises, so every call can be captured into a graph.
 * - Types: activations and gradients have the options' dataType; costs, their gradients and scores are double if that
 *   is PRNN_DATA_DOUBLE, else float; lengths and symbols are int. A CPU handle takes FLOAT and DOUBLE and answers
 *   NOT_SUPPORTED to HALF and BFLOAT16.
 * - Workspace is scratch for one call. Reserve space carries a forward call's state to the backward call and must stay
 *   as it is in between; a backward call only reads it and may be repeated. Both must be aligned to 16 bytes, as malloc
 *   and cudaMalloc align, and may be larger than asked for. Their sizes follow from the maxima in the options and not
 *   from the lengths; on a CPU handle the workspace's also from the number of processors that the process has when it
 *   first asks. They do not depend on the number of OpenMP threads, which may change between query and call. Less is
 *   refused with BAD_PARAM.
 * - Lengths and symbols are checked on a CPU handle: BAD_PARAM, with sequence and value, before any output is written.
 *   On a CUDA handle, which cannot look without synchronising, a sequence with a bad length or symbol gets the cost NaN
 *   and zero gradients (in an alignment: score NaN, frames -1), and no address outside the arrays is touched.
 * - What lies in padding (frames from T_n on, symbols from U_n on) is never read into a result, NaN included; gradients
 *   there are written as zero.
 * - A sequence without any path (its targets need more frames than there are, or every path meets a log-probability of
 *   minus infinity) costs plus infinity and has zero gradients; with zeroInfinity its cost is 0.
 * - A NaN makes the cost and the gradients of its own sequence NaN and touches no other.
 * - Results are bitwise reproducible, whatever the number of threads. */
#ifndef PRNN_LOSSES_H_
#define PRNN_LOSSES_H_

#include "prnn_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The form of a loss's activations. Gradients are with respect to that form. */
typedef enum {
  PRNN_LOSS_LOGITS = 0,    /* unnormalised; the log-softmax over V is part of the loss */
  PRNN_LOSS_LOG_PROBS = 1, /* taken as they are; gradients are non-zero for the blank and the target symbols alone */
  PRNN_LOSS_GATHERED = 2   /* RNN-T and TDT alone: V is 2, the log-probability of the blank and of the next target
                            * symbol; taken as they are */
} prnnLossInput_t;

/* How the target symbols of a batch lie. */
typedef enum {
  PRNN_TARGETS_PADDED = 0,      /* {N, maxTargets}; what follows a sequence's own symbols is not read */
  PRNN_TARGETS_CONCATENATED = 1 /* {targetElements}: the sequences one after the other */
} prnnTargetLayout_t;

/* ---- One number of the costs of a batch -------------------------------------------------------------------------- */

/* loss = scale * the sum over n of costs[n] / max(1, lengths[n]), summed in double in a fixed order. A call whose
 * options point to one of these makes gradients of the loss in place of the costs' sum: a call that writes costs writes
 * the loss too, and the costGradients of a Backward call are {1}, the gradient of the loss. It is host memory, read
 * during the call, and costs no launch where the gradients are wanted. */
typedef struct {
  double scale;       /* 1 for the sum, 1 / N for the mean; finite */
  const int* lengths; /* {N}, what each cost is divided by; NULL: by nothing */
  void* loss;         /* {1}, of the costs' type; not read by Backward */
} prnnLossReduction_t;

/* ---- CTC (Graves et al. 2006) ------------------------------------------------------------------------------------
 * cost[n] = -log of the sum, over all paths of T_n classes which give the target when repeats are merged and blanks
 * then dropped, of the product of the classes' probabilities. */

typedef struct {
  prnnDataType_t dataType;
  prnnLossInput_t input;           /* LOGITS or LOG_PROBS */
  prnnTargetLayout_t targetLayout; /* PADDED or CONCATENATED */
  int64_t batch;                   /* N >= 1 */
  int64_t maxFrames;               /* T >= 1; T_n may be 0 to T */
  int64_t maxTargets;              /* L >= 0; L_n may be 0 to L */
  int64_t targetElements;          /* CONCATENATED: the length of targets, the sum of L_n; on a CUDA handle it may be
                                    * more. PADDED: not read */
  int64_t classes;                 /* V >= 1, with the blank */
  int64_t blank;                   /* 0 <= blank < V */
  int64_t timeStride, batchStride; /* elements between frames and between sequences, of activations and gradients alike;
                                    * both 0: {T, N, V} packed, that is N V and V. {N, T, V}: V and T V. What lies in
                                    * gaps is not touched */
  int zeroInfinity;                /* non-zero: a sequence without a path costs 0 instead of infinity */
  const prnnLossReduction_t* reduction; /* NULL: none */
} prnnCTCLossOptions_t;

/* Fills in FLOAT, LOGITS, PADDED, blank 0, packed strides, zeroInfinity 0, no reduction, and sizes of 0, which the
 * caller replaces. */
PRNN_API prnnStatus_t prnnInitCTCLossOptions(prnnCTCLossOptions_t* options);

/* Bytes of workspace that a call wants, and of the reserve space between Forward and Backward. */
PRNN_API prnnStatus_t prnnGetCTCLossWorkspaceSize(prnnHandle_t handle, const prnnCTCLossOptions_t* options,
                                                  size_t* sizeInBytes);
PRNN_API prnnStatus_t prnnGetCTCLossReserveSize(prnnHandle_t handle, const prnnCTCLossOptions_t* options,
                                                size_t* sizeInBytes);

/* Costs, and gradients of the costs' sum, in one call.
 * activations: {T, N, V} with the options' strides.
 * targets: symbols, 0 to V - 1 and not the blank; may be NULL when there are none (maxTargets or targetElements 0).
 * frameLengths, targetLengths: {N}.
 * costs: {N}.
 * gradients: as activations, every element of {T, N, V} written; NULL when not wanted; may be the activations
 *   themselves, which are then overwritten.
 * workspace: at least prnnGetCTCLossWorkspaceSize() bytes, and when gradients are wanted prnnGetCTCLossReserveSize()
 *   bytes more. */
PRNN_API prnnStatus_t prnnCTCLoss(prnnHandle_t handle, const prnnCTCLossOptions_t* options, const void* activations,
                                  const int* targets, const int* frameLengths, const int* targetLengths, void* costs,
                                  void* gradients, void* workspace, size_t workspaceSizeInBytes);

/* The loss in two calls, for automatic differentiation: the costs with what a later backward call needs, and then
 * gradients[t, n, :] = costGradients[n] * d cost[n] / d activations[t, n, :].
 * workspace: at least prnnGetCTCLossWorkspaceSize() bytes.
 * reserveSpace: at least prnnGetCTCLossReserveSize() bytes; NULL to Forward when no backward call follows.
 * costGradients: {N}; NULL means all ones. All other arguments as above and the same in both calls. */
PRNN_API prnnStatus_t prnnCTCLossForward(prnnHandle_t handle, const prnnCTCLossOptions_t* options,
                                         const void* activations, const int* targets, const int* frameLengths,
                                         const int* targetLengths, void* costs, void* workspace,
                                         size_t workspaceSizeInBytes, void* reserveSpace, size_t reserveSizeInBytes);
PRNN_API prnnStatus_t prnnCTCLossBackward(prnnHandle_t handle, const prnnCTCLossOptions_t* options,
                                          const void* activations, const int* targets, const int* frameLengths,
                                          const int* targetLengths, const void* costGradients, void* gradients,
                                          const void* reserveSpace, size_t reserveSizeInBytes);

/* The most probable path of each sequence.
 * scores: {N}, its log-probability; minus infinity if there is no path (zeroInfinity is not read).
 * begins, ends: {N, maxTargets}, for either target layout: symbol i is emitted in frames begins[n, i] to
 *   ends[n, i] - 1, all others emit the blank; -1 for i >= L_n and where there is no path. Of equally probable paths
 *   always the same one is taken. */
PRNN_API prnnStatus_t prnnGetCTCAlignWorkspaceSize(prnnHandle_t handle, const prnnCTCLossOptions_t* options,
                                                   size_t* sizeInBytes);
PRNN_API prnnStatus_t prnnCTCAlign(prnnHandle_t handle, const prnnCTCLossOptions_t* options, const void* activations,
                                   const int* targets, const int* frameLengths, const int* targetLengths, void* scores,
                                   int* begins, int* ends, void* workspace, size_t workspaceSizeInBytes);

/* ---- RNN-T (Graves 2012) -----------------------------------------------------------------------------------------
 * Nodes (t, u), 0 <= t <= T_n, 0 <= u <= U_n: u symbols were emitted and frame t comes next. blank(t, u) and
 * label(t, u) are the log-probabilities of the blank and of target symbol u in frame t after u symbols. cost[n] = -log
 * of the sum over all paths from (0, 0) to (T_n, U_n) of exp(sum of the scores of its arcs); see prnnRNNTType_t. */

typedef enum {
  PRNN_RNNT_REGULAR = 0,     /* blank(t, u): (t, u) -> (t+1, u).  label(t, u): (t, u) -> (t, u+1), for t < T_n */
  PRNN_RNNT_MODIFIED = 1,    /* at most one symbol a frame. blank as above.  label(t, u): (t, u) -> (t+1, u+1) */
  PRNN_RNNT_CONSTRAINED = 2, /* as MODIFIED, but a symbol is followed by the blank of the same frame: the arc to
                              * (t+1, u+1) scores label(t, u) + blank(t, u+1) */
  PRNN_RNNT_FINAL_BLANK = 3  /* as MODIFIED, but frame T_n - 1 emits no symbol: every path ends with its blank */
} prnnRNNTType_t;

/* How the V-vectors of a batch's lattice cells lie. */
typedef enum {
  PRNN_RNNT_PADDED = 0, /* {N, maxFrames, maxTargets + 1, V} */
  PRNN_RNNT_PACKED = 1, /* {rows, V}: sequence n is a block of {T_n, U_n + 1, V}, the blocks one after the other */
  PRNN_RNNT_PRUNED = 2  /* {N, maxFrames, pruneRange, V}: frame t of sequence n holds the cells
                         * u = rangeBegins[n, t] + 0 .. pruneRange - 1; no path goes through other cells */
} prnnRNNTLayout_t;

typedef struct {
  prnnDataType_t dataType;
  prnnLossInput_t input;           /* LOGITS, LOG_PROBS or GATHERED */
  prnnRNNTLayout_t layout;         /* PADDED, PACKED or PRUNED */
  prnnTargetLayout_t targetLayout; /* PADDED or CONCATENATED, with any layout */
  prnnRNNTType_t type;             /* any */
  int64_t batch;                   /* N >= 1 */
  int64_t maxFrames;               /* T >= 1; T_n may be 1 to T */
  int64_t maxTargets;              /* U >= 0; U_n may be 0 to U */
  int64_t targetElements;          /* CONCATENATED: the length of targets, the sum of U_n; on a CUDA handle it may be
                                    * more. PADDED: not read */
  int64_t rows;                    /* PACKED: the number of cells, the sum of T_n (U_n + 1); on a CUDA handle, which
                                    * cannot look at the lengths, it may be more, and the rest is padding at the end.
                                    * Else not read */
  int64_t pruneRange;              /* PRUNED: 1 <= pruneRange <= maxTargets + 1. Else not read */
  int64_t classes;                 /* V >= 1, with the blank; 2 for GATHERED */
  int64_t blank;                   /* 0 <= blank < V; not read for GATHERED */
  int blankTargets;      /* non-zero: a target may be the blank. Its arc scores as the blank's and goes where a
                          * symbol's goes, as in k2 and fast_rnnt. Not read for GATHERED */
  int zeroInfinity;      /* non-zero: a sequence without a path costs 0 instead of infinity */
  double fastEmitLambda; /* FastEmit (Yu et al. 2021), >= 0: the gradient with respect to each label(t, u) is
                          * multiplied by 1 + lambda. The costs are not changed */
  double clamp;          /* > 0: each element of a gradient is limited to [-clamp, clamp], before it is
                          * multiplied by costGradients. <= 0: not limited */
  double delayPenalty;   /* delay penalty (Kang et al. 2023): label(t, u) is raised by
                          * delayPenalty * ((T_n - 1) / 2 - t), in the costs too; 0: none */
  const prnnLossReduction_t* reduction; /* NULL: none */
} prnnRNNTLossOptions_t;

/* Fills in FLOAT, LOGITS, PADDED, PADDED, REGULAR, blank 0, no blankTargets, zeroInfinity 0, no FastEmit, clamp, delay
 * penalty or reduction, and sizes of 0, which the caller replaces. */
PRNN_API prnnStatus_t prnnInitRNNTLossOptions(prnnRNNTLossOptions_t* options);

/* As for CTC. */
PRNN_API prnnStatus_t prnnGetRNNTLossWorkspaceSize(prnnHandle_t handle, const prnnRNNTLossOptions_t* options,
                                                   size_t* sizeInBytes);
PRNN_API prnnStatus_t prnnGetRNNTLossReserveSize(prnnHandle_t handle, const prnnRNNTLossOptions_t* options,
                                                 size_t* sizeInBytes);

/* Costs, and gradients of the costs' sum, in one call.
 * activations: as the layout says.
 * targets: symbols, 0 to V - 1 and, without blankTargets, not the blank; may be NULL when there are none (maxTargets or
 *   targetElements 0) and for GATHERED, where they are not read.
 * frameLengths, targetLengths: {N}.
 * rangeBegins: {N, maxFrames}, PRUNED alone, else NULL. For t < T_n non-decreasing and >= 0; cells with u > U_n are
 *   padding. A path needs rangeBegins[n, 0] = 0 and rangeBegins[n, T_n - 1] + pruneRange > U_n.
 * costs: {N}.
 * gradients: as activations, every element written; NULL when not wanted; may be the activations themselves, which are
 *   then overwritten.
 * workspace: at least prnnGetRNNTLossWorkspaceSize() bytes, and when gradients are wanted prnnGetRNNTLossReserveSize()
 *   bytes more. */
PRNN_API prnnStatus_t prnnRNNTLoss(prnnHandle_t handle, const prnnRNNTLossOptions_t* options, const void* activations,
                                   const int* targets, const int* frameLengths, const int* targetLengths,
                                   const int* rangeBegins, void* costs, void* gradients, void* workspace,
                                   size_t workspaceSizeInBytes);

/* The loss in two calls, for automatic differentiation; see prnnCTCLossForward. */
PRNN_API prnnStatus_t prnnRNNTLossForward(prnnHandle_t handle, const prnnRNNTLossOptions_t* options,
                                          const void* activations, const int* targets, const int* frameLengths,
                                          const int* targetLengths, const int* rangeBegins, void* costs,
                                          void* workspace, size_t workspaceSizeInBytes, void* reserveSpace,
                                          size_t reserveSizeInBytes);
PRNN_API prnnStatus_t prnnRNNTLossBackward(prnnHandle_t handle, const prnnRNNTLossOptions_t* options,
                                           const void* activations, const int* targets, const int* frameLengths,
                                           const int* targetLengths, const int* rangeBegins, const void* costGradients,
                                           void* gradients, const void* reserveSpace, size_t reserveSizeInBytes);

/* The path with the highest score of each sequence.
 * scores: {N}, its score (the delay penalty counted); minus infinity if there is no path.
 * frames: {N, maxTargets}, for either target layout: the frame in which symbol i is emitted; -1 for i >= U_n and where
 *   there is no path. Of paths with equal scores always the same one is taken.
 * FastEmit, clamp and zeroInfinity are not read. */
PRNN_API prnnStatus_t prnnGetRNNTAlignWorkspaceSize(prnnHandle_t handle, const prnnRNNTLossOptions_t* options,
                                                    size_t* sizeInBytes);
PRNN_API prnnStatus_t prnnRNNTAlign(prnnHandle_t handle, const prnnRNNTLossOptions_t* options, const void* activations,
                                    const int* targets, const int* frameLengths, const int* targetLengths,
                                    const int* rangeBegins, void* scores, int* frames, void* workspace,
                                    size_t workspaceSizeInBytes);

/* ---- Pruned RNN-T (Kuang et al. 2022) ----------------------------------------------------------------------------
 * The recursion over a lattice of S symbols and T frames whose scores the caller computed, here with the symbols first:
 *   p(0, 0) = 0,  p(s, t) = log(exp(p(s-1, t') + px(s-1, t')) + exp(p(s, t-1) + py(s, t-1)))
 * with t' = t for REGULAR and t' = t - 1 for MODIFIED and CONSTRAINED. */

typedef struct {
  prnnDataType_t dataType; /* FLOAT or DOUBLE, on either device */
  prnnRNNTType_t type;     /* CONSTRAINED is MODIFIED here: its second blank is the caller's to add to px */
  int64_t batch;           /* N >= 1 */
  int64_t symbols;         /* S >= 0 */
  int64_t frames;          /* T >= 1 */
} prnnMutualInformationOptions_t;

PRNN_API prnnStatus_t prnnGetMutualInformationWorkspaceSize(prnnHandle_t handle,
                                                            const prnnMutualInformationOptions_t* options,
                                                            size_t* sizeInBytes);

/* px: scores of emitting a symbol, {N, S, T + 1} for REGULAR, else {N, S, T}; NULL when S is 0. py: those of going to
 *   the next frame, {N, S + 1, T}. Minus infinity forbids an arc.
 * boundary: {N, 4}, s_begin, t_begin, s_end, t_end with 0 <= s_begin <= s_end <= S and 0 <= t_begin <= t_end <= T:
 *   sequence n starts from p(s_begin, t_begin) = 0; NULL means 0, 0, S, T for all.
 * scores: {N}, p(s_end, t_end).
 * pxGradients, pyGradients: as px and py, the gradients of the scores' sum, that is the probabilities with which a path
 *   takes each arc; zero outside the boundary. Both NULL when not wanted. */
PRNN_API prnnStatus_t prnnMutualInformation(prnnHandle_t handle, const prnnMutualInformationOptions_t* options,
                                            const void* px, const void* py, const int* boundary, void* scores,
                                            void* pxGradients, void* pyGradients, void* workspace,
                                            size_t workspaceSizeInBytes);

/* Which cells to keep. pxGradients, pyGradients: as prnnMutualInformation gave them. boundary: as there, or NULL.
 * pruneRange: 1 <= pruneRange <= S + 1, and at least 2 for REGULAR if S > 0.
 * rangeBegins: {N, T}, written: in frame t the cells u = rangeBegins[n, t] + 0 .. pruneRange - 1 are kept. They are
 *   the window that holds the most probability, adjusted so that paths get through: from 0 in frame 0, never
 *   decreasing, growing by at most pruneRange - 1 a frame (1 for MODIFIED and CONSTRAINED), and ending with s_end from
 *   frame t_end - 1 on. */
PRNN_API prnnStatus_t prnnRNNTPruneRanges(prnnHandle_t handle, const prnnMutualInformationOptions_t* options,
                                          const void* pxGradients, const void* pyGradients, const int* boundary,
                                          int64_t pruneRange, int* rangeBegins);

/* ---- Transducers with durations: TDT (Xu et al. 2023), multi-blank RNN-T (Xu et al. 2022) -------------------------
 * RNN-T on the same nodes with arcs that go on by several frames at once. cost[n] = -log of the sum over all paths from
 * (0, 0) to (T_n, U_n) of exp(sum of the scores of its arcs). A path ends by a blank that lands exactly on T_n: no arc
 * goes beyond, and no symbol lands there. */

typedef enum {
  PRNN_DURATION_TDT = 0,        /* symbol and duration are predicted apart, each with a softmax of its own. For every
                                 * duration d: symbol: (t, u) -> (t+d, u+1); blank, if d > 0: (t, u) -> (t+d, u). Both
                                 * score log P(token) - sigma + log P(d) */
  PRNN_DURATION_MULTI_BLANK = 1 /* symbol: (t, u) -> (t, u+1); blank: (t, u) -> (t+1, u); big blank i, class
                                 * blank - 1 - i: (t, u) -> (t+durations[i], u). All score log P(class) - sigma */
} prnnDurationRNNTType_t;

#define PRNN_MAX_DURATIONS 16

typedef struct {
  prnnDataType_t dataType;
  prnnDurationRNNTType_t type;
  prnnLossInput_t input; /* LOGITS or, of TDT, GATHERED: duration logits are then log-probabilities, too */
  int64_t batch;         /* N >= 1 */
  int64_t maxFrames;     /* T >= 1; T_n may be 1 to T */
  int64_t maxTargets;    /* U >= 0; U_n may be 0 to U */
  int64_t classes;       /* V >= 1 token logits of a cell: symbols, blank and, for MULTI_BLANK, big blanks; 2 for
                          * GATHERED */
  int64_t blank;         /* 0 <= blank < V; for MULTI_BLANK at least durationCount, for the big blanks before it; not
                          * read for GATHERED */
  int64_t durationCount; /* D: 1 (0 for MULTI_BLANK) to PRNN_MAX_DURATIONS */
  int durations[PRNN_MAX_DURATIONS]; /* the first D are read, all different. TDT: of duration logit i, >= 0, at least
                                      * one > 0. MULTI_BLANK: of big blank i, >= 2 */
  int64_t tokenStride;    /* elements from one cell's token logits to the next cell's, >= V; 0: V. What lies between is
                           * not touched */
  int64_t durationStride; /* the same of the duration logits, >= D; 0: D. TDT alone */
  int zeroInfinity;       /* non-zero: a sequence without a path costs 0 instead of infinity */
  double sigma;           /* logit under-normalisation: what every arc's score is lowered by; finite */
  double omega; /* 0 to 1, TDT alone: cost and gradients are 1 - omega times those of TDT plus omega times those
                 * of regular RNN-T on the token logits, without sigma: the expectation of choosing RNN-T with
                 * that probability */
  double fastEmitLambda; /* >= 0: the gradient with respect to the score of each symbol's arc is multiplied by
                          * 1 + lambda. The costs are not changed */
  double clamp;          /* > 0: each element of a gradient is limited to [-clamp, clamp], before it is multiplied by
                          * costGradients. <= 0: not limited */
  const prnnLossReduction_t* reduction; /* NULL: none */
} prnnDurationRNNTLossOptions_t;

/* Fills in FLOAT, TDT and zeros; sizes, blank and durations are the caller's to replace. */
PRNN_API prnnStatus_t prnnInitDurationRNNTLossOptions(prnnDurationRNNTLossOptions_t* options);

/* As for CTC. */
PRNN_API prnnStatus_t prnnGetDurationRNNTLossWorkspaceSize(prnnHandle_t handle,
                                                           const prnnDurationRNNTLossOptions_t* options,
                                                           size_t* sizeInBytes);
PRNN_API prnnStatus_t prnnGetDurationRNNTLossReserveSize(prnnHandle_t handle,
                                                         const prnnDurationRNNTLossOptions_t* options,
                                                         size_t* sizeInBytes);

/* Costs, and gradients of the costs' sum, in one call.
 * tokenLogits: {N, maxFrames, maxTargets + 1, V} and durationLogits: {N, maxFrames, maxTargets + 1, D}, cells apart by
 *   the options' strides. Logits that lie in one array {N, maxFrames, maxTargets + 1, V + D} are given by the addresses
 *   of its elements 0 and V and two strides of V + D. durationLogits is NULL for MULTI_BLANK.
 * targets: {N, maxTargets} symbols, 0 to V - 1 and no blank; may be NULL when maxTargets is 0 and for GATHERED, where
 *   they are not read.
 * frameLengths, targetLengths: {N}.
 * costs: {N}.
 * tokenGradients, durationGradients: as the logits, every cell's V or D elements written; both NULL when not wanted;
 *   may be the logits themselves, which are then overwritten.
 * workspace: at least prnnGetDurationRNNTLossWorkspaceSize() bytes, and when gradients are wanted
 *   prnnGetDurationRNNTLossReserveSize() bytes more. */
PRNN_API prnnStatus_t prnnDurationRNNTLoss(prnnHandle_t handle, const prnnDurationRNNTLossOptions_t* options,
                                           const void* tokenLogits, const void* durationLogits, const int* targets,
                                           const int* frameLengths, const int* targetLengths, void* costs,
                                           void* tokenGradients, void* durationGradients, void* workspace,
                                           size_t workspaceSizeInBytes);

/* The loss in two calls, for automatic differentiation; see prnnCTCLossForward. */
PRNN_API prnnStatus_t prnnDurationRNNTLossForward(prnnHandle_t handle, const prnnDurationRNNTLossOptions_t* options,
                                                  const void* tokenLogits, const void* durationLogits,
                                                  const int* targets, const int* frameLengths, const int* targetLengths,
                                                  void* costs, void* workspace, size_t workspaceSizeInBytes,
                                                  void* reserveSpace, size_t reserveSizeInBytes);
PRNN_API prnnStatus_t prnnDurationRNNTLossBackward(prnnHandle_t handle, const prnnDurationRNNTLossOptions_t* options,
                                                   const void* tokenLogits, const void* durationLogits,
                                                   const int* targets, const int* frameLengths,
                                                   const int* targetLengths, const void* costGradients,
                                                   void* tokenGradients, void* durationGradients,
                                                   const void* reserveSpace, size_t reserveSizeInBytes);

/* ---- RNN-T with its joiner ---------------------------------------------------------------------------------------
 * The loss of the logits
 *   logits[n, t, u, :] = weight * drop(activation(encoder[n, t, :] + predictor[n, u, :])) + bias
 * and its gradients, without ever holding the N x T x (U + 1) x V logits: they are made for chunkCells lattice cells at
 * a time, forward and again backward. CUDA handles alone; a CPU handle answers NOT_SUPPORTED.
 *
 * Products of FLOAT are those of float32 (each number is split into two of 11 bits, three products of which are
 * summed); HALF and BFLOAT16 are multiplied as they are and summed in float. All but products is computed in float, or
 * in double for DOUBLE. "Real" below is double for DOUBLE, else float. */

typedef enum { PRNN_JOINT_TANH = 0, PRNN_JOINT_RELU = 1 } prnnJointActivation_t;

typedef struct {
  prnnDataType_t dataType;          /* of encoder, predictor, weight and their gradients */
  prnnJointActivation_t activation; /* TANH or RELU */
  prnnRNNTType_t type;              /* any */
  int64_t batch;                    /* N >= 1 */
  int64_t maxFrames;                /* T >= 1; T_n may be 1 to T */
  int64_t maxTargets;               /* U >= 0; U_n may be 0 to U */
  int64_t rows;       /* how many cells are computed, at least the sum of T_n (U_n + 1), where the caller knows
                       * it; a sequence that does not fit costs NaN. 0: N T (U + 1), padding too. Not read
                       * with a pruneRange */
  int64_t pruneRange; /* 0: all cells. R, 1 to maxTargets + 1: frame t of sequence n has the cells
                       * u = rangeBegins[n, t] + 0 .. R - 1 alone, as PRNN_RNNT_PRUNED */
  int64_t joinerSize; /* D >= 1 */
  int64_t classes;    /* V >= 1, with the blank */
  int64_t blank;      /* 0 <= blank < V */
  int64_t chunkCells; /* cells whose activations and logits are in the workspace at a time; 0: the library
                       * chooses. The sums of gradients, but not the costs, depend on it in their rounding */
  int zeroInfinity;   /* these four as for prnnRNNTLoss */
  double fastEmitLambda;
  double clamp;
  double delayPenalty;
  double dropout; /* 0 <= dropout < 1: the probability with which drop() makes an element zero; the others
                   * are divided by 1 - dropout */
  int allowTf32;  /* non-zero: products of FLOAT may be made in TF32, in one pass */
} prnnJointRNNTLossOptions_t;

/* Fills in FLOAT, TANH, REGULAR, blank 0 and zeros, of which the caller replaces the sizes. */
PRNN_API prnnStatus_t prnnInitJointRNNTLossOptions(prnnJointRNNTLossOptions_t* options);

/* Bytes of workspace that Forward and Backward want each, and of the reserve space between them. */
PRNN_API prnnStatus_t prnnGetJointRNNTLossWorkspaceSize(prnnHandle_t handle, const prnnJointRNNTLossOptions_t* options,
                                                        size_t* sizeInBytes);
PRNN_API prnnStatus_t prnnGetJointRNNTLossReserveSize(prnnHandle_t handle, const prnnJointRNNTLossOptions_t* options,
                                                      size_t* sizeInBytes);

/* Costs, and gradients of the costs' sum, in one call.
 * encoder: {N, maxFrames, D}. predictor: {N, maxTargets + 1, D}. weight: {V, D}. bias: {V} of Real, or NULL.
 * targets: {N, maxTargets}, symbols, 0 to V - 1 and not the blank; may be NULL when maxTargets is 0.
 * frameLengths, targetLengths: {N}.
 * rangeBegins: {N, maxFrames} with a pruneRange, as for prnnRNNTLoss; else NULL.
 * dropoutSeed: one 64-bit integer, from which the dropout is drawn (Philox4x32-10; one draw a cell and element,
 * whatever the layout); NULL without dropout. costs: {N} of Real. encoderGradients, predictorGradients,
 * weightGradients: as the inputs, every element written. biasGradients: {V} of Real; NULL when not wanted, which the
 * others may not be. workspace: at least prnnGetJointRNNTLossWorkspaceSize() + prnnGetJointRNNTLossReserveSize() bytes.
 */
PRNN_API prnnStatus_t prnnJointRNNTLoss(prnnHandle_t handle, const prnnJointRNNTLossOptions_t* options,
                                        const void* encoder, const void* predictor, const void* weight,
                                        const void* bias, const int* targets, const int* frameLengths,
                                        const int* targetLengths, const int* rangeBegins,
                                        const unsigned long long* dropoutSeed, void* costs, void* encoderGradients,
                                        void* predictorGradients, void* weightGradients, void* biasGradients,
                                        void* workspace, size_t workspaceSizeInBytes);

/* The loss in two calls, for automatic differentiation; see prnnCTCLossForward.
 * reserveSpace: NULL to Forward when no backward call follows.
 * costGradients: {N} of Real; NULL means all ones. */
PRNN_API prnnStatus_t prnnJointRNNTLossForward(prnnHandle_t handle, const prnnJointRNNTLossOptions_t* options,
                                               const void* encoder, const void* predictor, const void* weight,
                                               const void* bias, const int* targets, const int* frameLengths,
                                               const int* targetLengths, const int* rangeBegins,
                                               const unsigned long long* dropoutSeed, void* costs, void* workspace,
                                               size_t workspaceSizeInBytes, void* reserveSpace,
                                               size_t reserveSizeInBytes);
PRNN_API prnnStatus_t prnnJointRNNTLossBackward(prnnHandle_t handle, const prnnJointRNNTLossOptions_t* options,
                                                const void* encoder, const void* predictor, const void* weight,
                                                const void* bias, const int* targets, const int* frameLengths,
                                                const int* targetLengths, const int* rangeBegins,
                                                const unsigned long long* dropoutSeed, const void* costGradients,
                                                void* encoderGradients, void* predictorGradients, void* weightGradients,
                                                void* biasGradients, void* workspace, size_t workspaceSizeInBytes,
                                                const void* reserveSpace, size_t reserveSizeInBytes);

/* ---- TDT with its joiner ------------------------------------------------------------------------------------------
 * prnnDurationRNNTLoss (TDT) of the logits that RNN-T with its joiner has, of V + D classes: the V token logits and, in
 * the last D rows of weight and bias, the duration logits; likewise without ever holding them. The rest is as there:
 * CUDA handles alone, products, "Real". */

typedef struct {
  prnnDataType_t dataType; /* these two as for prnnJointRNNTLoss */
  prnnJointActivation_t activation;
  int64_t batch;                     /* N >= 1 */
  int64_t maxFrames;                 /* T >= 1; T_n may be 1 to T */
  int64_t maxTargets;                /* U >= 0; U_n may be 0 to U */
  int64_t rows;                      /* as for prnnJointRNNTLoss, without a pruneRange */
  int64_t joinerSize;                /* J >= 1 */
  int64_t classes;                   /* V >= 1, with the blank */
  int64_t blank;                     /* 0 <= blank < V */
  int64_t durationCount;             /* D: 1 to PRNN_MAX_DURATIONS */
  int durations[PRNN_MAX_DURATIONS]; /* the first D are read: of duration logit i, all different, >= 0, one > 0 */
  int64_t chunkCells;                /* as for prnnJointRNNTLoss */
  int zeroInfinity;                  /* these five as for prnnDurationRNNTLoss */
  double sigma;
  double omega;
  double fastEmitLambda;
  double clamp;
  double dropout; /* these two as for prnnJointRNNTLoss */
  int allowTf32;
} prnnJointTDTLossOptions_t;

/* Fills in FLOAT, TANH and zeros, of which the caller replaces the sizes and durations. */
PRNN_API prnnStatus_t prnnInitJointTDTLossOptions(prnnJointTDTLossOptions_t* options);

/* Bytes of workspace that Forward and Backward want each, and of the reserve space between them. */
PRNN_API prnnStatus_t prnnGetJointTDTLossWorkspaceSize(prnnHandle_t handle, const prnnJointTDTLossOptions_t* options,
                                                       size_t* sizeInBytes);
PRNN_API prnnStatus_t prnnGetJointTDTLossReserveSize(prnnHandle_t handle, const prnnJointTDTLossOptions_t* options,
                                                     size_t* sizeInBytes);

/* Costs, and gradients of the costs' sum, in one call.
 * encoder: {N, maxFrames, J}. predictor: {N, maxTargets + 1, J}. weight: {V + D, J}. bias: {V + D} of Real, or NULL.
 * All other arguments as for prnnJointRNNTLoss, gradients as the inputs. */
PRNN_API prnnStatus_t prnnJointTDTLoss(prnnHandle_t handle, const prnnJointTDTLossOptions_t* options,
                                       const void* encoder, const void* predictor, const void* weight, const void* bias,
                                       const int* targets, const int* frameLengths, const int* targetLengths,
                                       const unsigned long long* dropoutSeed, void* costs, void* encoderGradients,
                                       void* predictorGradients, void* weightGradients, void* biasGradients,
                                       void* workspace, size_t workspaceSizeInBytes);

/* prnnJointTDTLoss in two calls; see prnnJointRNNTLossForward. */
PRNN_API prnnStatus_t prnnJointTDTLossForward(prnnHandle_t handle, const prnnJointTDTLossOptions_t* options,
                                              const void* encoder, const void* predictor, const void* weight,
                                              const void* bias, const int* targets, const int* frameLengths,
                                              const int* targetLengths, const unsigned long long* dropoutSeed,
                                              void* costs, void* workspace, size_t workspaceSizeInBytes,
                                              void* reserveSpace, size_t reserveSizeInBytes);
PRNN_API prnnStatus_t prnnJointTDTLossBackward(prnnHandle_t handle, const prnnJointTDTLossOptions_t* options,
                                               const void* encoder, const void* predictor, const void* weight,
                                               const void* bias, const int* targets, const int* frameLengths,
                                               const int* targetLengths, const unsigned long long* dropoutSeed,
                                               const void* costGradients, void* encoderGradients,
                                               void* predictorGradients, void* weightGradients, void* biasGradients,
                                               void* workspace, size_t workspaceSizeInBytes, const void* reserveSpace,
                                               size_t reserveSizeInBytes);

#ifdef __cplusplus
}
#endif

#endif /* PRNN_LOSSES_H_ */
