/* The recurrent functions of cuDNN 8 and 9 (cudnnRNNForward and its kin) over prnn: a client that calls them compiles
 * against prnn when it includes this header instead of cudnn.h, and links with -lprnn; no cuDNN is needed. (prnn run
 * serves a program that is not compiled again.)
 *
 * Define before including it
 * - PRNN_COMPAT_CUDNN_MAJOR as 9, the default, or 8: what CUDNN_VERSION says.
 * - PRNN_COMPAT_CPU to have cudnnCreate make a CPU handle; every data pointer is a host pointer then.
 *
 * Everything that compat/cudnn_rnn.h says of names, streams and other families holds here. Covered are the three data
 * layouts, lengths in any order, states that are NULL, projections, dropout, and weight gradients that are added.
 * NOT_SUPPORTED are
 * - bias modes other than CUDNN_RNN_DOUBLE_BIAS, clipping, a padding fill other than zero, and on a CUDA handle
 *   CUDNN_WGRAD_MODE_SET;
 * - algorithms: PERSIST_STATIC and PERSIST_STATIC_SMALL_H are the resident kernels or NOT_SUPPORTED, PERSIST_DYNAMIC is
 *   NOT_SUPPORTED, STANDARD is whatever is best.
 * Lengths are those of the data descriptors: the device array of the calls is not read, as in cuDNN from 8.9.1 on.
 * Sequences that do not lie packed are packed into the workspace in each call. */
#ifndef PRNN_COMPAT_CUDNN_RNN_V8_H_
#define PRNN_COMPAT_CUDNN_RNN_V8_H_

#ifndef PRNN_COMPAT_CUDNN_MAJOR
#define PRNN_COMPAT_CUDNN_MAJOR 9
#endif
#if PRNN_COMPAT_CUDNN_MAJOR != 8 && PRNN_COMPAT_CUDNN_MAJOR != 9
#error "PRNN_COMPAT_CUDNN_MAJOR must be 8 or 9; compat/cudnn_rnn.h has the functions of 5 and 7"
#endif
#ifdef PRNN_COMPAT_CUDNN_RNN_H_
#error "one translation unit includes compat/cudnn_rnn.h or compat/cudnn_rnn_v8.h"
#endif

#include <stdlib.h>
#include <string.h>

#include "cudnn_rnn.h"

#define CUDNN_DATA_BFLOAT16 PRNN_DATA_BFLOAT16
#define CUDNN_FMA_MATH PRNN_FMA_MATH
#define CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H ((cudnnRNNAlgo_t)3)
#define CUDNN_RNN_PADDED_IO_DISABLED 0U
#define CUDNN_RNN_PADDED_IO_ENABLED 1U
typedef enum {
  CUDNN_RNN_NO_BIAS = 0,
  CUDNN_RNN_SINGLE_INP_BIAS = 1,
  CUDNN_RNN_DOUBLE_BIAS = 2,
  CUDNN_RNN_SINGLE_REC_BIAS = 3
} cudnnRNNBiasMode_t;
typedef enum {
  CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED = 0,  /* {T, N, V} */
  CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED = 1,    /* {rows, V}, from long to short, timestep after timestep */
  CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED = 2 /* {N, T, V} */
} cudnnRNNDataLayout_t;
typedef enum { CUDNN_RNN_CLIP_NONE = 0, CUDNN_RNN_CLIP_MINMAX = 1 } cudnnRNNClipMode_t;
typedef enum { CUDNN_NOT_PROPAGATE_NAN = 0, CUDNN_PROPAGATE_NAN = 1 } cudnnNanPropagation_t;
typedef prnnForwardMode_t cudnnForwardMode_t;
#define CUDNN_FWD_MODE_INFERENCE PRNN_FWD_MODE_INFERENCE
#define CUDNN_FWD_MODE_TRAINING PRNN_FWD_MODE_TRAINING
typedef prnnWgradMode_t cudnnWgradMode_t;
#define CUDNN_WGRAD_MODE_ADD PRNN_WGRAD_MODE_ADD
#define CUDNN_WGRAD_MODE_SET PRNN_WGRAD_MODE_SET

typedef struct prnnCompatRNN {
  prnnRNNDescriptor_t rnn;
  prnnFilterDescriptor_t weights;
  cudnnRNNAlgo_t algo;
  cudnnRNNMode_t mode;
  cudnnRNNBiasMode_t bias;
  cudnnDirectionMode_t direction;
  cudnnRNNInputMode_t input_mode;
  cudnnDataType_t type, precision;
  cudnnMathType_t math;
  int32_t input, hidden, projection, layers;
  cudnnDropoutDescriptor_t dropout;
  uint32_t flags;
}* cudnnRNNDescriptor_t;

typedef struct prnnCompatRNNData {
  cudnnDataType_t type;
  cudnnRNNDataLayout_t layout;
  int steps, batch, width;              /* T, N, V; a descriptor that was not set has a batch of 0 */
  int longest, sorted;                  /* the largest length; whether lengths already go from long to short */
  int *lengths, *order, *batch_sizes;   /* {N}, {N}, {longest} */
  prnnTensorDescriptor_t *each, *owned; /* {longest}, those of equal batches are one; {owned_count} */
  int owned_count;
}* cudnnRNNDataDescriptor_t;

