"""SCons tool for `scons install`: headers, library and pkg-config file under $prefix, the libraries in $libdir there or
anywhere. A package is made in $destdir, which the paths begin with that are written to, and not those in the file."""

import os

_PC = """\
prefix=@PREFIX@
libdir=@LIBDIR@
includedir=${prefix}/include

Name: prnn
Description: Recurrent layers with weights resident on the chip, and CTC and RNN-T losses
Version: @VERSION@
Libs: -L"${libdir}" -lprnn
Cflags: -I"${includedir}"
"""


def install_prefix(env, library, headers, version):
    prefix = os.path.abspath(env.subst("$prefix"))
    libdir = os.path.normpath(os.path.join("${prefix}", env["libdir"]))  # which may be absolute
    text = _PC.rstrip().replace("@PREFIX@", prefix).replace("@LIBDIR@", libdir).replace("@VERSION@", version)
    pc = env.Textfile("$build_dir/prnn.pc", text.replace("$", "$$"))
    destination = os.path.abspath(env["destdir"]) if env["destdir"] else ""
    prefix, libdir = (destination + path for path in (prefix, libdir.replace("${prefix}", prefix)))
    installed = env.InstallVersionedLib(libdir, library) + env.Install(f"{libdir}/pkgconfig", pc)
    for header in headers:
        installed += env.InstallAs(f"{prefix}/{header}", header)
    return installed


def generate(env):
    env.Tool("textfile")
    env.AddMethod(install_prefix, "InstallPrefix")


def exists(env):
    return True
