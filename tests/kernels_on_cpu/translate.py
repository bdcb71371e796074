"""Makes host C++ of the kernels' sources, which gpu.h runs: every PTX statement becomes a call of
ptx(gpu::<name>(), outputs..., inputs...), and shared memory is the emulated block's.

What is not in PTX below becomes a call that ends the program: who needs it adds a line here and a function in
instructions.h.
"""

import pathlib
import re
import shutil

_IF = "{.reg .pred p; setp.ne.u32 p,%"
_COUNTED = "st.async.shared::cluster.mbarrier::complete_tx::bytes."
PTX = {
    "": "nothing",
    "setmaxnreg.inc.sync.aligned.u32 224;": "nothing",
    "setmaxnreg.dec.sync.aligned.u32 56;": "nothing",
    "setmaxnreg.inc.sync.aligned.u32 232;": "nothing",
    "setmaxnreg.dec.sync.aligned.u32 40;": "nothing",
    "fence.proxy.async.global;": "nothing",
    "fence.proxy.async.shared::cta;": "nothing",
    "fence.mbarrier_init.release.cluster;": "nothing",
    "wgmma.fence.sync.aligned;": "nothing",
    "prefetch.global.L2 [%0];": "nothing",
    # global memory
    "ld.acquire.gpu.global.u32 %0,[%1];": "load_acquired",
    "ld.relaxed.gpu.global.u32 %0,[%1];": "load<4>",
    "ld.global.cs.u32 %0,[%1];": "load<4>",
    "{ .reg .pred p; setp.ne.b32 p,%2,0; @p ld.global.f32 %0,[%1]; }": "load_real_if",
    "{ .reg .pred p; setp.ne.b32 p,%2,0; @p ld.global.f64 %0,[%1]; }": "load_real_if",
    "{.reg .u16 h; ld.global.cs.u16 h,[%1]; cvt.u32.u16 %0,h;}": "load<2>",
    _IF + "2,0; mov.u32 %0,0; @p ld.global.nc.u8 %0,[%1];}": "load_if<1>",
    _IF + "1,0; mov.u32 %0,0; @p ld.global.nc.u8 %0,[%2];}": "load_if<1>",
    _IF + "1,0; mov.u32 %0,0; @p ld.global.nc.u16 %0,[%2];}": "load_if<2>",
    _IF + "1,0; mov.u32 %0,0; @p ld.global.cs.u16 %0,[%2];}": "load_if<2>",
    _IF + "1,0; mov.u32 %0,0; @p ld.global.nc.u32 %0,[%2];}": "load_if<4>",
    _IF + "2,0; mov.u32 %0,0; mov.u32 %1,0; @p ld.global.cs.v2.u32 {%0,%1},[%3];}": "load2_or_zeros",
    _IF + "4,0; mov.u32 %0,0; mov.u32 %1,0; mov.u32 %2,0; mov.u32 %3,0;"
    "@p ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3},[%5];}": "load4_or_zeros",
    _IF + "4,0; @p ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3},[%5];}": "load4_if",
    "{.reg .pred p; setp.eq.u32 p,%4,0xFFFFFFFF; @p ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3},[%5];}": "reload4",
    _IF + "2,0; @p st.relaxed.gpu.global.u16 [%0],%1;}": "store_if",
    _IF + "2,0; @p st.relaxed.gpu.global.u32 [%0],%1;}": "store_if",
    "st.relaxed.gpu.global.v2.u32 [%0],{%1,%2};": "store2",
    _IF + "3,0; @p st.relaxed.gpu.global.v2.u32 [%0],{%1,%2};}": "store2_if",
    "st.relaxed.gpu.global.v4.u32 [%0],{%1,%2,%3,%4};": "store4",
    _IF + "5,0; @p st.relaxed.gpu.global.v4.u32 [%0],{%1,%2,%3,%4};}": "store4_if",
    "{ .reg .pred p; setp.ne.b32 p,%3,0; @p st.global.v2.b32 [%0],{%1,%2}; }": "store2_if",
    "{ .reg .pred p; setp.ne.b32 p,%5,0; @p st.global.v4.b32 [%0],{%1,%2,%3,%4}; }": "store4_if",
    "red.release.gpu.global.add.u32 [%0],1;": "increment",
    "st.relaxed.gpu.global.u64 [%0],%1;": "store_long",
    "ld.relaxed.gpu.global.v2.u64 {%0,%1},[%2];": "load_longs",
    "{.reg .b128 q; mov.b128 q,{%1,%2}; st.relaxed.gpu.global.b128 [%0],q;}": "store_longs",
    "{.reg .b128 q; ld.relaxed.gpu.global.b128 q,[%2]; mov.b128 {%0,%1},q;}": "load_longs",
    # shared memory
    "ld.shared.u16 %0,[%1];": "load_shared",
    "ld.shared.u32 %0,[%1];": "load_shared",
    "ld.shared.f32 %0,[%1];": "load_shared",
    "ld.shared.v2.u32 {%0,%1},[%2];": "load_shared2",
    "ld.shared.v2.f32 {%0,%1},[%2];": "load_shared2",
    "ld.volatile.shared.f32 %0,[%1];": "poll_shared",
    "ld.volatile.shared.v2.f32 {%0,%1},[%2];": "poll_shared2",
    "ld.volatile.shared.v4.f32 {%0,%1,%2,%3},[%4];": "poll_shared4",
    "ld.shared.v4.u32 {%0,%1,%2,%3},[%4];": "load_shared4",
    "ld.shared.v4.f32 {%0,%1,%2,%3},[%4];": "load_shared4",
    "st.shared.u16 [%0],%1;": "store_shared",
    "st.shared.u32 [%0],%1;": "store_shared",
    "st.shared.b32 [%0],%1;": "store_shared",
    "st.shared.f32 [%0],%1;": "store_shared",
    _IF + "2,0; @p st.shared.f32 [%0],%1;}": "store_shared_if",
    "{.reg .u16 h; cvt.u16.u32 h,%1; st.shared.u16 [%0],h;}": "store_shared_half",
    "st.shared.v2.u32 [%0],{%1,%2};": "store_shared2",
    "st.shared.v4.u32 [%0],{%1,%2,%3,%4};": "store_shared4",
    _IF + "5,0; @p st.shared.v4.f32 [%0],{%1,%2,%3,%4};}": "store_shared4_if",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];": "load_matrices_of",
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];": "load_transposed",
    "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0],{%1,%2,%3,%4};": "store_transposed",
    "cp.async.ca.shared.global [%0],[%1],4,%2;": "copy<4>",
    "cp.async.ca.shared.global [%0],[%1],8,%2;": "copy<8>",
    "cp.async.cg.shared.global [%0],[%1],16,%2;": "copy<16>",
    "cp.async.cg.shared.global [%0],[%1],16;": "copy16",
    _IF + "0,0; @p cp.async.cg.shared.global [%1],[%2],16;}": "copy16_if",
    _IF + "0,0; @p cp.async.cg.shared.global.L2::256B [%1],[%2],16;}": "copy16_if",
    "cp.async.commit_group;": "commit_copies",
    "cp.async.wait_group %0;": "wait_for_copies",
    "cp.async.wait_all;": "wait_for_copies",
    # barriers and clusters
    "bar.sync %0,%1;": "sync_of",
    "{.reg .pred p,q; setp.ne.u32 p,%1,0; bar.red.or.pred q,%2,%3,p; selp.u32 %0,1,0,q;}": "sync_or",
    "bar.arrive %0,%1;": "arrive_of",
    "bar.sync %0,128;": "sync<128>",
    "bar.sync %0,160;": "sync<160>",
    "bar.sync %0,256;": "sync<256>",
    "bar.arrive %0,160;": "arrive_and_go<160>",
    "bar.arrive %0,256;": "arrive_and_go<256>",
    "mov.u32 %0,%cluster_ctarank;": "cluster_rank",
    "mapa.shared::cluster.u32 %0,%1,%2;": "map_address",
    r"barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;": "sync_cluster",
    "barrier.cluster.arrive.release.aligned;": "arrive_at_cluster",
    "barrier.cluster.wait.acquire.aligned;": "wait_for_cluster",
    "mbarrier.init.shared::cta.b64 [%0],1;": "init_barrier",
    "mbarrier.init.shared::cta.b64 [%0],%1;": "init_barrier",
    "mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;": "expect_bytes",
    "mbarrier.arrive.shared::cluster.b64 _,[%0];": "arrive",
    "mbarrier.arrive.shared::cta.b64 _,[%0];": "arrive",
    "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p,[%1],%2; selp.u32 %0,1,0,p;}": "test_barrier",
    "{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p,[%1],%2; selp.u32 %0,1,0,p;}": "test_barrier_now",
    r"{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done,[%0],%1;\n@!done bra again;\n}": (
        "wait_at_barrier"
    ),
    "st.relaxed.cluster.shared::cluster.v2.f32 [%0],{%1,%2};": "store_to_block2",
    "st.relaxed.cluster.shared::cluster.v4.f32 [%0],{%1,%2,%3,%4};": "store_to_block4",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
    "[%0],[%1],%2,[%3],%4;": "bulk",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];": "bulk_here",
    "cp.async.bulk.global.shared::cta.bulk_group [%0],[%1],%2;": "bulk_out",
    "cp.async.bulk.commit_group;": "commit_copies",
    "cp.async.bulk.wait_group.read %0;": "wait_for_copies",
    _COUNTED + "b32 [%0],%1,[%2];": "send",
    _COUNTED + "v2.b32 [%0],{%1,%2},[%3];": "send",
    _COUNTED + "v2.f32 [%0],{%1,%2},[%3];": "send",
    _COUNTED + "v4.f32 [%0],{%1,%2,%3,%4},[%5];": "send",
    # products and arithmetic
    "wgmma.commit_group.sync.aligned;": "commit_products",
    "wgmma.wait_group.sync.aligned %0;": "wait_for_products",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};": "mma_half",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};": (
        "mma_bfloat16"
    ),
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};": "mma_tf32",
    "{.reg .b32 h; and.b32 h,%1,0xFFFFE000; neg.f32 h,h; fma.rn.f32 %0,%1,%2,h;}": "low_part",
    "cvt.rna.tf32.f32 %0,%1;": "round_to_tf32",
    "ex2.approx.ftz.f32 %0,%1;": "exp2",
    "rcp.approx.ftz.f32 %0,%1;": "reciprocal",
    "lg2.approx.ftz.f32 %0,%1;": "log2",
    "tanh.approx.f32 %0,%1;": "tangent",
    "mov.f32 %0,%1;": "copy_register",
    "mov.u64 %0,%globaltimer;": "read_timer",
    "mov.u32 %0,%clock;": "read_clock",
    "mov.u32 %0,%laneid;": "lane_id",
}

