// A recurrent layer's arrays, and the same layer in double: it rounds where the kernels do, and its backward pass
// begins with what the forward kernel saved.
#pragma once

#include "arrays.h"
#include "rnn/cuda/common/params.h"
#include "rnn/plan/plan.h"

struct Options {
  Type type = Type::kBfloat16;
  prnnRNNMode_t mode = PRNN_LSTM;
  int hidden = 64;
  std::string engine = "mma";
  int forward_units = 1, backward_units = 1, backward_cluster = 1;  // of mma: in eights, and blocks
  int replicas = 1;
  int column_tiles = 1;  // of LSTMs with layer normalisation: of a cluster; 0: kernels of single timesteps
  int pack = 1;          // of those: units that a thread loads at once
  bool held = true;      // and whether a thread has no more
  int layers = 1;
  int blocks = 0;  // that a GPU has room for, which makes a stack's plan; 0: an H200's
  bool has_backward = true;
  int chunk = 0;             // timesteps of one, of wavefronts by chunks; 0: other wavefronts
  double dropout_scale = 0;  // between layers; 0: none
  bool initial = false;      // by chunks: what is added to the first timestep's input products
  int projection = 0;        // by chunks, with dropout: P of projections between layers; 0: none
  bool resets = false, masks = false, reverse = false;
  bool relaxed = false;  // of programs that follow the order: words that are polled order their stores alone
  unsigned seed = 1;
  std::vector<int> batches = {8, 8, 8};
};

// "name=value" each.
Options parse_options(int count, char** words);

class Layer {
 public:
  explicit Layer(const Options& options);

  Options options;
  int gates, biases, batch, rows = 0, padded;
  bool is_lstm, is_gru, is_slstm;
  int cell_states;  // of cx and its like
  std::vector<prnn::StepSizes> steps;
  size_t states, all;  // elements of a timestep's states, and of all timesteps'
  Array weights, input_bias, recurrent_bias, hx, cx, reset_hx, reset_cx, hy, cy, dhy, dcy, dhx, dcx, mask;
  Array xw, y, saved, cells, last, dy, dcells, dgates, dcandidate, bias_sums, dreset_hx, dreset_cx;
  std::vector<uint8_t> reset;
  // An LSTM's h has either a mask, of all timesteps, or, in layers that go backwards, the expectation.
  std::vector<uint8_t> stays;
  double zoneout = 0;
  // The reference's arrays in place of xw and dy.
  std::vector<double> products, output_gradients;

  prnn::RnnProblem problem() const;
  prnn::ResidentSizes sizes_of(const prnn::ResidentShape& shape, int directions, int* timed_out);
  // The parameters of a direction.
  prnn::ForwardDirection forward();
  prnn::BackwardDirection backward();

  void compare_forward() const;
  void compare_backward() const;

 private:
  struct Gates {
    double of[4];
  };
  // c (LSTM), c, n and m (sLSTM), h (GRU), and their gradients as the kernels have them.
  struct Carried {
    double of[3];
  };
  size_t at(int row, int unit) const { return size_t(options.hidden) * row + unit; }
  // The timestep of step s of a pass; of none: no sequences.
  int batch_of(int s) const;
  int row_of(int s) const;
  // Whether sequence n starts anew with step s of the forward pass; and what it then has in place of the states of the
  // step before, or NULL.
  bool is_reset(int s, int n) const;
  const Array* first(int s, int n, bool of_cells) const;
  Carried first_carried(const Array& states, int n, int unit) const;
  // c / n, 0 where n is.
  static double ratio(const Carried& states) { return states.of[1] == 0 ? 0 : states.of[0] / states.of[1]; }
  static Carried state_gradients(const Carried& past, const Carried& states);
  Gates forward_unit(int s, int n, int unit, const Gates& recurrent, Carried& carried, double& h) const;
  void forward_slstm(const Gates& sums, Carried& carried, double& h, Gates& saved) const;
  Gates backward_unit(int s, int n, int unit, double dh, Carried& past, double& past_h) const;
  Gates backward_slstm(const double (&saved)[4], double ratio, double before, double dh, Carried& past) const;

  std::vector<double> factors_;
};
