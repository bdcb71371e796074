// The output layer's input: frames and projections, activated.
#pragma once

#include "decode/cuda/group.cuh"

namespace prnn::decode_cuda {

// tanh(x). The hardware's is off by 2^-11 of the value, a quarter of what bfloat16 rounds.
template <Digits DIGITS>
__device__ __forceinline__ float tangent(float x) {
  if constexpr (DIGITS != Digits::kBfloat16) return hyperbolic_tangent<DIGITS>(x);
  float value;
  asm("tanh.approx.f32 %0,%1;" : "=f"(value) : "f"(x));
  return value;
}

// Starts to copy the frames of the round's windows. After an utterance's last frame comes that frame again.
template <class T, class PARAMS, class SLOT, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ void Group<T, PARAMS, SLOT, COLUMN_TILES, SLOT_TILES>::copy_frames() {
  const int joiner = static_cast<int>(p.model.joinerSize);
  constexpr int kPerCopy = 16 / sizeof(T);
#pragma unroll 1
  for (int column = warp; column < windows.columns(); column += kWarps) {
    const int s = slot_of(column);
    if (!slots[s].is_live()) continue;
    const int frame = min(slots[s].frame + column - windows.first_column(s), slots[s].length - 1);
    const int64_t row = slots[s].utterance * p.options.maxFrames + frame;
    const T* const from = static_cast<const T*>(p.inputs.frames) + row * joiner;
    T* const to = reinterpret_cast<T*>(column_row(column));
    if (p.copies_frames) {
#pragma unroll 1
      for (int i = lane * kPerCopy; i < joiner; i += 32 * kPerCopy) copy_vec(to + i, from + i);
    } else {
#pragma unroll 1
      for (int i = lane; i < joiner; i += 32) to[i] = from[i];
    }
  }
}

template <class T, class PARAMS, class SLOT, int COLUMN_TILES, int SLOT_TILES>
template <bool RELU>
__device__ __forceinline__ uint32_t
Group<T, PARAMS, SLOT, COLUMN_TILES, SLOT_TILES>::activate_word(uint32_t frame, uint32_t projection) {
  const T* const frames = reinterpret_cast<const T*>(&frame);
  const T* const projections = reinterpret_cast<const T*>(&projection);
  float value[2] = {0, 0};
#pragma unroll
  for (int k = 0; k < kPerWord; ++k) {
    const float x = Element<T>::to_float(frames[k]) + Element<T>::to_float(projections[k]);
    value[k] = RELU ? (x < 0 ? 0 : x) : tangent<kDigits>(x);  // NaN stays NaN
  }
  return Element<T>::pack(value[0], value[1]);
}

// From frames and projections to the output layer's input, in place. The activation is not chosen element by element:
// such branches keep the elements of a piece from being computed side by side.
template <class T, class PARAMS, class SLOT, int COLUMN_TILES, int SLOT_TILES>
template <bool RELU>
__device__ __forceinline__ void Group<T, PARAMS, SLOT, COLUMN_TILES, SLOT_TILES>::activate_with() {
  const int pieces = static_cast<int>(p.activation_pieces.divisor);
#pragma unroll 3
  for (int i = threadIdx.x; i < windows.columns() * pieces; i += kThreads) {
    const int column = quotient(i, p.activation_pieces), piece = i - column * pieces, s = slot_of(column);
    uint4* const at = reinterpret_cast<uint4*>(column_row(column)) + piece;
    const uint4 x = *at;
    const uint4 g = reinterpret_cast<const uint4*>(memory + p.shared.projection + s * p.joiner_stride)[piece];
    *at = {activate_word<RELU>(x.x, g.x), activate_word<RELU>(x.y, g.y), activate_word<RELU>(x.z, g.z),
           activate_word<RELU>(x.w, g.w)};
  }
}

template <class T, class PARAMS, class SLOT, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ void Group<T, PARAMS, SLOT, COLUMN_TILES, SLOT_TILES>::activate_columns() {
  if (p.model.activation == PRNN_JOINT_RELU) {
    activate_with<true>();
  } else {
    activate_with<false>();
  }
  sync_threads();
}

}  // namespace prnn::decode_cuda