_ASM = re.compile(r"\basm\s*(?:volatile)?\s*\(")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_DYNAMIC = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];")
_STATIC = re.compile(r"__shared__ ((?:typename )?[\w:]+(?:<[^;{}]*?>)?(?:::\w+)?)\s+(\w[^;]*);")

_LAUNCH = re.compile(r"(\w+(?:<[\w, ]+>)?)\s*<<<")

FEATURES = """#pragma once
#define PRNN_HAS_CLUSTERS 1
#define PRNN_HAS_WGMMA 1
namespace prnn {
constexpr bool kHasClusters = true, kHasWgmma = true;
}
"""
LAUNCH = """#pragma once
#include "rnn/cuda/common/params.h"
namespace prnn {
template <class Params>
cudaError_t launch_cluster(void (*kernel)(Params), int cluster, int threads, size_t shared_bytes, const Params& params,
                           cudaStream_t) {
  const int blocks = params.sizes.replicas * params.sizes.directions * cluster;
  const bool ends = gpu::launch({blocks, threads, cluster, int64_t(shared_bytes)}, [&] { kernel(params); });
  return ends ? cudaSuccess : cudaErrorLaunchTimeout;
}
template <class Params>
cudaError_t launch_resident(void (*kernel)(Params), const ResidentShape& shape, const Params& params, cudaStream_t,
                            int threads = kResidentThreads) {
  const int blocks = shape.blocks * params.sizes.replicas * params.sizes.directions;
  const bool ends = gpu::launch({blocks, threads, shape.cluster, shape.shared_bytes}, [&] { kernel(params); });
  return ends ? cudaSuccess : cudaErrorLaunchTimeout;
}
}
"""
WGMMA = """template <class T, int HALF_COLUMNS, class A>
inline void wgmma(const T*, float (&sums)[HALF_COLUMNS], const A& a, uint64_t b) {
  gpu::multiply<T>(sums, a, b);
}
"""
WGMMA_COLUMNS = """template <class T, int HALF_COLUMNS>
inline void wgmma_columns(float (&sums)[HALF_COLUMNS], uint64_t a, uint64_t b) {
  gpu::multiply<T>(sums, a, b);
}
"""
WGMMA_ALONG_K = """template <class T, int COLUMNS>
inline void wgmma_along_k(float (&sums)[32], uint64_t a, uint64_t b) {
  gpu::multiply_along_k<T, COLUMNS>(sums, a, b);
}
"""


