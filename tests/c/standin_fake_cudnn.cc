// A libcudnn.so.9 without kernels, for tests of the library that stands in front of it: the descriptors and getters are
// those of cuDNN 9, the recurrent functions only count their calls. Environment: FAKE_CUDNN_VERSION; FAKE_CUDNN_LAYOUT
// "apart" lays the weights out with gaps and in another order than cuDNN does. All memory is the host's.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr int kOk = 0, kBadParam = 2000;

struct Handle {
  void* stream;
};
struct Tensor {
  int type, rank, dims[8], strides[8];
};
struct Dropout {
  float probability;
  void* states;
  unsigned long long seed;
};
struct Rnn {
  int values[12];
  void* dropout;
  uint32_t flags;
  int clip_mode;
  double low, high;
};
struct Data {
  int type, layout, steps, batch, width;
  std::vector<int> lengths;
  unsigned char padding[8];
};

std::atomic<int> calls[4];

int gates_of(const Rnn& r) { return r.values[1] == 2 ? 4 : r.values[1] == 3 ? 3 : 1; }
size_t element_of(int type) { return type == 0 ? 4 : type == 1 ? 8 : 2; }

struct Place {
  size_t matrix, bias;  // offsets; SIZE_MAX: none
  int rows, columns;
};

// Places of all matrices and biases, [pseudo-layer][id]; returns the size of the space.
size_t place_all(const Rnn& r, std::vector<std::vector<Place>>* places) {
  const char* const layout = std::getenv("FAKE_CUDNN_LAYOUT");
  const bool apart = layout != nullptr && std::strcmp(layout, "apart") == 0;
  const int bias = r.values[2], directions = r.values[3] + 1, input = r.values[8], hidden = r.values[9];
  const int projection = r.values[10], layers = r.values[11], gates = gates_of(r);
  const bool skip = r.values[4] != 0;
  const size_t element = element_of(r.values[5]);
  size_t at = 0;
  const auto take = [&](size_t bytes) {
    if (apart) at = (at + 31) / 32 * 32 + 32;
    const size_t place = at;
    at += bytes;
    return place;
  };
  places->assign(layers * directions, std::vector<Place>(9, Place{SIZE_MAX, SIZE_MAX, 0, 0}));
  const auto biases = [&] {
    for (int p = 0; p < layers * directions; ++p) {
      for (int id = 0; id < 2 * gates; ++id) {
        const bool has = bias == 2 || (bias == 1 && id < gates) || (bias == 3 && id >= gates);
        if (has) (*places)[p][id].bias = take(hidden * element);
      }
    }
  };
  if (apart) biases();
  for (int p = 0; p < layers * directions; ++p) {
    for (int i = 0; i < 2 * gates; ++i) {
      const int id = apart ? 2 * gates - 1 - i : i;
      Place& place = (*places)[p][id];
      place.rows = hidden;
      place.columns = id >= gates ? projection : p < directions ? input : directions * projection;
      const bool has = id >= gates || p >= directions || !skip;
      if (has) place.matrix = take(size_t(place.rows) * place.columns * element);
    }
    if (projection != hidden)
      (*places)[p][8] = {take(size_t(projection) * hidden * element), SIZE_MAX, projection, hidden};
  }
  if (!apart) biases();
  return at;
}

template <class Object>
int create(void** object) {
  *object = new Object{};
  return kOk;
}
template <class Object>
int destroy(void* object) {
  delete static_cast<Object*>(object);
  return kOk;
}

}  // namespace

#define FAKE extern "C" __attribute__((visibility("default")))

FAKE int fakeCalls(int which) { return calls[which]; }

FAKE size_t cudnnGetVersion() {
  const char* const version = std::getenv("FAKE_CUDNN_VERSION");
  return version != nullptr ? std::strtoul(version, nullptr, 10) : 91900;
}
FAKE int cudnnCreate(void** handle) { return create<Handle>(handle); }
FAKE int cudnnDestroy(void* handle) { return destroy<Handle>(handle); }
FAKE int cudnnSetStream(void* handle, void* stream) {
  static_cast<Handle*>(handle)->stream = stream;
  return kOk;
}
FAKE int cudnnGetStream(void* handle, void** stream) {
  if (handle == nullptr) return kBadParam;
  *stream = static_cast<Handle*>(handle)->stream;
  return kOk;
}

