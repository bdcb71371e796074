"""The options of the build: `scons NAME=VALUE`, listed by `scons --help`."""

import difflib
import os

from nvcc_arch import ARCHITECTURES
from SCons.Errors import UserError
from SCons.Script import Exit
from SCons.Variables import EnumVariable, ListVariable, PathVariable, Variables


def _folder(key: str, value: str, env) -> None:
    if not value:
        raise UserError(f"{key} is empty; it must be a folder")
    env[key] = os.path.expanduser(value)  # a shell does so at the beginning of an argument alone


def declare_options(arguments: dict[str, str]) -> Variables:
    options = Variables(args=arguments)
    options.AddVariables(
        EnumVariable("mode", "release: optimised; debug: symbols and assertions", "release", ["release", "debug"]),
        EnumVariable("cuda", "build the CUDA sources; auto: if there is an nvcc", "auto", ["auto", "on", "off"]),
        ListVariable(
            "cuda_arch",
            "GPU architectures to compile for; native: those of this machine's GPUs, 90a without any",
            "80,90a",
            [*ARCHITECTURES, "native"],
        ),
        EnumVariable("jax", "build the handlers for JAX; auto: if there is a jaxlib", "auto", ["auto", "on", "off"]),
        ("pythons", "Pythons to build the extension for, with commas; empty: the one that runs SCons", ""),
        ListVariable("sanitizers", "runtime checkers to build in", "none", ["address", "undefined"]),
        PathVariable("prefix", "where `scons install` puts things", "/usr/local", _folder),
        PathVariable("libdir", "folder of libraries, in the prefix or anywhere", "lib", _folder),
        PathVariable("destdir", "what the paths of `scons install` begin with", "", PathVariable.PathAccept),
        PathVariable("build_dir", "folder of intermediate files", "build", PathVariable.PathAccept),
        PathVariable("glibc_stubs", "folder of an older glibc's, to link with", "", PathVariable.PathAccept),
        EnumVariable("verbose", "print whole commands, not a line a file", "off", ["on", "off"]),
        PathVariable("cache", "folder of objects shared between checkouts; empty: none", "", PathVariable.PathAccept),
    )
    return options


def refuse_unknown_options(options: Variables) -> None:
    for name in options.UnknownVariables():
        near = difflib.get_close_matches(name, options.keys(), n=1)
        hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(options.keys())}"
        print(f"scons: there is no option {name!r}; {hint} (scons --help)")
        Exit(2)