TILE_WGMMA = """template <int kTransposed, class T, int SUMS>
inline void wgmma(const T*, float (&sums)[SUMS], uint64_t a, uint64_t b, int adds) {
  if (kTransposed) gpu::fail("products of transposed tiles");
  if (!adds) {
    for (float& sum : sums) sum = 0;
  }
  gpu::multiply<T>(sums, a, b);
}
"""


def closing(text: str, start: int) -> int:
    """One past the parenthesis that closes the one before `start`; those in strings do not count."""
    depth, at = 1, start
    while depth > 0:
        if match := _STRING.match(text, at):
            at = match.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at


def split(text: str, separator: str) -> list[str]:
    """At separators outside strings and brackets."""
    parts, depth, at = [""], 0, 0
    while at < len(text):
        if match := _STRING.match(text, at):
            parts[-1] += match[0]
            at = match.end()
            continue
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[at], 0)
        if text[at] == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += text[at]
        at += 1
    return parts


def operands(part: str) -> list[str]:
    found, at = [], 0
    while match := re.compile(r'"[^"]*"\s*\(').search(part, at):
        at = closing(part, match.end())
        found.append(part[match.end() : at - 1])
    return found


def translate_statements(text: str) -> str:
    result, at = "", 0
    while match := _ASM.search(text, at):
        end = closing(text, match.end())
        instructions, outputs, inputs, *_ = [*split(text[match.end() : end - 1], ":"), "", ""]
        name = PTX.get(re.sub(", +", ",", "".join(_STRING.findall(instructions))), "unknown")
        result += text[at : match.start()]
        start = len(result)
        result += f"ptx({', '.join([f'gpu::{name}()', *operands(outputs), *operands(inputs)])})"
        result += "\n" * (text.count("\n", match.start(), end) - result.count("\n", start))
        at = end
    return result + text[at:]


