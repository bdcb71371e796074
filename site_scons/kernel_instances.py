"""Writes the files that instantiate the resident kernels, and the launcher's table of them, into the build folder.

What there is stands in src/rnn/plan/kernels.h, one row a line. Of a kernel with engine, operation, cell, type and shape
the file src/rnn/cuda/<engine>/<operation>.cuh defines

    template <class T, prnnRNNMode_t MODE, int... the shape>
    cudaError_t launch_<engine>_<operation>(const ResidentShape&, const <Params>&, cudaStream_t);
"""

import dataclasses
import pathlib
import re

TABLE = pathlib.Path("src/rnn/plan/kernels.h")

# Engine -> where its kernels are, without the operation (forward or backward).
_FILES = {
    "kMma": "mma/",
    "kMmaExtras": "mma/",
    "kMmaLarge": "mma/large_",
    "kMmaLargeExtras": "mma/large_",
    "kWgmma": "wgmma/",
    "kWgmmaSplitK": "wgmma/split_k_",
    "kWgmmaMulticast": "wgmma/multicast_",
    "kCluster": "cluster/",
    "kProjected": "projected/",
    "kSimt": "simt/",
    "kWavefrontMma": "wavefront/",
    "kWavefrontWgmma": "wavefront/wgmma_",
    "kWavefrontChunked": "wavefront/chunked_",
    "kNormCluster": "layer_norm/cluster_",
    "kNormGrid": "layer_norm/grid_",
}
# In the order of the bits of Cells and Types in kernels.h.
_CELLS = ["Rnn", "Gru", "Lstm", "Slstm"]
_MODES = ["PRNN_RNN_TANH", "PRNN_GRU", "PRNN_LSTM", "PRNN_SLSTM"]
_TYPES = ["Float", "Tf32", "Half", "Bfloat16"]
_16_BIT = [2, 3]
_CPP_TYPES = ["float", "Tf32", "__half", "__nv_bfloat16"]
_CELL_SETS = {"kAll": 7, "kGated": 6}
_TYPE_SETS = {"kAll": 15, "k32Bit": 3, "k16Bit": 12, "kTensor": 14}

_ROW = re.compile(r"\{Engine::(\w+), Pass::k(\w+), Cells::(\w+), Types::(\w+), Feature::\w+, \{([\d, ]*)\}\},")


@dataclasses.dataclass(frozen=True)
class Kernel:
    row: int
    engine: str
    operation: str  # forward or backward
    cell: int
    type: int
    shape: str  # template arguments

    @property
    def function(self) -> str:
        words = re.sub(r"(?<=.)([A-Z])", r"_\1", self.engine[1:]).lower()
        return f"launch_{words}_{self.operation}"

    @property
    def header(self) -> str:
        return f"rnn/cuda/{_FILES[self.engine]}{self.operation}.cuh"

    @property
    def arguments(self) -> str:
        return ", ".join(filter(None, [_CPP_TYPES[self.type], _MODES[self.cell], self.shape]))

    @property
    def params(self) -> str:
        if self.engine.startswith("kNorm"):
            return "LayerNormLstmGridParams"  # of both passes
        return ("Wavefront" if "wavefront" in self.header else "") + self.operation.capitalize() + "Params"

    @property
    def file(self) -> str:
        """The file that instantiates it. Few files, since each costs 1.5 s beside its kernels, but none that takes much
        longer than the others: the 16-bit types share one, except where their kernels take longest."""
        words = [self.function.removeprefix("launch_").removesuffix(f"_{self.operation}")]
        if self.engine in ("kMma", "kMmaExtras", "kWavefrontMma", "kWavefrontChunked"):
            words.append(self.operation)
        if self.engine in ("kMmaLarge", "kMmaLargeExtras"):
            words = ["mma_large"]
        apart = self.engine == "kWavefrontMma" or (self.engine, self.operation) == ("kMma", "backward")
        words.append("16bit" if self.type in _16_BIT and not apart else _TYPES[self.type].lower())
        return "_".join(words)