#define cudnnCreateRNNDescriptor prnn_compat_cudnn_create_rnn
#define cudnnDestroyRNNDescriptor prnn_compat_cudnn_destroy_rnn
#define cudnnSetRNNDescriptor_v8 prnn_compat_cudnn_set_rnn
#define cudnnGetRNNDescriptor_v8 prnn_compat_cudnn_get_rnn
#define cudnnRNNSetClip_v8 prnn_compat_cudnn_set_clip_v8
#define cudnnRNNSetClip_v9 prnn_compat_cudnn_set_clip_v9
#define cudnnBuildRNNDynamic prnn_compat_cudnn_build_dynamic
#define cudnnCreateRNNDataDescriptor prnn_compat_cudnn_create_data
#define cudnnDestroyRNNDataDescriptor prnn_compat_cudnn_destroy_data
#define cudnnSetRNNDataDescriptor prnn_compat_cudnn_set_data
#define cudnnGetRNNDataDescriptor prnn_compat_cudnn_get_data
#define cudnnGetRNNTempSpaceSizes prnn_compat_cudnn_temp_space_sizes
#define cudnnGetRNNWeightSpaceSize prnn_compat_cudnn_weight_space_size
#define cudnnGetRNNWeightParams prnn_compat_cudnn_weight_params
#define cudnnRNNForward prnn_compat_cudnn_forward
#define cudnnRNNBackwardData_v8 prnn_compat_cudnn_backward_data
#define cudnnRNNBackwardWeights_v8 prnn_compat_cudnn_backward_weights

#define PRNN_COMPAT_TRY(call)                                 \
  do {                                                        \
    const prnnStatus_t try_status = (call);                   \
    if (try_status != PRNN_STATUS_SUCCESS) return try_status; \
  } while (0)

/* ---- descriptors of layers ----------------------------------------------------------------------------------------
 */

static inline cudnnStatus_t prnn_compat_cudnn_destroy_rnn(cudnnRNNDescriptor_t rnn) {
  if (rnn == NULL) return CUDNN_STATUS_SUCCESS;
  prnnDestroyRNNDescriptor(rnn->rnn);
  prnnDestroyFilterDescriptor(rnn->weights);
  free(rnn);
  return CUDNN_STATUS_SUCCESS;
}

static inline cudnnStatus_t prnn_compat_cudnn_create_rnn(cudnnRNNDescriptor_t* rnn) {
  prnnStatus_t status;
  if (rnn == NULL) return CUDNN_STATUS_BAD_PARAM;
  *rnn = (cudnnRNNDescriptor_t)calloc(1, sizeof(**rnn));
  if (*rnn == NULL) return CUDNN_STATUS_ALLOC_FAILED;
  status = prnnCreateRNNDescriptor(&(*rnn)->rnn);
  if (status == PRNN_STATUS_SUCCESS) status = prnnCreateFilterDescriptor(&(*rnn)->weights);
  if (status == PRNN_STATUS_SUCCESS) return status;
  prnn_compat_cudnn_destroy_rnn(*rnn);
  *rnn = NULL;
  return status;
}

/* precision: of the arithmetic; whatever it is, sums are float, those of double are double. projection == hidden: none.
 * math: DEFAULT and TENSOR_OP_MATH_ALLOW_CONVERSION let float be rounded to tf32 on a GPU, as in cuDNN. */
static inline cudnnStatus_t prnn_compat_cudnn_set_rnn(cudnnRNNDescriptor_t rnn, cudnnRNNAlgo_t algo,
                                                      cudnnRNNMode_t mode, cudnnRNNBiasMode_t bias,
                                                      cudnnDirectionMode_t direction, cudnnRNNInputMode_t input_mode,
                                                      cudnnDataType_t type, cudnnDataType_t precision,
                                                      cudnnMathType_t math, int32_t input, int32_t hidden,
                                                      int32_t projection, int32_t layers,
                                                      cudnnDropoutDescriptor_t dropout, uint32_t flags) {
  const int rounds = math == CUDNN_DEFAULT_MATH || math == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION;
  const int is_standard = algo == CUDNN_RNN_ALGO_STANDARD;
  if (rnn == NULL || input < 1 || projection < 1 || projection > hidden || flags > 1U || bias < CUDNN_RNN_NO_BIAS ||
      bias > CUDNN_RNN_SINGLE_REC_BIAS)
    return CUDNN_STATUS_BAD_PARAM;
  if (bias != CUDNN_RNN_DOUBLE_BIAS) return CUDNN_STATUS_NOT_SUPPORTED;
  if (!is_standard && algo != CUDNN_RNN_ALGO_PERSIST_STATIC && algo != CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H)
    return CUDNN_STATUS_NOT_SUPPORTED;
  PRNN_COMPAT_TRY(prnnSetRNNDescriptor(rnn->rnn, hidden, layers, dropout, input_mode, direction, mode, type));
  PRNN_COMPAT_TRY(prnnSetRNNProjectionSize(rnn->rnn, projection == hidden ? 0 : projection));
  PRNN_COMPAT_TRY(prnnSetRNNBackend(rnn->rnn, is_standard ? PRNN_BEST_BACKEND : PRNN_PERSISTENT_BACKEND));
  PRNN_COMPAT_TRY(
      prnnSetRNNMatrixMathType(rnn->rnn, rounds ? PRNN_TENSOR_OP_MATH_ALLOW_CONVERSION : PRNN_DEFAULT_MATH));
  rnn->algo = algo, rnn->mode = mode, rnn->bias = bias, rnn->direction = direction, rnn->input_mode = input_mode;
  rnn->type = type, rnn->precision = precision, rnn->math = math, rnn->input = input, rnn->hidden = hidden;
  rnn->projection = projection, rnn->layers = layers, rnn->dropout = dropout, rnn->flags = flags;
  return CUDNN_STATUS_SUCCESS;
}

