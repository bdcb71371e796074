// Turns the arguments of a C call into an RnnProblem and checks each against it. Every function throws BAD_PARAM with
// the argument's name and value.
#pragma once

#include "rnn/problem.h"
#include "rnn/rnn_descriptor.h"

namespace prnn {

// From xDesc[0 .. seqLength-1], each {B_t, I, 1}.
RnnProblem problem_from_sequence(const prnnRNNStruct& rnn, int seqLength, const prnnTensorDescriptor_t* xDesc);

// From the host's array of B_t.
RnnProblem problem_from_sizes(const prnnRNNStruct& rnn, int inputSize, int seqLength, const int* batchSizes);

// From one {N, I, 1}: a sequence of one timestep, for what does not depend on the timesteps.
RnnProblem problem_from_input(const prnnRNNStruct& rnn, prnnTensorDescriptor_t xDesc);

// From one {N, I, 1}: a sequence of 256 timesteps, or of as many as the resident kernels take, for what depends on
// them.
RnnProblem problem_of_long_sequences(const prnnRNNStruct& rnn, prnnTensorDescriptor_t xDesc);

// From yDesc[0 .. seqLength-1], each {B_t, D P, 1}, and the input size from dxDesc[0] where the caller wants dx, else
// from the size of the packed weights.
RnnProblem problem_from_output(const prnnRNNStruct& rnn, int seqLength, const prnnTensorDescriptor_t* yDesc,
                               bool wants_dx, const prnnTensorDescriptor_t* dxDesc, prnnFilterDescriptor_t wDesc);

// Throws BAD_PARAM unless a training call with dropout between layers has states, set with a handle of its device.
void require_dropout_states(const RnnProblem& problem, const prnnRNNStruct& rnn, const prnnContext& context);

// Throws BAD_PARAM unless the states and masks of the problem that every call reads are aligned.
void require_aligned_states(const RnnProblem& problem);

// Descriptors of x, y, dx, dy: one a timestep, {B_t, width, 1}.
void require_sequence(const RnnProblem& problem, const prnnTensorDescriptor_t* descriptors, int64_t width,
                      const char* descriptors_name);

// The descriptors of hx, hy, ... and of cx, cy, ...; looked at only where there is data and the cell has such states.
void require_h_state(const RnnProblem& problem, prnnTensorDescriptor_t descriptor, const void* data,
                     const char* descriptor_name);
void require_cell_states(const RnnProblem& problem, prnnTensorDescriptor_t descriptor, const void* data,
                         const char* descriptor_name);

void require_weights(const RnnProblem& problem, prnnFilterDescriptor_t descriptor, const char* descriptor_name);

// Workspace or reserve space: at least `needed` bytes.
void require_space(const void* space, size_t size, size_t needed, const char* space_name, const char* size_name);

}  // namespace prnn
