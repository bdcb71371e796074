// The exchange between blocks of a layer with a projection, forward and backward: partial sums of rows of h (backward,
// of its gradient), and the rows that were added up, as the other product's vectors.
#pragma once

#include "rnn/cuda/projected/partial_sums.cuh"

namespace prnn {

// Row tile i of the P rows is added up by block i % blocks. The vectors lie in the exchange buffer as
// ForwardDirection::exchange says, with P in the place of H.
template <class T>
struct RowExchange {
  const ResidentSizes& sizes;
  const Projection& projection;
  T* const base;
  const int tile_columns;
  uint32_t bits = 0;  // bit j: the lowest bit of the last words of tile j

  __device__ RowExchange(const ResidentSizes& of_launch, const Projection& of_layer, void* exchange)
      : sizes(of_launch),
        projection(of_layer),
        base(static_cast<T*>(exchange)),
        tile_columns(of_launch.tile_columns()) {}

  // Where this lane has its 16 bytes of the warp's first k-tile, of the vectors of step s.
  __device__ __forceinline__ const char* fragment(int s, int tile) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    return reinterpret_cast<const char*>(tile_at(s, tile)) + (warp * tile_columns + lane / 4) * 64 + lane % 4 * 16;
  }

  // Publishes two neighbouring rows of a sequence's vector for step s; `first_row` is even.
  __device__ __forceinline__ void publish(int s, int column, int first_row, float2 rows) const {
    constexpr int kElements = 64 / sizeof(T);
    T* const to = tile_at(s, column / kTileColumns) + first_row / kElements * (tile_columns * kElements) +
                  column % kTileColumns * kElements + first_row % kElements;
    publish_word(true, to, Element<T>::pack(rows.x, rows.y));
    if (Element<T>::kPerWord == 1) publish_word(true, to + 1, Element<T>::pack(rows.y, 0));
  }

  // The block's rows of sequences [first, last), which start with step s. value(n, row): of row < P.
  template <class Value>
  __device__ __forceinline__ void publish_sequences(int s, int first, int last, const Value& value) const {
    const int begin = max(first, sizes.first_column), end = min(last, sizes.first_column + sizes.columns);
    for (int tile = blockIdx.x; tile < row_tiles(); tile += sizes.blocks) {
#pragma unroll 1
      for (int i = threadIdx.x; i < (end - begin) * (kTileRows / 2); i += kResidentThreads) {
        const int n = begin + i / (kTileRows / 2), row = tile * kTileRows + i % (kTileRows / 2) * 2;
        publish(s, n - sizes.first_column, row, {value_of(value, n, row), value_of(value, n, row + 1)});
      }
    }
  }

  // The place of a tile's next partial sums.
  __device__ __forceinline__ PartialSums partial_sums(int tile) {
    bits ^= 1u << tile;
    return last_sums(tile);
  }

  // Adds up the block's rows of all tiles that have sequences. Warp 0 calls finish(tile, row, the sums of that row and
  // the next one); a lane has the column lane / 4 of the tile. `of_warps` is that warp's own shared memory, and free.
  template <class Finish>
  __device__ __forceinline__ void add_up(int columns, float* of_warps, int* fault, bool& timed_out,
                                         const Finish& finish) const {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int tile = 0; tile * kTileColumns < columns; ++tile) {
#pragma unroll 1
      for (int row_tile = blockIdx.x; row_tile < row_tiles(); row_tile += sizes.blocks) {
        last_sums(tile).add_up(row_tile, of_warps, fault, timed_out);
        __syncthreads();
        if (threadIdx.x < 32) {
          const int row = lane % 4 * 2;
          finish(tile, row_tile * kTileRows + row, sum_of_rows(of_warps, row, lane / 4));
        }
        if (row_tile + sizes.blocks < row_tiles() || (tile + 1) * kTileColumns < columns) __syncthreads();
      }
    }
  }

 private:
  __device__ __forceinline__ int row_tiles() const { return projection.padded / kTileRows; }
  __device__ __forceinline__ T* tile_at(int s, int tile) const {
    return base + (int64_t{s} * sizes.replica_tiles() + tile) * (tile_columns * projection.padded);
  }
  __device__ __forceinline__ PartialSums last_sums(int tile) const {
    return {projection.sums + int64_t{tile} * row_tiles() * sizes.blocks * kTileFloats, sizes.blocks,
            PartialSums::pairs_of(sizes.columns - tile * kTileColumns), bits >> tile & 1};
  }
  template <class Value>
  __device__ __forceinline__ float value_of(const Value& value, int n, int row) const {
    return row < projection.states ? value(n, row) : 0;
  }
};

// The product of all rows with a tile's vectors, of which this lane's 16 bytes of the warp's first k-tile lie at
// `from`. `sums`: [warp][SUM_FLOATS].
template <int SUM_FLOATS, class Product>
__device__ __forceinline__ void multiply_all_rows(Product& product, const char* from, int tile, int columns, int* fault,
                                                  bool& timed_out, float* sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto vectors_at = [&](int) { return from; };
  const auto reads = [&](int) { return tile * kTileColumns + lane / 4 < columns; };
  product.prefetch(vectors_at, reads, 1);
  product.template run<1>(1, false, vectors_at, reads, fault, timed_out, sums + warp * SUM_FLOATS,
                          kResidentWarps * SUM_FLOATS);
  __syncthreads();
}

// The product of the block's own columns with its own vectors, as partial sums for the blocks that add up the rows.
template <class T, int K_TILES, int REGISTER_PAIRS>
__device__ __forceinline__ void publish_own_products(const OwnColumnsProduct<T, K_TILES, REGISTER_PAIRS>& product,
                                                     const uint4* own, const PartialSums& partial) {
  uint4 vectors[K_TILES];
  load_own(own, vectors);
  product.run(vectors, [&](int pair, const float (&sums)[4]) { partial.publish(pair, sums); });
}

// Loads the weights of both products, those beyond the registers' into `weights` in shared memory. The fragment of a
// k-tile in a row tile begins, in this lane, at row lane / 4 and element k: load(row_tile, k) is that of the product of
// all rows, and load_own(row, k) that of the block's own columns.
template <class T, int ROW_TILES, class Product, class OwnProduct, class Load, class LoadOwn>
__device__ __forceinline__ void load_both_weights(Product& product, OwnProduct& own_product, int padded, uint4* weights,
                                                  const Load& load, const LoadOwn& load_own) {
  constexpr int kKTile = k_tile_elements(sizeof(T) == 4);
  const int lane = threadIdx.x % 32, k_tiles = padded / kKTile;
  const auto k_of_lane = [&](int k_tile) { return k_tile * kKTile + lane % 4 * (16 / static_cast<int>(sizeof(T))); };
  product.load_weights(k_tiles, weights, [&](int row_tile, int k_tile) { return load(row_tile, k_of_lane(k_tile)); });
  const int shared_k_tiles = max(0, (k_tiles + kResidentWarps - 1) / kResidentWarps - Product::kInRegisters);
  own_product.load_weights(
      padded / (2 * kTileRows), weights + shared_k_tiles * ROW_TILES * kResidentThreads,
      [&](int row_tile, int k_tile) { return load_own(row_tile * kTileRows + lane / 4, k_of_lane(k_tile)); });
}

}  // namespace prnn
