"""Makes host C++ of the resident kernels' sources, which tests/kernels_on_cpu/gpu.h runs: every PTX statement becomes a
call of ptx(gpu::<name>(), outputs..., inputs...), and shared memory is the emulated block's.

What is not in PTX below becomes a call that ends the program: who needs it adds a line here and a function in gpu.h.
"""

import pathlib
import re
import shutil

PTX = {
    "": "nothing",
    "setmaxnreg.inc.sync.aligned.u32 224;": "nothing",
    "setmaxnreg.dec.sync.aligned.u32 56;": "nothing",
    "fence.proxy.async.global;": "nothing",
    "fence.proxy.async.shared::cta;": "nothing",
    "fence.mbarrier_init.release.cluster;": "nothing",
    "wgmma.fence.sync.aligned;": "nothing",
    "wgmma.commit_group.sync.aligned;": "nothing",
    "cp.async.wait_all;": "nothing",
    "wgmma.wait_group.sync.aligned %0;": "wait_for_products",
    "ld.acquire.gpu.global.u32 %0,[%1];": "load_global",
    "{.reg .pred p; setp.ne.u32 p,%2,0; mov.u32 %0,0; @p ld.global.nc.u8 %0,[%1];}": "load_byte",
    "{.reg .pred p; setp.ne.u32 p,%4,0; mov.u32 %0,0; mov.u32 %1,0; mov.u32 %2,0; mov.u32 %3,0;"
    "@p ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3},[%5];}": "load_global4",
    "st.relaxed.gpu.global.v4.u32 [%0],{%1,%2,%3,%4};": "store_global4",
    "red.release.gpu.global.add.u32 [%0],1;": "increment",
    "ld.shared.u16 %0,[%1];": "load_shared",
    "ld.shared.u32 %0,[%1];": "load_shared",
    "ld.shared.f32 %0,[%1];": "load_shared",
    "ld.shared.v4.u32 {%0,%1,%2,%3},[%4];": "load_shared4",
    "st.shared.u16 [%0],%1;": "store_shared",
    "st.shared.u32 [%0],%1;": "store_shared",
    "st.shared.f32 [%0],%1;": "store_shared",
    "st.shared.v2.u32 [%0],{%1,%2};": "store_shared2",
    "st.shared.v4.u32 [%0],{%1,%2,%3,%4};": "store_shared4",
    "cp.async.cg.shared.global [%0],[%1],16,%2;": "copy16",
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];": "load_transposed",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];": "load_matrices",
    "bar.sync %0,128;": "sync128",
    "bar.sync %0,160;": "sync160",
    "bar.arrive %0,160;": "arrive160",
    "mov.u32 %0,%cluster_ctarank;": "cluster_rank",
    "mapa.shared::cluster.u32 %0,%1,%2;": "map_address",
    r"barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;": "sync_cluster",
    "mbarrier.init.shared::cta.b64 [%0],%1;": "init_barrier",
    "mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;": "expect_bytes",
    "mbarrier.arrive.shared::cluster.b64 _,[%0];": "arrive",
    "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p,[%1],%2; selp.u32 %0,1,0,p;}": "test_barrier",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
    "[%0],[%1],%2,[%3],%4;": "bulk",
    "mov.u64 %0,%globaltimer;": "read_timer",
    "cvt.rna.tf32.f32 %0,%1;": "round_to_tf32",
    "ex2.approx.ftz.f32 %0,%1;": "exp2",
    "rcp.approx.ftz.f32 %0,%1;": "reciprocal",
}

_ASM = re.compile(r"\basm\s*(?:volatile)?\s*\(")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
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
template <class Params, class Stream>
cudaError_t launch_resident(void (*)(Params), const ResidentShape&, const Params&, Stream, int = 0) {
  return cudaErrorNotSupported;
}
}
"""
WGMMA = """template <class T, int HALF_COLUMNS, class A>
inline void wgmma(const T*, float (&sums)[HALF_COLUMNS], const A& a, uint64_t b) {
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


def parts_of(body: str) -> list[str]:
    """Of an asm statement: instructions, outputs, inputs, clobbers."""
    parts, depth, at = [""], 0, 0
    while at < len(body):
        if match := _STRING.match(body, at):
            parts[-1] += match[0]
            at = match.end()
            continue
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(body[at], 0)
        if body[at] == ":" and depth == 0:
            parts.append("")
        else:
            parts[-1] += body[at]
        at += 1
    return [*parts, "", ""]


def operands(part: str) -> list[str]:
    found, at = [], 0
    while match := re.compile(r'"[^"]*"\s*\(').search(part, at):
        at = closing(part, match.end())
        found.append(part[match.end() : at - 1])
    return found


def translate(text: str) -> str:
    result, at = "", 0
    while match := _ASM.search(text, at):
        end = closing(text, match.end())
        statement = text[match.start() : end]
        result += text[at : match.start()]
        at = end
        if "\\\n" in statement:  # of a macro
            result += "((void)0)"
            continue
        instructions, outputs, inputs, *_ = parts_of(text[match.end() : end - 1])
        name = PTX.get("".join(_STRING.findall(instructions)), "unknown")
        result += f"ptx({', '.join([f'gpu::{name}()', *operands(outputs), *operands(inputs)])})"
    result += text[at:]
    ring = re.compile(r"extern __shared__ __align__\(1024\) char (\w+)\[\];")
    result = ring.sub(r"char* const \1 = gpu::dynamic_shared();", result)
    return re.sub(r"__shared__ (\w+) (\w+);", r"\1& \2 = gpu::static_shared<\1>();", result)


def make_sources(source: pathlib.Path, folder: pathlib.Path) -> None:
    """`source`: the repository's src/."""
    shutil.copytree(source, folder, ignore=lambda _, names: [n for n in names if n.endswith((".cu", ".cc"))])
    for path in folder.rglob("*.cuh"):
        text = path.read_text()
        if path.match("wgmma/instructions.cuh"):
            begin, end = text.index("#define PRNN_SUMS4"), text.index("#undef PRNN_SUMS4")
            text = text[:begin] + WGMMA + text[end:]
        path.write_text(translate(text))
    (folder / "core/cuda/features.cuh").write_text(FEATURES)
    (folder / "rnn/cuda/common/launch.cuh").write_text(LAUNCH)
