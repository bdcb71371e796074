"""SCons tool for `scons install`: headers, library and pkg-config file under a prefix."""

import os

_PC = """\
prefix=@PREFIX@
libdir=${prefix}/lib
includedir=${prefix}/include

Name: prnn
Description: Recurrent layers with weights resident on the chip, and CTC and RNN-T losses
Version: @VERSION@
Libs: -L"${libdir}" -lprnn
Cflags: -I"${includedir}"
"""


def install_prefix(env, prefix, library, headers, version):
    prefix = os.path.abspath(env.subst(prefix))
    pc = env.Textfile(
        "$build_dir/prnn.pc", _PC.rstrip().replace("@PREFIX@", prefix).replace("@VERSION@", version).replace("$", "$$")
    )
    installed = env.InstallVersionedLib(f"{prefix}/lib", library) + env.Install(f"{prefix}/lib/pkgconfig", pc)
    for header in headers:
        installed += env.InstallAs(f"{prefix}/{header}", header)
    return installed


def generate(env):
    env.Tool("textfile")
    env.AddMethod(install_prefix, "InstallPrefix")


def exists(env):
    return True