/* Any of the results may be NULL. */
static inline cudnnStatus_t prnn_compat_cudnn_get_rnn(cudnnRNNDescriptor_t rnn, cudnnRNNAlgo_t* algo,
                                                      cudnnRNNMode_t* mode, cudnnRNNBiasMode_t* bias,
                                                      cudnnDirectionMode_t* direction, cudnnRNNInputMode_t* input_mode,
                                                      cudnnDataType_t* type, cudnnDataType_t* precision,
                                                      cudnnMathType_t* math, int32_t* input, int32_t* hidden,
                                                      int32_t* projection, int32_t* layers,
                                                      cudnnDropoutDescriptor_t* dropout, uint32_t* flags) {
  if (rnn == NULL || rnn->layers == 0) return CUDNN_STATUS_BAD_PARAM;
  if (algo != NULL) *algo = rnn->algo;
  if (mode != NULL) *mode = rnn->mode;
  if (bias != NULL) *bias = rnn->bias;
  if (direction != NULL) *direction = rnn->direction;
  if (input_mode != NULL) *input_mode = rnn->input_mode;
  if (type != NULL) *type = rnn->type;
  if (precision != NULL) *precision = rnn->precision;
  if (math != NULL) *math = rnn->math;
  if (input != NULL) *input = rnn->input;
  if (hidden != NULL) *hidden = rnn->hidden;
  if (projection != NULL) *projection = rnn->projection;
  if (layers != NULL) *layers = rnn->layers;
  if (dropout != NULL) *dropout = rnn->dropout;
  if (flags != NULL) *flags = rnn->flags;
  return CUDNN_STATUS_SUCCESS;
}

