// The GPUs that prnn plans for: one row a GPU. docs/adding_a_gpu.md says how to add one.
#pragma once

#include <cstdint>
#include <string>

namespace prnn {

// A feature that a kernel needs beyond mma.sync on tf32 and 16-bit types (compute capability 8.0).
enum class Feature : int8_t { kNone, kClusters, kWgmma };

// Cycles from a block's own store to its first look at the states of the others. Looking too early slows down the very
// stores that it waits for, the more so the more blocks look. Which of them a kernel takes is said where it is planned.
struct PollDelays {
  struct {
    int few_blocks, some_blocks, forward_few_states, forward, backward;
  } mma;
  struct {
    int forward_few_blocks, forward_narrow, forward, backward_few_states, backward;
  } wgmma;
  struct {
    int forward_narrow, forward, forward_wide, backward;
  } split_k;
  struct {
    int forward_gated, backward_gated, forward, backward, several_sequences;
  } simt;
  struct {
    int several_tiles, forward, forward_long_k, backward;
  } wavefront_mma;
  struct {
    int two_tiles, one_tile;
  } wavefront_wgmma;
  struct {
    int half_tile, tile, backward_half_tile, backward_tile;
  } wavefront_chunked;
};

// Measured on an H200. The other rows have them until somebody measures theirs (docs/adding_a_gpu.md).
constexpr PollDelays kPollDelaysOfH200 = {{100, 250, 450, 600, 700}, {600, 900, 1200, 600, 900},
                                          {450, 600, 1000, 1200},    {750, 1100, 600, 750, 800},
                                          {300, 500, 700, 900},      {1000, 1200},
                                          {450, 750, 150, 200}};

struct GpuRow {
  const char* name;
  int arch;                // compute capability, 90 for 9.0
  int multiprocessors;     // SMs; at run time the device's own number counts
  int64_t register_bytes;  // of one SM
  int64_t shared_bytes;    // the most that one block can have
  int64_t l2_bytes;
  // Blocks that clusters of 2, 3 and 4 can keep resident at one block an SM (whole clusters only, so fewer than the SMs
  // where a GPC's SMs do not divide). 0: no clusters, or nobody has measured it: plans of the row do without, and on
  // such a device its own numbers count.
  int cluster_blocks[3];
  int largest_cluster;  // blocks; 1: the GPU has no clusters
  bool has_wgmma;       // of compute capability 9.0 alone
  bool is_measured;     // plans of this row have run on such a GPU
  // GPUs of the original persistent-rnn that no CUDA compiler in use still serves: the largest RNN layer that stays
  // resident, in 32 and in 16 bits (0: no 16-bit kernel). 0 for the GPUs that kernels are compiled for.
  int legacy_largest32 = 0, legacy_largest16 = 0;
  const PollDelays* delays = &kPollDelaysOfH200;

  bool is_legacy() const { return legacy_largest32 > 0; }
  bool has(Feature feature) const {
    return feature == Feature::kNone || (feature == Feature::kWgmma ? has_wgmma : largest_cluster > 1);
  }
};

int gpu_row_count();
const GpuRow* gpu_row(int index);              // NULL beyond the table
std::string gpu_row_names();                   // "H200, H100, ...", for messages
const GpuRow* find_gpu_row(const char* name);  // by name, letter case apart; NULL if there is none

// The row for a device: the one whose name occurs in the device's ("NVIDIA H200"), else the first of its architecture,
// else of its architecture's generation; NULL if there is none.
const GpuRow* match_gpu_row(const char* device_name, int arch);

// A row's largest cluster and wgmma, by compute capability.
int largest_cluster_of(int arch);
bool has_wgmma_of(int arch);

}  // namespace prnn
