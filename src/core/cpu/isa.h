// The instruction set of the CPU kernels. Kernels are written once, on the vectors of simd.h, and compiled three
// times:
// *_portable.cc, *_avx2.cc, *_avx512.cc. AVX512_BF16 and AMX are AVX-512 with other kernels where bfloat16 is
// multiplied.
#pragma once

namespace prnn {

enum class Isa { kPortable, kAvx2, kAvx512, kAvx512Bfloat16, kAmx };

// The best level that this machine runs, or the one that the environment variable PRNN_CPU_ISA (portable, avx2, avx512,
// avx512_bf16 or amx) asks for when that is lower. Decided once a process. Throws BAD_PARAM for any other value of the
// variable.
Isa cpu_isa();

// "portable", "AVX2", "AVX-512", "AVX-512 BF16" or "AMX".
const char* isa_name(Isa isa);

// One of three tables of kernels, by cpu_isa(). Hosts that are not x86-64 only have the portable one.
#if defined(__x86_64__)
#define PRNN_FOR_ISA(function)                                     \
  (::prnn::cpu_isa() >= ::prnn::Isa::kAvx512 ? function##_avx512() \
   : ::prnn::cpu_isa() == ::prnn::Isa::kAvx2 ? function##_avx2()   \
                                             : function##_portable())
#else
#define PRNN_FOR_ISA(function) function##_portable()
#endif

}  // namespace prnn
