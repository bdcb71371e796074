"""SCons tool for CUDA sources: SharedObject("x.cu") compiles with nvcc.

The headers that a .cu file includes are followed as a .cc file's are. What ptxas says of registers and spills is kept
beside the object, as a second target under $PTXAS_LOG_DIR. The host compiler has
$NVCC_CXXFLAGS. Sets NVCC (None if there is none), CUDA_INCDIR, CUDA_LIBDIR.
"""

import os
import shutil

import SCons.Tool.compilation_db as compilation_db
from nvcc_arch import arch_flags, compiled_for
from SCons.Action import Action
from SCons.Scanner.C import CScanner
from SCons.Tool import SourceFileScanner, createObjBuilders

# ptxas writes to the error output even when all is well: it goes to the log, from which warnings and errors are shown.
# A log has its name when it is complete, so that a build that was killed leaves none.
_COMMAND = (
    "if $NVCCCOM > ${TARGETS[1]}.part 2>&1; then mv ${TARGETS[1]}.part ${TARGETS[1]};"
    " grep -i -A3 warning ${TARGETS[1]} || true; else cat ${TARGETS[1]}.part; rm -f ${TARGETS[1]}.part; exit 1; fi"
)


def find_nvcc() -> str | None:
    """$NVCC if that is set, else the one of $CUDA_HOME, PATH or the usual place."""
    if "NVCC" in os.environ:
        return shutil.which(os.environ["NVCC"])
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    candidates = [f"{home}/bin/nvcc" for home in homes if home] + ["nvcc", "/usr/local/cuda/bin/nvcc"]
    return next(filter(None, map(shutil.which, candidates)), None)


def toolkit_root(nvcc: str) -> str:
    """The folder with include/ and lib64/, found also when nvcc on PATH is a script that calls the real one."""
    output = os.popen(f"{nvcc} --dryrun -x cu -c /dev/null -o /dev/null 2>&1").read()
    top = next((line.split("=", 1)[1] for line in output.splitlines() if line.startswith("#$ TOP=")), None)
    return os.path.realpath(top or os.path.join(os.path.dirname(nvcc), ".."))


def log_emitter(target, source, env):
    # build/release/src/rnn/cuda/x.os -> $PTXAS_LOG_DIR/rnn/cuda/x.txt
    logs = env.subst("$PTXAS_LOG_DIR").lstrip("#")
    name = os.path.splitext(os.path.relpath(str(target[0]), os.path.join(os.path.dirname(logs), "src")))[0]
    target[0].attributes.shared = 1
    target.append(env.File(f"$PTXAS_LOG_DIR/{name}.txt"))
    compilation_db.__COMPILATION_DB_ENTRIES.append((target[0], source[0], env, Action("$NVCCCOM")))
    return target, source


def _shown(target, source, env):
    return env.subst(env.get("NVCCCOMSTR", "$NVCCCOM"), target=target, source=source)


def generate(env):
    env["NVCC"] = find_nvcc()
    if not env["NVCC"]:
        return
    root = toolkit_root(env["NVCC"])
    env.SetDefault(CUDA_INCDIR=os.path.join(root, "include"), CUDA_LIBDIR=os.path.join(root, "lib64"))
    env.Append(NVCCFLAGS=["--expt-relaxed-constexpr", "-Xptxas=-v"])
    if "native" not in env["cuda_arch"]:  # it takes a second a file; a library of this machine alone may be large
        env.Append(NVCCFLAGS=["--compress-mode=size"])
    archs = compiled_for(list(env["cuda_arch"]))
    env["NVCC_ARCH"] = lambda target, source, env, for_signature: arch_flags(archs, str(source[0]))
    env["NVCCCOM"] = (
        "$NVCC -c $NVCCFLAGS $NVCC_ARCH -ccbin=$CXX -forward-unknown-to-host-compiler -fPIC $NVCC_CXXFLAGS"
        " $_CPPDEFFLAGS $_CPPINCFLAGS -o ${TARGETS[0]} $SOURCE"
    )
    _, shared_object = createObjBuilders(env)
    shared_object.add_action(".cu", Action(_COMMAND, strfunction=_shown))
    shared_object.add_emitter(".cu", log_emitter)
    for suffix in (".cu", ".cuh"):
        SourceFileScanner.add_scanner(suffix, CScanner())


def exists(env):
    return find_nvcc() is not None
