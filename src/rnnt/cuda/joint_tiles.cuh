// Matrix products from tiles (TileLayout) on compute capability 9.0: wgmma on what bulk copies bring into a ring in
// shared memory. docs/joint_rnnt_loss.md explains the design.
#pragma once

#include "core/cuda/features.cuh"
#include "rnnt/cuda/joint.cuh"

namespace prnn::rnnt_cuda {

// A block: a warpgroup that fetches, and two that multiply, each 64 of the 128 rows by 256 columns of the product.
constexpr int kGroupThreads = 128, kTileThreads = 3 * kGroupThreads;
constexpr int kTileColumns = 256;
constexpr int kTile = kTileRows * kTileBytes;  // bytes
constexpr int kSums = kTileColumns / 2;        // of a thread

// Shared memory: the ring, then what the epilogue stages, then the barriers.
template <class Form>
struct TileRing {
  static constexpr int kHalves = Form::kTerms == 3 ? 2 : 1;
  static constexpr int kLeft = kHalves * kTile, kRight = 2 * kHalves * kTile;  // bytes of a stage
  static constexpr int kStage = kLeft + kRight;
  static constexpr int kStages = 4 / kHalves;
  static constexpr int kStaged = kTile / 2;          // of a warpgroup, twice
  static constexpr int kStaging = kStages * kStage;  // where it begins
  static constexpr int kBarriers = kStaging + 4 * kStaged;
  static constexpr int kBytes = kBarriers + 2 * kStages * 8;
};

#if PRNN_HAS_WGMMA

// ---- Barriers and copies ----

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void barrier_init(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void bulk_load(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void bulk_store(void* to, uint32_t from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until at most kPending of this thread's groups of stores have yet to be read from shared memory.
template <int kPending>
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ void sync_group(int group) { asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory"); }

// ---- wgmma ----

// Rows of 128 bytes, pieces permuted as in TileLayout; rows are those of the product, or, transposed, those of its
// inner dimension. `across`: bytes between 64 rows of the product and the next, where transposed.
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t address, int across = 16) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(across >> 4) << 16 |
         uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// clang-format off
#define PRNN_SUMS8(at) "+f"(d[at]), "+f"(d[at + 1]), "+f"(d[at + 2]), "+f"(d[at + 3]), \
                       "+f"(d[at + 4]), "+f"(d[at + 5]), "+f"(d[at + 6]), "+f"(d[at + 7])
#define PRNN_SUMS32(at) PRNN_SUMS8(at), PRNN_SUMS8(at + 8), PRNN_SUMS8(at + 16), PRNN_SUMS8(at + 24)
#define PRNN_WGMMA(Type, name)                                                                                         \
  template <int kTransposed>                                                                                           \
  __device__ __forceinline__ void wgmma(const Type*, float (&d)[128], uint64_t a, uint64_t b, int adds) {              \
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %130, 0;\n"                                                   \
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32." name "." name " {" PRNN_NAMES "},"                     \
                 " %128, %129, adds, 1, 1, %131, %131;\n}"                                                             \
                 : PRNN_SUMS32(0), PRNN_SUMS32(32), PRNN_SUMS32(64), PRNN_SUMS32(96)                                   \
                 : "l"(a), "l"(b), "r"(adds), "n"(kTransposed));                                                       \
  }                                                                                                                    \
  template <int kTransposed>                                                                                           \
  __device__ __forceinline__ void wgmma(const Type*, float (&d)[4], uint64_t a, uint64_t b, int adds) {                \
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %6, 0;\n"                                                     \
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32." name "." name " {%0,%1,%2,%3},"                          \
                 " %4, %5, adds, 1, 1, %7, 0;\n}"                                                                      \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                      \
                 : "l"(a), "l"(b), "r"(adds), "n"(kTransposed));                                                       \
  }
#define PRNN_NAMES \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
  "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
  "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
  "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111," \
  "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
PRNN_WGMMA(__half, "f16")
PRNN_WGMMA(__nv_bfloat16, "bf16")
#undef PRNN_NAMES
#undef PRNN_WGMMA
#undef PRNN_SUMS32
#undef PRNN_SUMS8
// clang-format on

#endif

}  // namespace prnn::rnnt_cuda
