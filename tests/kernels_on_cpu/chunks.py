"""Wavefronts by chunks: their kernels and sources."""

BOTH_CHUNKED = {"kWavefrontChunked half lstm 4", "kWavefrontChunked half lstm 5, 2"}
GRU_CHUNKED = {"kWavefrontChunked half gru 4", "kWavefrontChunked half gru 5, 2"}
FORTY_UNITS = {"blocks": 100}  # a GPU on which blocks of stacks by chunks, in both passes, have 40 units each
FORWARD, BACKWARD = "rnn/cuda/wavefront/chunked_forward.cuh", "rnn/cuda/wavefront/chunked_backward.cuh"