static inline cudnnStatus_t prnn_compat_cudnn_set_clip_v9(cudnnRNNDescriptor_t rnn, cudnnRNNClipMode_t mode, double low,
                                                          double high) {
  (void)low, (void)high;
  if (rnn == NULL) return CUDNN_STATUS_BAD_PARAM;
  return mode == CUDNN_RNN_CLIP_NONE ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

static inline cudnnStatus_t prnn_compat_cudnn_set_clip_v8(cudnnRNNDescriptor_t rnn, cudnnRNNClipMode_t mode,
                                                          cudnnNanPropagation_t nan, double low, double high) {
  (void)nan;
  return prnn_compat_cudnn_set_clip_v9(rnn, mode, low, high);
}

/* Only PERSIST_DYNAMIC, which there is not, is to be built. */
static inline cudnnStatus_t prnn_compat_cudnn_build_dynamic(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, int batch) {
  (void)handle, (void)rnn, (void)batch;
  return CUDNN_STATUS_NOT_SUPPORTED;
}

/* ---- descriptors of data ------------------------------------------------------------------------------------------
 */

static inline void prnn_compat_cudnn_clear_data(cudnnRNNDataDescriptor_t data) {
  int i;
  for (i = 0; i < data->owned_count; ++i) prnnDestroyTensorDescriptor(data->owned[i]);
  free(data->lengths), free(data->order), free(data->batch_sizes), free(data->each), free(data->owned);
  memset(data, 0, sizeof(*data));
}

static inline cudnnStatus_t prnn_compat_cudnn_create_data(cudnnRNNDataDescriptor_t* data) {
  if (data == NULL) return CUDNN_STATUS_BAD_PARAM;
  *data = (cudnnRNNDataDescriptor_t)calloc(1, sizeof(**data));
  return *data == NULL ? CUDNN_STATUS_ALLOC_FAILED : CUDNN_STATUS_SUCCESS;
}

static inline cudnnStatus_t prnn_compat_cudnn_destroy_data(cudnnRNNDataDescriptor_t data) {
  if (data == NULL) return CUDNN_STATUS_SUCCESS;
  prnn_compat_cudnn_clear_data(data);
  free(data);
  return CUDNN_STATUS_SUCCESS;
}

static inline size_t prnn_compat_cudnn_element(cudnnDataType_t type) {
  return type == CUDNN_DATA_DOUBLE ? 8 : type == CUDNN_DATA_FLOAT ? 4 : 2;
}

/* lengths: {batch}, each from 1 to steps; from long to short for PACKED. padding: an element of the data type, which
 * must be zero, or NULL: what y and dx hold beyond a length is zero in either case. */
static inline cudnnStatus_t prnn_compat_cudnn_set_data(cudnnRNNDataDescriptor_t data, cudnnDataType_t type,
                                                       cudnnRNNDataLayout_t layout, int steps, int batch, int width,
                                                       const int lengths[], void* padding) {
  const double zero = 0;
  int i, t, sorted = 1, longest = 0, count = 0;
  if (data == NULL || steps < 1 || batch < 1 || width < 1 || lengths == NULL ||
      layout < CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED || layout > CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED)
    return CUDNN_STATUS_BAD_PARAM;
  if (type != CUDNN_DATA_DOUBLE && type != CUDNN_DATA_FLOAT && type != CUDNN_DATA_HALF && type != CUDNN_DATA_BFLOAT16)
    return CUDNN_STATUS_NOT_SUPPORTED;
  for (i = 0; i < batch; ++i) {
    if (lengths[i] < 1 || lengths[i] > steps) return CUDNN_STATUS_BAD_PARAM;
    if (i > 0 && lengths[i] > lengths[i - 1]) sorted = 0;
    if (lengths[i] > longest) longest = lengths[i];
  }
  if (layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED && !sorted) return CUDNN_STATUS_BAD_PARAM;
  if (padding != NULL && memcmp(padding, &zero, prnn_compat_cudnn_element(type)) != 0)
    return CUDNN_STATUS_NOT_SUPPORTED;
  prnn_compat_cudnn_clear_data(data);
  data->lengths = (int*)malloc(sizeof(int) * (size_t)batch);
  data->order = (int*)malloc(sizeof(int) * (size_t)batch);
  data->batch_sizes = (int*)calloc((size_t)longest, sizeof(int));
  data->each = (prnnTensorDescriptor_t*)malloc(sizeof(prnnTensorDescriptor_t) * (size_t)longest);
  data->owned = (prnnTensorDescriptor_t*)malloc(sizeof(prnnTensorDescriptor_t) * (size_t)longest);
  if (!data->lengths || !data->order || !data->batch_sizes || !data->each || !data->owned) {
    prnn_compat_cudnn_clear_data(data);
    return CUDNN_STATUS_ALLOC_FAILED;
  }
  memcpy(data->lengths, lengths, sizeof(int) * (size_t)batch);
  for (i = 0; i < batch; ++i) ++data->batch_sizes[lengths[i] - 1];
  for (t = longest - 1; t > 0; --t) data->batch_sizes[t - 1] += data->batch_sizes[t];
  for (t = longest; t > 0; --t) { /* sequences of equal length keep their order */
    if (t < longest && data->batch_sizes[t - 1] == data->batch_sizes[t]) continue;
    for (i = 0; i < batch; ++i)
      if (lengths[i] == t) data->order[count++] = i;
  }
  for (t = 0; t < longest; ++t) {
    if (t == 0 || data->batch_sizes[t] != data->batch_sizes[t - 1]) {
      const int dims[3] = {data->batch_sizes[t], width, 1}, strides[3] = {width, 1, 1};
      prnnStatus_t status = prnnCreateTensorDescriptor(&data->owned[data->owned_count]);
      if (status == PRNN_STATUS_SUCCESS)
        status = prnnSetTensorNdDescriptor(data->owned[data->owned_count++], type, 3, dims, strides);
      if (status != PRNN_STATUS_SUCCESS) {
        prnn_compat_cudnn_clear_data(data);
        return status;
      }
    }
    data->each[t] = data->owned[data->owned_count - 1];
  }
  data->type = type, data->layout = layout, data->steps = steps, data->batch = batch, data->width = width;
  data->longest = longest, data->sorted = sorted;
  return CUDNN_STATUS_SUCCESS;
}

/* lengths: the first lengths_requested of them. padding: set to a zero of the data type. */
static inline cudnnStatus_t prnn_compat_cudnn_get_data(cudnnRNNDataDescriptor_t data, cudnnDataType_t* type,
                                                       cudnnRNNDataLayout_t* layout, int* steps, int* batch, int* width,
                                                       int lengths_requested, int lengths[], void* padding) {
  int i;
  if (data == NULL || data->batch == 0 || lengths_requested < 0) return CUDNN_STATUS_BAD_PARAM;
  if (type != NULL) *type = data->type;
  if (layout != NULL) *layout = data->layout;
  if (steps != NULL) *steps = data->steps;
  if (batch != NULL) *batch = data->batch;
  if (width != NULL) *width = data->width;
  for (i = 0; i < lengths_requested && i < data->batch; ++i) lengths[i] = data->lengths[i];
  if (padding != NULL) memset(padding, 0, prnn_compat_cudnn_element(data->type));
  return CUDNN_STATUS_SUCCESS;
}

/* ---- sizes, weights -----------------------------------------------------------------------------------------------
 */

static inline int prnn_compat_cudnn_directions(cudnnRNNDescriptor_t rnn) {
  return rnn->direction == CUDNN_BIDIRECTIONAL ? 2 : 1;
}

/* One timestep of one sequence, for the queries that ask for no more. */
static inline cudnnStatus_t prnn_compat_cudnn_one_row(cudnnRNNDescriptor_t rnn, prnnTensorDescriptor_t* x) {
  const int dims[3] = {1, rnn->input, 1}, strides[3] = {rnn->input, 1, 1};
  PRNN_COMPAT_TRY(prnnCreateTensorDescriptor(x));
  return prnnSetTensorNdDescriptor(*x, rnn->type, 3, dims, strides);
}

/* Also describes the weights for the calls that follow. */
static inline cudnnStatus_t prnn_compat_cudnn_weight_space_size(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
                                                                size_t* size) {
  prnnTensorDescriptor_t x = NULL;
  prnnStatus_t status;
  if (rnn == NULL || rnn->layers == 0 || size == NULL) return CUDNN_STATUS_BAD_PARAM;
  status = prnn_compat_cudnn_one_row(rnn, &x);
  if (status == PRNN_STATUS_SUCCESS) status = prnnGetRNNParamsSize(handle, rnn->rnn, x, size, rnn->type);
  prnnDestroyTensorDescriptor(x);
  if (status == PRNN_STATUS_SUCCESS) {
    const size_t elements = *size / prnn_compat_cudnn_element(rnn->type);
    const int dims[3] = {(int)elements, 1, 1};
    if (elements > INT32_MAX) return CUDNN_STATUS_NOT_SUPPORTED;
    status = prnnSetFilterNdDescriptor(rnn->weights, rnn->type, PRNN_TENSOR_NCHW, 3, dims);
  }
  return status;
}

/* id: 0 to G - 1 the matrices on the input, G to 2 G - 1 those on the state, 2 G the LSTM's projection (8). matrix_desc
 * and bias_desc become {1, rows, columns} and {1, rows, 1}; a matrix or bias that there is not (of a skipped input, of
 * the projection) has the address NULL. space NULL: offsets. */
static inline cudnnStatus_t prnn_compat_cudnn_weight_params(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
                                                            int32_t pseudo_layer, size_t size, const void* space,
                                                            int32_t id, cudnnTensorDescriptor_t matrix_desc,
                                                            void** matrix, cudnnTensorDescriptor_t bias_desc,
                                                            void** bias) {
  prnnTensorDescriptor_t x = NULL;
  prnnFilterDescriptor_t found = NULL;
  prnnStatus_t status;
  size_t wanted = 0;
  int gates, is_input, is_projection, directions, matrix_dims[3] = {1, 0, 0}, bias_dims[3] = {1, 0, 1};
  PRNN_COMPAT_TRY(prnn_compat_cudnn_weight_space_size(handle, rnn, &wanted));
  if (size < wanted || matrix_desc == NULL || matrix == NULL || bias_desc == NULL || bias == NULL)
    return CUDNN_STATUS_BAD_PARAM;
  gates = rnn->mode == CUDNN_LSTM ? 4 : rnn->mode == CUDNN_GRU ? 3 : 1;
  directions = prnn_compat_cudnn_directions(rnn);
  is_input = id < gates, is_projection = rnn->mode == CUDNN_LSTM && id == 8;
  matrix_dims[1] = is_projection ? rnn->projection : rnn->hidden;
  matrix_dims[2] = is_projection                                ? rnn->hidden
                   : is_input && pseudo_layer / directions == 0 ? rnn->input
                   : is_input                                   ? rnn->projection * directions
                                                                : rnn->projection;
  bias_dims[1] = rnn->hidden;
  *matrix = *bias = NULL;
  status = prnn_compat_cudnn_one_row(rnn, &x);
  if (status == PRNN_STATUS_SUCCESS) status = prnnCreateFilterDescriptor(&found);
  if (status == PRNN_STATUS_SUCCESS && !(is_projection && rnn->projection == rnn->hidden) &&
      !(is_input && rnn->input_mode == CUDNN_SKIP_INPUT && pseudo_layer / directions == 0))
    status = prnnGetRNNLinLayerMatrixParams(handle, rnn->rnn, pseudo_layer, x, rnn->weights, space, id, found, matrix);
  if (status == PRNN_STATUS_SUCCESS && !is_projection)
    status = prnnGetRNNLinLayerBiasParams(handle, rnn->rnn, pseudo_layer, x, rnn->weights, space, id, found, bias);
  if (status == PRNN_STATUS_SUCCESS) {
    const int strides[3] = {matrix_dims[1] * matrix_dims[2], matrix_dims[2], 1}, ones[3] = {rnn->hidden, 1, 1};
    status = prnnSetTensorNdDescriptor(matrix_desc, rnn->type, 3, matrix_dims, strides);
    if (status == PRNN_STATUS_SUCCESS) status = prnnSetTensorNdDescriptor(bias_desc, rnn->type, 3, bias_dims, ones);
  }
  prnnDestroyFilterDescriptor(found);
  prnnDestroyTensorDescriptor(x);
  return status;
}

/* ---- the workspace: prnn's own, packed sequences, sorted states ---------------------------------------------------
 */

typedef struct {
  size_t own;             /* bytes of prnn's workspace, which comes first */
  size_t sequence, state; /* bytes of one of the three packed sequences, of one of the six sorted states */
  size_t total;
  int packs, sorts;
} prnnCompatSpaces;

static inline size_t prnn_compat_cudnn_aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

static inline cudnnStatus_t prnn_compat_cudnn_spaces(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
                                                     cudnnForwardMode_t mode, cudnnRNNDataDescriptor_t x,
                                                     prnnCompatSpaces* spaces, size_t* reserve) {
  size_t element, rows, widest, unused;
  int is_even;
  if (rnn == NULL || rnn->layers == 0 || x == NULL || x->batch == 0 || x->width != rnn->input || x->type != rnn->type)
    return CUDNN_STATUS_BAD_PARAM;
  PRNN_COMPAT_TRY(prnnGetRNNTempSpaceSizes(handle, rnn->rnn, mode, x->longest, x->each, &spaces->own, &unused));
  *reserve = unused;
  element = prnn_compat_cudnn_element(rnn->type);
  rows = (size_t)x->longest * (size_t)x->batch;
  widest = (size_t)(rnn->projection * prnn_compat_cudnn_directions(rnn));
  if (widest < (size_t)rnn->input) widest = (size_t)rnn->input;
  is_even = x->batch_sizes[x->longest - 1] == x->batch; /* all sequences are as long */
  spaces->packs = x->layout == CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED ? x->batch > 1 || x->longest < x->steps
                  : x->layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED ? !is_even || x->longest < x->steps
                                                                          : 0;
  spaces->sorts = !x->sorted;
  spaces->sequence = spaces->packs ? prnn_compat_cudnn_aligned(rows * widest * element) : 0;
  spaces->state = spaces->sorts ? prnn_compat_cudnn_aligned((size_t)(rnn->layers * prnn_compat_cudnn_directions(rnn)) *
                                                            (size_t)x->batch * (size_t)rnn->hidden * element)
                                : 0;
  spaces->own = prnn_compat_cudnn_aligned(spaces->own);
  spaces->total = 256 + spaces->own + 3 * spaces->sequence + 6 * spaces->state;
  return CUDNN_STATUS_SUCCESS;
}

static inline cudnnStatus_t prnn_compat_cudnn_temp_space_sizes(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
                                                               cudnnForwardMode_t mode, cudnnRNNDataDescriptor_t x,
                                                               size_t* workspace, size_t* reserve) {
  prnnCompatSpaces spaces;
  size_t reserve_size = 0;
  PRNN_COMPAT_TRY(prnn_compat_cudnn_spaces(handle, rnn, mode, x, &spaces, &reserve_size));
  if (workspace != NULL) *workspace = spaces.total;
  if (reserve != NULL) *reserve = reserve_size;
  return CUDNN_STATUS_SUCCESS;
}

/* The objects that a call works with. */
typedef struct {
  cudnnHandle_t handle;
  cudnnRNNDescriptor_t rnn;
  cudnnRNNDataDescriptor_t x, y;
  prnnCompatSpaces spaces;
  char* workspace;
} prnnCompatCall;

static inline cudnnStatus_t prnn_compat_cudnn_begin(prnnCompatCall* call, cudnnForwardMode_t mode, size_t weights_size,
                                                    const void* weights, size_t workspace_size, void* workspace) {
  size_t wanted = 0, reserve = 0;
  PRNN_COMPAT_TRY(prnn_compat_cudnn_weight_space_size(call->handle, call->rnn, &wanted));
  if (weights_size < wanted || weights == NULL) return CUDNN_STATUS_BAD_PARAM;
  PRNN_COMPAT_TRY(prnn_compat_cudnn_spaces(call->handle, call->rnn, mode, call->x, &call->spaces, &reserve));
  if (call->y == NULL || call->y->batch != call->x->batch || call->y->steps != call->x->steps ||
      call->y->layout != call->x->layout || call->y->type != call->x->type ||
      call->y->width != call->rnn->projection * prnn_compat_cudnn_directions(call->rnn) ||
      memcmp(call->y->lengths, call->x->lengths, sizeof(int) * (size_t)call->x->batch) != 0)
    return CUDNN_STATUS_BAD_PARAM;
  if (workspace == NULL || workspace_size < call->spaces.total) return CUDNN_STATUS_BAD_PARAM;
  call->workspace = (char*)workspace + (256 - (size_t)((uintptr_t)workspace % 256)) % 256;
  return CUDNN_STATUS_SUCCESS;
}

static inline char* prnn_compat_cudnn_sequence(const prnnCompatCall* call, int piece) {
  return call->workspace + call->spaces.own + (size_t)piece * call->spaces.sequence;
}

static inline char* prnn_compat_cudnn_state(const prnnCompatCall* call, int piece) {
  return prnn_compat_cudnn_sequence(call, 3) + (size_t)piece * call->spaces.state;
}

static inline void prnn_compat_cudnn_strides(cudnnRNNDataDescriptor_t data, size_t* row, size_t* step,
                                             size_t* sequence) {
  const int by_batch = data->layout == CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED;
  *row = (size_t)data->width * prnn_compat_cudnn_element(data->type);
  *step = *row * (size_t)(by_batch ? 1 : data->batch);
  *sequence = *row * (size_t)(by_batch ? data->steps : 1);
}

/* Where prnn reads a sequence; packed first if it does not lie so. */
static inline cudnnStatus_t prnn_compat_cudnn_pack(const prnnCompatCall* call, cudnnRNNDataDescriptor_t data,
                                                   const void* from, int piece, const void** packed) {
  size_t row, step, sequence;
  *packed = from;
  if (!call->spaces.packs || from == NULL) return CUDNN_STATUS_SUCCESS;
  *packed = prnn_compat_cudnn_sequence(call, piece);
  prnn_compat_cudnn_strides(data, &row, &step, &sequence);
  return prnnPackSequences(call->handle, data->longest, data->batch_sizes, data->order, row, from, step, sequence,
                           prnn_compat_cudnn_sequence(call, piece));
}

static inline void* prnn_compat_cudnn_packed_output(const prnnCompatCall* call, void* to, int piece) {
  return call->spaces.packs && to != NULL ? prnn_compat_cudnn_sequence(call, piece) : to;
}

static inline cudnnStatus_t prnn_compat_cudnn_unpack(const prnnCompatCall* call, cudnnRNNDataDescriptor_t data,
                                                     void* to, int piece) {
  size_t row, step, sequence;
  if (!call->spaces.packs || to == NULL) return CUDNN_STATUS_SUCCESS;
  prnn_compat_cudnn_strides(data, &row, &step, &sequence);
  return prnnUnpackSequences(call->handle, data->longest, data->batch_sizes, data->order, row,
                             prnn_compat_cudnn_sequence(call, piece), to, data->steps, step, sequence);
}

/* States are sorted as their sequences: of pieces with even numbers h, of the others c. to_sorted 0: back to the
 * caller. */
static inline cudnnStatus_t prnn_compat_cudnn_sort(const prnnCompatCall* call, int to_sorted, const void* from,
                                                   void* to, int piece) {
  const int count = call->rnn->layers * prnn_compat_cudnn_directions(call->rnn), batch = call->x->batch;
  const size_t row =
      (size_t)(piece % 2 == 0 ? call->rnn->projection : call->rnn->hidden) * prnn_compat_cudnn_element(call->rnn->type);
  int i;
  /* A pseudo-layer at a time: one "timestep" of all sequences. */
  for (i = 0; i < count; ++i) {
    const size_t at = (size_t)i * (size_t)batch * row;
    if (to_sorted)
      PRNN_COMPAT_TRY(prnnPackSequences(call->handle, 1, &batch, call->x->order, row, (const char*)from + at,
                                        row * (size_t)batch, row, prnn_compat_cudnn_state(call, piece) + at));
    else
      PRNN_COMPAT_TRY(prnnUnpackSequences(call->handle, 1, &batch, call->x->order, row,
                                          prnn_compat_cudnn_state(call, piece) + at, (char*)to + at, 1,
                                          row * (size_t)batch, row));
  }
  return CUDNN_STATUS_SUCCESS;
}

static inline cudnnStatus_t prnn_compat_cudnn_sorted(const prnnCompatCall* call, const void* from, int piece,
                                                     const void** sorted) {
  *sorted = from;
  if (!call->spaces.sorts || from == NULL) return CUDNN_STATUS_SUCCESS;
  *sorted = prnn_compat_cudnn_state(call, piece);
  return prnn_compat_cudnn_sort(call, 1, from, NULL, piece);
}

static inline void* prnn_compat_cudnn_sorted_output(const prnnCompatCall* call, void* to, int piece) {
  return call->spaces.sorts && to != NULL ? prnn_compat_cudnn_state(call, piece) : to;
}

static inline cudnnStatus_t prnn_compat_cudnn_unsort(const prnnCompatCall* call, void* to, int piece) {
  if (!call->spaces.sorts || to == NULL) return CUDNN_STATUS_SUCCESS;
  return prnn_compat_cudnn_sort(call, 0, NULL, to, piece);
}

/* ---- calls --------------------------------------------------------------------------------------------------------
 */

static inline cudnnStatus_t prnn_compat_cudnn_forward(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
                                                      cudnnForwardMode_t mode, const int32_t device_lengths[],
                                                      cudnnRNNDataDescriptor_t x_desc, const void* x,
                                                      cudnnRNNDataDescriptor_t y_desc, void* y,
                                                      cudnnTensorDescriptor_t h_desc, const void* hx, void* hy,
                                                      cudnnTensorDescriptor_t c_desc, const void* cx, void* cy,
                                                      size_t weights_size, const void* weights, size_t workspace_size,
                                                      void* workspace, size_t reserve_size, void* reserve) {
  prnnCompatCall call = {handle, rnn, x_desc, y_desc, {0, 0, 0, 0, 0, 0}, NULL};
  const void *xp, *h0, *c0;
  void *yp, *h1, *c1;
  (void)device_lengths;
  PRNN_COMPAT_TRY(prnn_compat_cudnn_begin(&call, mode, weights_size, weights, workspace_size, workspace));
  PRNN_COMPAT_TRY(prnn_compat_cudnn_pack(&call, x_desc, x, 0, &xp));
  PRNN_COMPAT_TRY(prnn_compat_cudnn_sorted(&call, hx, 0, &h0));
  PRNN_COMPAT_TRY(prnn_compat_cudnn_sorted(&call, cx, 1, &c0));
  yp = prnn_compat_cudnn_packed_output(&call, y, 1);
  h1 = prnn_compat_cudnn_sorted_output(&call, hy, 2), c1 = prnn_compat_cudnn_sorted_output(&call, cy, 3);
  if (mode == CUDNN_FWD_MODE_TRAINING)
    PRNN_COMPAT_TRY(prnnRNNForwardTraining(handle, rnn->rnn, x_desc->longest, x_desc->each, xp, h_desc, h0, c_desc, c0,
                                           rnn->weights, weights, y_desc->each, yp, h_desc, h1, c_desc, c1,
                                           call.workspace, call.spaces.own, reserve, reserve_size));
  else
    PRNN_COMPAT_TRY(prnnRNNForwardInference(handle, rnn->rnn, x_desc->longest, x_desc->each, xp, h_desc, h0, c_desc, c0,
                                            rnn->weights, weights, y_desc->each, yp, h_desc, h1, c_desc, c1,
                                            call.workspace, call.spaces.own));
  PRNN_COMPAT_TRY(prnn_compat_cudnn_unpack(&call, y_desc, y, 1));
  PRNN_COMPAT_TRY(prnn_compat_cudnn_unsort(&call, hy, 2));
  return prnn_compat_cudnn_unsort(&call, cy, 3);
}

static inline cudnnStatus_t prnn_compat_cudnn_backward_data(
    cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, const int32_t device_lengths[], cudnnRNNDataDescriptor_t y_desc,
    const void* y, const void* dy, cudnnRNNDataDescriptor_t x_desc, void* dx, cudnnTensorDescriptor_t h_desc,
    const void* hx, const void* dhy, void* dhx, cudnnTensorDescriptor_t c_desc, const void* cx, const void* dcy,
    void* dcx, size_t weights_size, const void* weights, size_t workspace_size, void* workspace, size_t reserve_size,
    void* reserve) {
  prnnCompatCall call = {handle, rnn, x_desc, y_desc, {0, 0, 0, 0, 0, 0}, NULL};
  const void *yp, *dyp, *h0, *c0, *dh1, *dc1;
  void *dxp, *dh0, *dc0;
  (void)device_lengths;
  PRNN_COMPAT_TRY(
      prnn_compat_cudnn_begin(&call, CUDNN_FWD_MODE_TRAINING, weights_size, weights, workspace_size, workspace));
  PRNN_COMPAT_TRY(prnn_compat_cudnn_pack(&call, y_desc, y, 0, &yp));
  PRNN_COMPAT_TRY(prnn_compat_cudnn_pack(&call, y_desc, dy, 1, &dyp));
  PRNN_COMPAT_TRY(prnn_compat_cudnn_sorted(&call, hx, 0, &h0));
  PRNN_COMPAT_TRY(prnn_compat_cudnn_sorted(&call, cx, 1, &c0));
  PRNN_COMPAT_TRY(prnn_compat_cudnn_sorted(&call, dhy, 2, &dh1));
  PRNN_COMPAT_TRY(prnn_compat_cudnn_sorted(&call, dcy, 3, &dc1));
  dxp = prnn_compat_cudnn_packed_output(&call, dx, 2);
  dh0 = prnn_compat_cudnn_sorted_output(&call, dhx, 4), dc0 = prnn_compat_cudnn_sorted_output(&call, dcx, 5);
  PRNN_COMPAT_TRY(prnnRNNBackwardData(handle, rnn->rnn, x_desc->longest, y_desc->each, yp, y_desc->each, dyp, h_desc,
                                      dh1, c_desc, dc1, rnn->weights, weights, h_desc, h0, c_desc, c0, x_desc->each,
                                      dxp, h_desc, dh0, c_desc, dc0, call.workspace, call.spaces.own, reserve,
                                      reserve_size));
  PRNN_COMPAT_TRY(prnn_compat_cudnn_unpack(&call, x_desc, dx, 2));
  PRNN_COMPAT_TRY(prnn_compat_cudnn_unsort(&call, dhx, 4));
  return prnn_compat_cudnn_unsort(&call, dcx, 5);
}

static inline cudnnStatus_t prnn_compat_cudnn_backward_weights(
    cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnWgradMode_t add, const int32_t device_lengths[],
    cudnnRNNDataDescriptor_t x_desc, const void* x, cudnnTensorDescriptor_t h_desc, const void* hx,
    cudnnRNNDataDescriptor_t y_desc, const void* y, size_t weights_size, void* dweights, size_t workspace_size,
    void* workspace, size_t reserve_size, void* reserve) {
  prnnCompatCall call = {handle, rnn, x_desc, y_desc, {0, 0, 0, 0, 0, 0}, NULL};
  const void *xp, *yp, *h0;
  (void)device_lengths;
  PRNN_COMPAT_TRY(
      prnn_compat_cudnn_begin(&call, CUDNN_FWD_MODE_TRAINING, weights_size, dweights, workspace_size, workspace));
  PRNN_COMPAT_TRY(prnnSetRNNWgradMode(rnn->rnn, add));
  PRNN_COMPAT_TRY(prnn_compat_cudnn_pack(&call, x_desc, x, 0, &xp));
  PRNN_COMPAT_TRY(prnn_compat_cudnn_pack(&call, y_desc, y, 1, &yp));
  PRNN_COMPAT_TRY(prnn_compat_cudnn_sorted(&call, hx, 0, &h0));
  return prnnRNNBackwardWeights(handle, rnn->rnn, x_desc->longest, x_desc->each, xp, h_desc, h0, y_desc->each, yp,
                                call.workspace, call.spaces.own, rnn->weights, dweights, reserve, reserve_size);
}

#endif /* PRNN_COMPAT_CUDNN_RNN_V8_H_ */
