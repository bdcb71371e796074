// Stands in for libcudnn where there is no GPU. It prints each call that matters and lays weights out as cuDNN does,
// or, with FAKE_CUDNN_LAYOUT=gaps, in another way. Its passes read and write the first element of each matrix and bias,
// in float. Objects are counted; FAKE_CUDNN_REFUSE names a function that fails.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

int live_objects = 0, created = 0;

struct Rnn {
  int algorithm, cell, directions, skips, type, precision, math, input, hidden, projection, layers;
  float dropout;
  const void* states;
};
struct Dropout {
  float probability;
  const void* states;
};
struct Data {
  int steps, batch, width;
  std::vector<int> lengths;
};

template <class Object>
int make(void** object) {
  ++live_objects, ++created;
  *object = new Object();
  return 0;
}
template <class Object>
int destroy(void* object) {
  --live_objects;
  delete static_cast<Object*>(object);
  return 0;
}

bool refuses(const char* function) {
  const char* const named = std::getenv("FAKE_CUDNN_REFUSE");
  return named != nullptr && std::strcmp(named, function) == 0;
}

struct Block {
  size_t offset, elements;
};

// The block of a linear layer; id < 0: the bias of ~id. No elements: there is none.
struct Layout {
  explicit Layout(const Rnn& r) : rnn(r), gates(r.cell == 2 ? 4 : r.cell == 3 ? 3 : 1) {
    const char* const named = std::getenv("FAKE_CUDNN_LAYOUT");
    const bool gaps = named != nullptr && std::strcmp(named, "gaps") == 0;
    for (int biases = 0; biases < (gaps ? 1 : 2); ++biases) {
      for (int pseudo = 0; pseudo < rnn.layers * rnn.directions; ++pseudo) {
        for (int id = 0; id <= 8; ++id) {
          if (gaps || !biases) place(pseudo, id, gaps ? 16 : 0);
          if (gaps || biases) place(pseudo, ~id, 0);
        }
      }
    }
  }
  void place(int pseudo, int id, size_t gap) {
    Block& block = blocks[pseudo][id < 0 ? 9 + ~id : id];
    block = {size + gap, elements(pseudo, id)};
    size = block.offset + block.elements;
  }
  size_t elements(int pseudo, int id) const {
    const size_t hidden = rnn.hidden, state = rnn.projection;
    if (id < 0) return ~id < 2 * gates ? hidden : 0;
    if (id == 8) return state < hidden ? state * hidden : 0;
    if (id >= 2 * gates) return 0;
    if (id >= gates) return hidden * state;
    if (pseudo < rnn.directions) return rnn.skips ? 0 : hidden * rnn.input;
    return hidden * rnn.directions * state;
  }

  const Rnn& rnn;
  int gates;
  Block blocks[64][18];
  size_t size = 0;  // elements
};

size_t element_size(const Rnn& rnn) { return rnn.type == 1 ? 8 : rnn.type == 0 ? 4 : 2; }

void print_rnn(const char* what, const Rnn& rnn, const Data& x) {
  std::printf("%s algorithm %d layers %d input %d type %d precision %d math %d dropout %g lengths", what, rnn.algorithm,
              rnn.layers, rnn.input, rnn.type, rnn.precision, rnn.math, double(rnn.dropout));
  for (int length : x.lengths) std::printf(" %d", length);
}

}  // namespace