def read_kernels(table: pathlib.Path = TABLE) -> list[Kernel]:
    def members(name: str, names: list[str], sets: dict[str, int]) -> list[int]:
        bits = sets[name] if name in sets else 1 << names.index(name[1:])
        return [i for i in range(len(names)) if bits >> i & 1]

    kernels = []
    for row, (engine, operation, cells, types, shape) in enumerate(_ROW.findall(table.read_text())):
        for cell in members(cells, _CELLS, _CELL_SETS):
            for type_ in members(types, _TYPES, _TYPE_SETS):
                kernels.append(Kernel(row, engine, operation.lower(), cell, type_, shape))
    return kernels


def instance_files(kernels: list[Kernel]) -> dict[str, list[Kernel]]:
    files: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        files.setdefault(kernel.file, []).append(kernel)
    # The files with most kernels come first: the build begins with them.
    return dict(sorted(files.items(), key=lambda item: -len(item[1])))


def instances_text(kernels: list[Kernel]) -> str:
    lines = ["// Written by site_scons/kernel_instances.py from src/rnn/plan/kernels.h."]
    lines += sorted({f'#include "{kernel.header}"' for kernel in kernels})
    if any(_TYPES[kernel.type] == "Tf32" for kernel in kernels):
        lines.append('#include "rnn/cuda/common/tf32.cuh"')  # last: its __ldcs would hide those of other types
    lines += ["", "namespace prnn {", ""]
    for kernel in kernels:
        lines.append(
            f"template cudaError_t {kernel.function}<{kernel.arguments}>(const ResidentShape&, const {kernel.params}&, "
            "cudaStream_t);"
        )
    return "\n".join([*lines, "", "}  // namespace prnn", ""])


def launchers_text(kernels: list[Kernel]) -> str:
    """Included by src/rnn/cuda/launch.cc: every kernel's launch function, by its place in the table."""
    lines = ["// Written by site_scons/kernel_instances.py from src/rnn/plan/kernels.h."]
    for function in dict.fromkeys(kernel.function for kernel in kernels):
        first = next(kernel for kernel in kernels if kernel.function == function)
        parameters = ", ".join(["class", "prnnRNNMode_t", *("int" for _ in first.shape.split(", ") if first.shape)])
        lines += [
            f"template <{parameters}>",
            f"cudaError_t {function}(const ResidentShape&, const {first.params}&, cudaStream_t);",
        ]
    for params in dict.fromkeys(kernel.params for kernel in kernels):
        lines.append(f"constexpr Launcher<{params}> k{params.removesuffix('Params')}Launchers[] = {{")
        for kernel in kernels:
            if kernel.params == params:
                place = f"{{{kernel.row}, {kernel.cell}, {kernel.type}}}"
                lines.append(f"    {{{place}, {kernel.function}<{kernel.arguments}>}},")
        lines.append("};")
    return "\n".join([*lines, ""])


def generate_kernels(env, folder: str):  # type: ignore[no-untyped-def]
    """The SCons nodes of the instantiation files; `folder` goes to the include path of src/rnn/cuda/launch.cc."""
    kernels = read_kernels()
    texts = {f"{name}.cu": instances_text(group) for name, group in instance_files(kernels).items()}
    texts["launchers.inc"] = launchers_text(kernels)

    def write(target, source, env) -> None:  # type: ignore[no-untyped-def]
        for node in target:
            pathlib.Path(node.get_path()).write_text(texts[node.name])

    nodes = env.Command(
        [f"{folder}/rnn/cuda/{name}" for name in texts],
        [str(TABLE), "site_scons/kernel_instances.py"],
        env.Action(write, lambda target, source, env: f"instances of {len(kernels)} kernels from {source[0]}"),
    )
    return [node for node in nodes if node.name.endswith(".cu")]