FAKE int cudnnCreateTensorDescriptor(void** tensor) { return create<Tensor>(tensor); }
FAKE int cudnnDestroyTensorDescriptor(void* tensor) { return destroy<Tensor>(tensor); }
FAKE int cudnnSetTensorNdDescriptor(void* tensor, int type, int rank, const int* dims, const int* strides) {
  Tensor& t = *static_cast<Tensor*>(tensor);
  t.type = type;
  t.rank = rank;
  std::memcpy(t.dims, dims, rank * sizeof(int));
  std::memcpy(t.strides, strides, rank * sizeof(int));
  return kOk;
}
FAKE int cudnnGetTensorNdDescriptor(void* tensor, int requested, int* type, int* rank, int* dims, int* strides) {
  const Tensor& t = *static_cast<Tensor*>(tensor);
  *type = t.type;
  *rank = t.rank;
  std::memcpy(dims, t.dims, (requested < t.rank ? requested : t.rank) * sizeof(int));
  std::memcpy(strides, t.strides, (requested < t.rank ? requested : t.rank) * sizeof(int));
  return kOk;
}

// The states: a counter, of which every draw is a function.
FAKE int cudnnDropoutGetStatesSize(void*, size_t* size) {
  *size = 16;
  return kOk;
}
FAKE int cudnnDropoutGetReserveSpaceSize(void* tensor, size_t* size) {
  const Tensor& t = *static_cast<Tensor*>(tensor);
  *size = 1;
  for (int i = 0; i < t.rank; ++i) *size *= t.dims[i];
  return kOk;
}
FAKE int cudnnCreateDropoutDescriptor(void** dropout) { return create<Dropout>(dropout); }
FAKE int cudnnDestroyDropoutDescriptor(void* dropout) { return destroy<Dropout>(dropout); }
FAKE int cudnnRestoreDropoutDescriptor(void* dropout, void*, float probability, void* states, size_t size,
                                       unsigned long long seed) {
  if (states != nullptr && size < 16) return kBadParam;
  *static_cast<Dropout*>(dropout) = {probability, states, seed};
  return kOk;
}
FAKE int cudnnSetDropoutDescriptor(void* dropout, void* handle, float probability, void* states, size_t size,
                                   unsigned long long seed) {
  const int status = cudnnRestoreDropoutDescriptor(dropout, handle, probability, states, size, seed);
  if (status == kOk && states != nullptr) std::memcpy(states, &seed, sizeof seed);
  return status;
}
FAKE int cudnnGetDropoutDescriptor(void* dropout, void*, float* probability, void** states, unsigned long long* seed) {
  const Dropout& d = *static_cast<Dropout*>(dropout);
  *probability = d.probability;
  *states = d.states;
  *seed = d.seed;
  return kOk;
}
FAKE int cudnnDropoutForward(void*, void* dropout, void* x_desc, const void* x, void*, void* y, void* reserve,
                             size_t reserve_size) {
  const Dropout& d = *static_cast<Dropout*>(dropout);
  size_t count = 0;
  cudnnDropoutGetReserveSpaceSize(x_desc, &count);
  if (d.states == nullptr || reserve_size < count) return kBadParam;
  std::memset(reserve, 1, count);
  uint64_t& state = *static_cast<uint64_t*>(d.states);
  for (size_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const bool keeps = (state >> 40) >= d.probability * (1 << 24);
    static_cast<float*>(y)[i] = keeps ? static_cast<const float*>(x)[i] / (1 - d.probability) : 0;
  }
  return kOk;
}

FAKE int cudnnCreateRNNDescriptor(void** rnn) { return create<Rnn>(rnn); }
FAKE int cudnnDestroyRNNDescriptor(void* rnn) { return destroy<Rnn>(rnn); }
FAKE int cudnnSetRNNDescriptor_v8(void* rnn, int algorithm, int mode, int bias, int direction, int input_mode, int type,
                                  int precision, int math, int32_t input, int32_t hidden, int32_t projection,
                                  int32_t layers, void* dropout, uint32_t flags) {
  Rnn& r = *static_cast<Rnn*>(rnn);
  const int values[] = {algorithm, mode, bias,  direction, input_mode, type,
                        precision, math, input, hidden,    projection, layers};
  std::memcpy(r.values, values, sizeof values);
  r.dropout = dropout;
  r.flags = flags;
  return kOk;
}
FAKE int cudnnGetRNNDescriptor_v8(void* rnn, int* algorithm, int* mode, int* bias, int* direction, int* input_mode,
                                  int* type, int* precision, int* math, int32_t* input, int32_t* hidden,
                                  int32_t* projection, int32_t* layers, void** dropout, uint32_t* flags) {
  const Rnn& r = *static_cast<Rnn*>(rnn);
  int* const out[] = {algorithm, mode, bias,  direction, input_mode, type,
                      precision, math, input, hidden,    projection, layers};
  for (int i = 0; i < 12; ++i) *out[i] = r.values[i];
  *dropout = r.dropout;
  *flags = r.flags;
  return kOk;
}
FAKE int cudnnRNNSetClip_v9(void* rnn, int mode, double low, double high) {
  Rnn& r = *static_cast<Rnn*>(rnn);
  r.clip_mode = mode;
  r.low = low;
  r.high = high;
  return kOk;
}
#ifndef FAKE_WITHOUT_GET_CLIP
FAKE int cudnnRNNGetClip_v9(void* rnn, int* mode, double* low, double* high) {
  const Rnn& r = *static_cast<Rnn*>(rnn);
  *mode = r.clip_mode;
  *low = r.low;
  *high = r.high;
  return kOk;
}
#endif