extern "C" {

int fake_live_objects() { return live_objects; }
int fake_created_objects() { return created; }

size_t cudnnGetVersion() { return 91900; }
int cudnnCreate(void** handle) { return refuses("cudnnCreate") ? 1001 : make<int>(handle); }
int cudnnDestroy(void* handle) { return destroy<int>(handle); }
int cudnnSetStream(void*, void*) { return 0; }
int cudnnCreateTensorDescriptor(void** object) { return make<int>(object); }
int cudnnDestroyTensorDescriptor(void* object) { return destroy<int>(object); }
int cudnnSetTensorNdDescriptor(void*, int, int, const int*, const int*) { return 0; }

int cudnnCreateDropoutDescriptor(void** object) {
  return refuses("cudnnCreateDropoutDescriptor") ? 1001 : make<Dropout>(object);
}
int cudnnDestroyDropoutDescriptor(void* object) { return destroy<Dropout>(object); }
int cudnnDropoutGetStatesSize(void*, size_t* size) {
  *size = 480;
  return 0;
}
int cudnnSetDropoutDescriptor(void* object, void*, float probability, void* states, size_t, unsigned long long) {
  *static_cast<Dropout*>(object) = {probability, states};
  return 0;
}
int cudnnRestoreDropoutDescriptor(void* object, void*, float probability, void* states, size_t size,
                                  unsigned long long) {
  if (states == nullptr || size < 480) return 2000;
  *static_cast<Dropout*>(object) = {probability, states};
  return 0;
}

int cudnnCreateRNNDescriptor(void** object) { return make<Rnn>(object); }
int cudnnDestroyRNNDescriptor(void* object) { return destroy<Rnn>(object); }
int cudnnSetRNNDescriptor_v8(void* object, int algorithm, int cell, int, int direction, int input_mode, int type,
                             int precision, int math, int32_t input, int32_t hidden, int32_t projection, int32_t layers,
                             void* dropout, uint32_t) {
  const Dropout& d = *static_cast<Dropout*>(dropout);
  *static_cast<Rnn*>(object) = {algorithm, cell,   direction + 1, input_mode, type,          precision, math,
                                input,     hidden, projection,    layers,     d.probability, d.states};
  return 0;
}
int cudnnCreateRNNDataDescriptor(void** object) { return make<Data>(object); }
int cudnnDestroyRNNDataDescriptor(void* object) { return destroy<Data>(object); }
int cudnnSetRNNDataDescriptor(void* object, int, int, int steps, int batch, int width, const int* lengths, void*) {
  *static_cast<Data*>(object) = {steps, batch, width, std::vector<int>(lengths, lengths + batch)};
  return 0;
}
int cudnnGetRNNTempSpaceSizes(void*, void* rnn, int mode, void* data, size_t* workspace, size_t* reserve) {
  const Data& x = *static_cast<Data*>(data);
  const Rnn& r = *static_cast<Rnn*>(rnn);
  const char* const refused = std::getenv("FAKE_CUDNN_REFUSE_ALGORITHM");
  if (refused != nullptr && std::atoi(refused) == r.algorithm) return 3000;
  *workspace = std::getenv("FAKE_CUDNN_OVERFLOW") != nullptr ? ~size_t(255) : size_t(1000) * r.layers;
  *reserve = mode == 1 ? size_t(64) * r.layers * x.steps * x.batch : 0;
  return 0;
}
int cudnnGetRNNWeightSpaceSize(void*, void* rnn, size_t* size) {
  *size = Layout(*static_cast<Rnn*>(rnn)).size * element_size(*static_cast<Rnn*>(rnn));
  return 0;
}
int cudnnGetRNNWeightParams(void*, void* rnn, int32_t pseudo, size_t, const void* weights, int32_t id, void*,
                            void** matrix, void*, void** bias) {
  const Rnn& r = *static_cast<Rnn*>(rnn);
  const Layout layout(r);
  const auto at = [&](const Block& block) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(weights) + block.offset * element_size(r);
    return block.elements > 0 ? reinterpret_cast<void*>(address) : nullptr;
  };
  *matrix = at(layout.blocks[pseudo][id]);
  *bias = at(layout.blocks[pseudo][9 + id]);
  return 0;
}

int cudnnRNNForward(void*, void* rnn, int mode, const int32_t*, void* x_desc, const void*, void*, void*, void*,
                    const void*, void*, void*, const void*, void*, size_t, const void* weights, size_t, void*, size_t,
                    void*) {
  if (refuses("cudnnRNNForward")) return 3000;
  const Rnn& r = *static_cast<Rnn*>(rnn);
  print_rnn(mode == 1 ? "train" : "infer", r, *static_cast<Data*>(x_desc));
  std::printf(" states %s weights", r.states == nullptr ? "none" : static_cast<const char*>(r.states));
  const Layout layout(r);
  for (int pseudo = 0; pseudo < r.layers * r.directions; ++pseudo) {
    for (const Block& block : layout.blocks[pseudo]) {
      if (block.elements > 0) std::printf(" %g", double(static_cast<const float*>(weights)[block.offset]));
    }
  }
  std::printf("\n");
  return 0;
}
int cudnnRNNBackwardData_v8(void*, void* rnn, const int32_t*, void*, const void*, const void*, void* x_desc, void*,
                            void*, const void*, const void*, void*, void*, const void*, const void*, void*, size_t,
                            const void*, size_t, void*, size_t, void*) {
  print_rnn("data", *static_cast<Rnn*>(rnn), *static_cast<Data*>(x_desc));
  std::printf("\n");
  return 0;
}
int cudnnRNNBackwardWeights_v8(void*, void* rnn, int mode, const int32_t*, void* x_desc, const void*, void*,
                               const void*, void*, const void*, size_t, void* gradients, size_t, void*, size_t, void*) {
  const Rnn& r = *static_cast<Rnn*>(rnn);
  print_rnn(mode == 0 ? "weights, added" : "weights, set", r, *static_cast<Data*>(x_desc));
  std::printf("\n");
  const Layout layout(r);
  for (int pseudo = 0; pseudo < r.layers * r.directions; ++pseudo) {
    for (int id = 0; id < 18; ++id) {
      const Block& block = layout.blocks[pseudo][id];
      if (block.elements > 0) static_cast<float*>(gradients)[block.offset] += 100.0f * float(pseudo + 1) + float(id);
    }
  }
  return 0;
}

}  // extern "C"
