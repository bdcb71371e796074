// The GPUs that prnn plans for: one row a GPU. docs/adding_a_gpu.md says how to add one.
#pragma once

#include <cstdint>
#include <string>

namespace prnn {

struct GpuRow {
  const char* name;
  int arch;                // compute capability, 90 for 9.0
  int multiprocessors;     // SMs; at run time the device's own number counts
  int64_t register_bytes;  // of one SM
  int64_t shared_bytes;    // the most that one block can have
  int64_t l2_bytes;
  // Blocks that clusters of 2, 3 and 4 can keep resident at one block an SM (whole clusters only, so fewer than the SMs
  // where a GPC's SMs do not divide); 0: the GPU has no clusters.
  int cluster_blocks[3];
  // GPUs of the original persistent-rnn that no CUDA compiler in use still serves: the largest RNN layer that stays
  // resident, in 32 and in 16 bits (0: no 16-bit kernel). 0 for the GPUs that kernels are compiled for.
  int legacy_largest32, legacy_largest16;

  bool is_legacy() const { return legacy_largest32 > 0; }
};

int gpu_row_count();
const GpuRow* gpu_row(int index);              // NULL beyond the table
std::string gpu_row_names();                   // "H200, H100, ...", for messages
const GpuRow* find_gpu_row(const char* name);  // by name, letter case apart; NULL if there is none

// The row for a device: the one whose name occurs in the device's ("NVIDIA H200"), else the first of its architecture,
// else of its architecture's generation; NULL if there is none.
const GpuRow* match_gpu_row(const char* device_name, int arch);

}  // namespace prnn