def translate_variables(text: str) -> str:
    """Turns declarations of variables in shared memory into references."""
    text = _DYNAMIC.sub(r"auto* const \2 = reinterpret_cast<\1*>(gpu::dynamic_shared());", text)
    number = 0

    def references(match: re.Match[str]) -> str:
        nonlocal number
        declared = ""
        for variable in split(re.sub(r"//.*", "", match[2]), ","):
            name, *dimensions = variable.strip().partition("[")
            number += 1
            declared += f"auto& {name} = gpu::static_shared<{match[1]}{''.join(dimensions)}>({number}); "
        return declared

    return _STATIC.sub(references, text)


def translate_launches(text: str) -> str:
    """`kernel<<<grid, threads, bytes, stream>>>(arguments)` becomes a call of gpu::run()."""
    result, at = "", 0
    while match := _LAUNCH.search(text, at):
        shape, _, _ = text[match.end() :].partition(">>>(")
        arguments = match.end() + len(shape) + len(">>>(")
        end = closing(text, arguments)
        *shape_of, _ = split(shape, ",")
        result += text[at : match.start()]
        result += f"gpu::run({', '.join(shape_of)}, [&] {{ {match[1]}({text[arguments:end]}; }})"
        at = end
    return result + text[at:]


def make_sources(source: pathlib.Path, folder: pathlib.Path, edits: list[tuple[str, str, str]]) -> None:
    """`source`: the repository's src/. `edits`: of a file, an old text and the new one, made before."""
    shutil.copytree(source, folder, ignore=lambda _, names: [n for n in names if n.endswith(".cc")])
    for file, old, new in edits:
        text = (folder / file).read_text()
        assert text.count(old) == 1, (file, old)
        (folder / file).write_text(text.replace(old, new))
    for path in [*folder.rglob("*.cuh"), *folder.rglob("*.cu")]:
        text = path.read_text()
        if path.match("wgmma/instructions.cuh"):
            begin, end = text.index("#define PRNN_SUMS4"), text.index("#undef PRNN_SUMS4")
            text = text[:begin] + WGMMA + text[end:]
        if path.match("rnnt/cuda/joint_tiles.cuh"):
            begin, end = text.index("#define PRNN_SUMS8"), text.index("#undef PRNN_SUMS8")
            text = text[:begin] + TILE_WGMMA + text[end:]
        if path.match("rnnt/cuda/joint_tiles.cu"):
            text = re.sub(r"cudaFuncSetAttribute\(.*?\);", "", text)
        if path.match("wavefront/chunked_product.cuh"):
            for instead in (WGMMA_COLUMNS, WGMMA_ALONG_K):
                begin, end = text.index("#if PRNN_HAS_WGMMA"), text.index("#endif")
                text = text[:begin] + instead + text[end + len("#endif") :]
        if path.match("common/element.cuh"):  # a macro has the statement
            begin, end = text.index("#define PRNN_MMA("), text.index("    if constexpr (kIsHalf) {\n      PRNN_MMA")
            macro = re.sub(r"\\\n", "", text[begin:end].partition(")")[2])
            for name in ("f16", "bf16"):
                text = text.replace(f'PRNN_MMA("{name}");', macro.strip().replace(" type ", f' "{name}" ') + ";")
            text = text[:begin] + text[end:]
        path.write_text(translate_launches(translate_variables(translate_statements(text))))
    launch = folder / "core/cuda/launch.h"
    check = re.compile(r"(void check_launch\(const char\*) \w+\) \{.*?\n\}", re.DOTALL)
    launch.write_text(check.sub(r"\1) {}", launch.read_text()))
    (folder / "core/cuda/features.cuh").write_text(FEATURES)
    (folder / "rnn/cuda/common/launch.cuh").write_text(LAUNCH)
