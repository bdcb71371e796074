"""PEP 517 and PEP 660 backend: `pip install .` and `pip install -e .` build through SCons and install what it built.

Config settings are the build's options: `pip install . -C cuda=off -C cuda_arch=80,90a`. An editable install is a
.pth file that points at the checkout, where SCons has put the extension in place.
"""

import base64
import hashlib
import io
import pathlib
import subprocess
import sys
import sysconfig
import tarfile
import zipfile

import packaging.version
import pyproject_metadata
from prnn_version import read_version
from python_builds import python_build

ROOT = pathlib.Path(__file__).resolve().parent.parent
SDIST_PARTS = ["LICENSE", "README.md", "CHANGELOG.md", "SConstruct", "pyproject.toml", "mkdocs.yml"]
SDIST_PARTS += [
    "bench",
    "docs",
    "include",
    "prnn",
    "python",
    "recipes",
    "requirements",
    "scripts",
    "site_scons",
    "src",
    "tests",
]


def get_requires_for_build_wheel(config_settings=None):
    return ["jaxlib"] if (config_settings or {}).get("jax") == "on" else []


get_requires_for_build_editable = get_requires_for_build_wheel


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None, names_device=False):
    """names_device: a build without CUDA code has the version 0.1.0+cpu, as PyTorch names its own."""
    _run_scons(config_settings)
    pythons = _pythons(config_settings)
    extensions = [f"_C{python.suffix}" for python in pythons]
    names = [name for name in _files("prnn") if name.suffix in (".py", ".pyi", ".typed") or name.name in extensions]
    names += sorted(ROOT.glob("prnn/lib/*.so*"))
    contents = {str(name.relative_to(ROOT)): name.read_bytes() for name in names}
    is_cpu = not any(b".nv_fatbin" in contents[name] for name in contents if name.startswith("prnn/lib/libprnn.so"))
    return _write_wheel(wheel_directory, contents, pythons, "+cpu" if names_device and is_cpu else "")


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    _run_scons(config_settings)
    contents = {"__editable__.prnn.pth": f"{ROOT}\n".encode()}
    return _write_wheel(wheel_directory, contents, _pythons(config_settings))


def build_sdist(sdist_directory, config_settings=None):
    metadata = _metadata()
    base = f"prnn-{metadata.version}"
    with tarfile.open(pathlib.Path(sdist_directory, f"{base}.tar.gz"), "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for part in SDIST_PARTS:
            for path in _files(part):
                if ".so" not in path.suffixes:
                    archive.add(path, f"{base}/{path.relative_to(ROOT)}")
        info = tarfile.TarInfo(f"{base}/PKG-INFO")
        text = bytes(metadata.as_rfc822())
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text))
    return f"{base}.tar.gz"


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    files = _dist_info(_pythons(config_settings))
    for name, content in files.items():
        path = pathlib.Path(metadata_directory, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return f"prnn-{read_version()}.dist-info"


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def _run_scons(config_settings):
    options = [f"{name}={value}" for name, value in (config_settings or {}).items()]
    done = subprocess.run([sys.executable, "-m", "SCons", "-Q", *options, "python"], cwd=ROOT)
    if done.returncode != 0:
        raise SystemExit(f"prnn was not built: scons ended with exit status {done.returncode}; its output is above")


def _files(part):
    """All files under ROOT/part (or the file itself), but for caches."""
    top = ROOT / part
    found = [top] if top.is_file() else sorted(top.rglob("*"))
    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]


def _metadata(local=""):
    if sys.version_info < (3, 11):  # noqa: UP036  # which pip does not look at before it asks for the metadata
        raise SystemExit(f"prnn requires Python >= 3.11; this is {sys.version.split()[0]}")
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    metadata = pyproject_metadata.StandardMetadata.from_pyproject(project, ROOT)
    metadata.version = packaging.version.Version(read_version() + local)
    metadata.dynamic = []
    return metadata


def _pythons(config_settings):
    """The Pythons that the extension is built for."""
    named = (config_settings or {}).get("pythons", "").split(",")
    return [python_build(python) for python in named if python] or [python_build(sys.executable)]


def _wheel_tags(pythons):
    """One of a Python. Of several the ABI is "none", or pip would take any of their versions with any of their ABIs."""
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return [f"{one.version}-{one.abi if len(pythons) == 1 else 'none'}-{platform}" for one in pythons]


def _dist_info(pythons, local=""):
    metadata = _metadata(local)
    top = f"prnn-{metadata.version}.dist-info"
    scripts = "".join(f"{name} = {target}\n" for name, target in metadata.scripts.items())
    tags = "".join(f"Tag: {tag}\n" for tag in _wheel_tags(pythons))
    wheel = f"Wheel-Version: 1.0\nGenerator: prnn\nRoot-Is-Purelib: false\n{tags}"
    return {
        f"{top}/METADATA": bytes(metadata.as_rfc822()),
        f"{top}/WHEEL": wheel.encode(),
        f"{top}/entry_points.txt": f"[console_scripts]\n{scripts}".encode(),
        f"{top}/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
    }


def _write_wheel(directory, files, pythons, local=""):
    files = {**files, **_dist_info(pythons, local)}
    record = ""
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    top = f"prnn-{read_version()}{local}"
    files[f"{top}.dist-info/RECORD"] = (record + f"{top}.dist-info/RECORD,,\n").encode()
    versions, rest = ".".join(one.version for one in pythons), _wheel_tags(pythons)[0].partition("-")[2]
    wheel = f"{top}-{versions}-{rest}.whl"
    with zipfile.ZipFile(pathlib.Path(directory, wheel), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name)  # dated 1980, so that equal contents make equal wheels
            entry.external_attr = 0o755 << 16 if ".so" in name else 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return wheel
