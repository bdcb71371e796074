// The layer and the sizes of a call, read from cuDNN's own descriptors through its getters.
#pragma once

#include <vector>

#include "cudnn_standin/cudnn.h"

namespace prnn_cudnn {

// Everything that decides whether a call is taken, but the lengths of the sequences. The algorithm is not part of it: a
// program may ask for another one in the backward calls.
struct Configuration {
  int mode, bias, direction, input_mode, type, math_type;
  int input, hidden, projection, layers;  // projection: the size of h, hidden where there is none
  bool padded_io;
  float dropout;
  bool clips;
  int layout, steps, batch, width;  // of the input's descriptor: T, N, I
  void* dropout_desc;               // not compared

  int directions() const { return direction + 1; }
  int gates() const;
  bool is_projected() const { return projection != hidden; }
  int output() const { return directions() * projection; }
  size_t element() const;  // bytes; 0 for a type that prnn does not know
  bool operator<(const Configuration& other) const;
  // "LSTM 5 x 1024, input 80, bfloat16, batch 4, two directions"
  std::string text() const;
};

// False where a getter refuses: the call then goes to cuDNN, which says what is wrong. `padding`: the element that x's
// descriptor names, of up to 16 bytes.
bool read_configuration(const Cudnn& cudnn, void* handle, void* rnn, void* x_desc, Configuration* configuration,
                        std::vector<int>* lengths, unsigned char* padding);

// The lengths of a batch's sequences and how they lie.
class Sequences {
 public:
  Sequences(const Configuration& configuration, std::vector<int> lengths);

  const std::vector<int>& lengths() const { return lengths_; }
  const std::vector<int>& order() const { return order_; }          // sequences from the longest to the shortest
  const std::vector<int>& batch_sizes() const { return batches_; }  // sequences of each timestep
  std::vector<int> sorted_lengths() const;
  bool are_sorted() const { return are_sorted_; }
  // Whether the timesteps have different numbers of sequences.
  bool vary() const { return !batches_.empty() && batches_.front() != batches_.back(); }
  bool have_rows() const { return lengths_.empty() || lengths_[order_.back()] > 0; }  // none of length 0
  // Whether the data lies otherwise than prnn takes it, timestep after timestep without padding.
  bool want_packing() const { return want_packing_; }

 private:
  std::vector<int> lengths_, order_, batches_;
  bool are_sorted_, want_packing_;
};

}  // namespace prnn_cudnn
