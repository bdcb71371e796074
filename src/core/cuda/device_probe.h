// Properties of a GPU that only the device and this build's own code can tell.
#pragma once

namespace prnn {

// The compute capability (90 for 9.0) of the code in this build that runs on the current device, which may be that of
// an older GPU, translated by the driver; 0: there is none.
int probe_code_arch();

// Blocks that clusters of this size keep resident on the current device when a block takes all of an SM's shared
// memory; 0 where there are no clusters.
int probe_cluster_blocks(int cluster, int multiprocessors, int shared_bytes);

}  // namespace prnn
