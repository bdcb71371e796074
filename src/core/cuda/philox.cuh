// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011): four random words, a
// pure function of counter and key.
#pragma once

#include <cstdint>

namespace prnn {

__device__ __forceinline__ void philox(uint32_t (&c)[4], uint32_t key0, uint32_t key1) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, c[0]), low0 = 0xD2511F53u * c[0];
    const uint32_t high1 = __umulhi(0xCD9E8D57u, c[2]), low1 = 0xCD9E8D57u * c[2];
    const uint32_t next[4] = {high1 ^ c[1] ^ key0, low1, high0 ^ c[3] ^ key1, low0};
#pragma unroll
    for (int i = 0; i < 4; ++i) c[i] = next[i];
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

}  // namespace prnn