FAKE int cudnnCreateRNNDataDescriptor(void** data) { return create<Data>(data); }
FAKE int cudnnDestroyRNNDataDescriptor(void* data) { return destroy<Data>(data); }
FAKE int cudnnSetRNNDataDescriptor(void* data, int type, int layout, int steps, int batch, int width,
                                   const int* lengths, void* padding) {
  Data& d = *static_cast<Data*>(data);
  d.type = type;
  d.layout = layout;
  d.steps = steps;
  d.batch = batch;
  d.width = width;
  d.lengths.assign(lengths, lengths + batch);
  std::memset(d.padding, 0, sizeof d.padding);
  if (padding != nullptr) std::memcpy(d.padding, padding, element_of(type));
  return kOk;
}
FAKE int cudnnGetRNNDataDescriptor(void* data, int* type, int* layout, int* steps, int* batch, int* width,
                                   int requested, int* lengths, void* padding) {
  const Data& d = *static_cast<Data*>(data);
  *type = d.type;
  *layout = d.layout;
  *steps = d.steps;
  *batch = d.batch;
  *width = d.width;
  for (int i = 0; i < requested && i < d.batch; ++i) lengths[i] = d.lengths[i];
  std::memcpy(padding, d.padding, element_of(d.type));
  return kOk;
}

FAKE int cudnnGetRNNWeightSpaceSize(void*, void* rnn, size_t* size) {
  std::vector<std::vector<Place>> places;
  *size = place_all(*static_cast<Rnn*>(rnn), &places);
  return kOk;
}
FAKE int cudnnGetRNNWeightParams(void*, void* rnn, int32_t pseudo, size_t, const void* weights, int32_t id,
                                 void* matrix_desc, void** matrix, void* bias_desc, void** bias) {
  const Rnn& r = *static_cast<Rnn*>(rnn);
  std::vector<std::vector<Place>> places;
  place_all(r, &places);
  const Place& place = places.at(pseudo).at(id);
  char* const base = static_cast<char*>(const_cast<void*>(weights));
  const int ones[] = {1, 1, 1}, matrix_dims[] = {1, place.rows, place.columns}, bias_dims[] = {1, place.rows, 1};
  *matrix = place.matrix == SIZE_MAX ? nullptr : base + place.matrix;
  *bias = place.bias == SIZE_MAX ? nullptr : base + place.bias;
  cudnnSetTensorNdDescriptor(matrix_desc, r.values[5], *matrix == nullptr ? 0 : 3, matrix_dims, ones);
  cudnnSetTensorNdDescriptor(bias_desc, r.values[5], *bias == nullptr ? 0 : 3, bias_dims, ones);
  return kOk;
}

FAKE int cudnnGetRNNTempSpaceSizes(void*, void*, int, void*, size_t* workspace, size_t* reserve) {
  ++calls[0];
  if (workspace != nullptr) *workspace = 1000;
  if (reserve != nullptr) *reserve = 500;
  return kOk;
}
FAKE int cudnnRNNForward(void*, void*, int, const int32_t*, void*, const void*, void*, void*, void*, const void*, void*,
                         void*, const void*, void*, size_t, const void*, size_t, void*, size_t, void*) {
  ++calls[1];
  return kOk;
}
FAKE int cudnnRNNBackwardData_v8(void*, void*, const int32_t*, void*, const void*, const void*, void*, void*, void*,
                                 const void*, const void*, void*, void*, const void*, const void*, void*, size_t,
                                 const void*, size_t, void*, size_t, void*) {
  ++calls[2];
  return kOk;
}
FAKE int cudnnRNNBackwardWeights_v8(void*, void*, int, const int32_t*, void*, const void*, void*, const void*, void*,
                                    const void*, size_t, void*, size_t, void*, size_t, void*) {
  ++calls[3];
  return kOk;
}
