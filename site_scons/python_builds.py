"""The properties of a Python that its extension modules depend on."""

import dataclasses
import json
import subprocess

_PROGRAM = """
import json, sys, sysconfig
paths = [sysconfig.get_path(name) for name in ("include", "platinclude")]
abi = "cp" + (sysconfig.get_config_var("SOABI") or "cpython-unknown").split("-")[1]
version = f"cp{sys.version_info.major}{sys.version_info.minor}"
print(json.dumps([sysconfig.get_config_var("EXT_SUFFIX"), version, abi, paths]))
"""


@dataclasses.dataclass(frozen=True)
class PythonBuild:
    suffix: str  # of extension modules: .cpython-311-x86_64-linux-gnu.so
    version: str  # cp311
    abi: str  # cp311, or cp313t without the global interpreter lock
    includes: list[str]


def python_build(executable: str) -> PythonBuild:
    """Asks an interpreter for its build. Raises SystemExit where it cannot be run."""
    try:
        done = subprocess.run([executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"scons: {executable} is no Python that runs: {error}") from error
    return PythonBuild(*json.loads(done.stdout))
