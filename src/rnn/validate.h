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

// From one {N, I, 1}: a sequence of so many timesteps, or of as many as the resident kernels take.
RnnProblem problem_of_steps(const prnnRNNStruct& rnn, prnnTensorDescriptor_t xDesc, int64_t steps);

// From yDesc[0 .. seqLength-1], each {B_t, D P, 1}, and the input size from dxDesc[0] where the caller wants dx, else
// from the size of the packed weights.
RnnProblem problem_from_output(const prnnRNNStruct& rnn, int seqLength, const prnnTensorDescriptor_t* yDesc,
                               bool wants_dx, const prnnTensorDescriptor_t* dxDesc, prnnFilterDescriptor_t wDesc);

}  // namespace prnn
