// Features of the architecture that device code is compiled for. 0 in host code.
#pragma once

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define PRNN_HAS_CLUSTERS 1
#else
#define PRNN_HAS_CLUSTERS 0
#endif

// Instructions of compute capability 9.0 alone: later ones have other instructions in its place.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define PRNN_HAS_WGMMA 1
#else
#define PRNN_HAS_WGMMA 0
#endif

namespace prnn {

// For the first statement of a kernel that is never launched without the feature: `if constexpr (!kHasWgmma) return;`
// leaves nothing of it to compile.
constexpr bool kHasClusters = PRNN_HAS_CLUSTERS == 1, kHasWgmma = PRNN_HAS_WGMMA == 1;

}  // namespace prnn
