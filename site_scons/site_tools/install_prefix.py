"""SCons tool for `scons install`: headers, library, and the files of pkg-config and CMake under $prefix, the libraries
in $libdir there or anywhere. A package is made in $destdir, which the paths begin with that are written to, and not
those in the files."""

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

_CMAKE = """\
if(NOT TARGET prnn::prnn)
  add_library(prnn::prnn SHARED IMPORTED)
  set_target_properties(prnn::prnn PROPERTIES
    IMPORTED_LOCATION "@LIBDIR@/@FILE@"
    IMPORTED_SONAME "@SONAME@"
    INTERFACE_INCLUDE_DIRECTORIES "@PREFIX@/include")
endif()
"""

# A version is compatible if its major number is the wanted one and it is at least as new.
_CMAKE_VERSION = """\
set(PACKAGE_VERSION "@VERSION@")
if(PACKAGE_FIND_VERSION_MAJOR STREQUAL "@MAJOR@" AND NOT PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_VERSION VERSION_EQUAL PACKAGE_FIND_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
endif()
"""


def install_prefix(env, library, headers, version):
    prefix = os.path.abspath(env.subst("$prefix"))
    libdir = os.path.normpath(os.path.join("${prefix}", env["libdir"]))  # which may be absolute
    major = version.split(".")[0]
    values = {"PREFIX": prefix, "VERSION": version, "MAJOR": major, "FILE": f"libprnn.so.{version}"}
    values |= {"SONAME": f"libprnn.so.{major}"}

    def written(name, template, **more):
        text = template.rstrip()
        for key, value in {**values, **more}.items():
            text = text.replace(f"@{key}@", value)
        return env.Textfile(f"$build_dir/{name}", text.replace("$", "$$"), TEXTFILESUFFIX="")

    pc = written("prnn.pc", _PC, LIBDIR=libdir)
    libdir = libdir.replace("${prefix}", prefix)
    cmake = written("prnn-config.cmake", _CMAKE, LIBDIR=libdir)
    cmake += written("prnn-config-version.cmake", _CMAKE_VERSION)
    destination = os.path.abspath(env["destdir"]) if env["destdir"] else ""
    prefix, libdir = (destination + path for path in (prefix, libdir))
    installed = env.InstallVersionedLib(libdir, library)
    installed += env.Install(f"{libdir}/pkgconfig", pc) + env.Install(f"{libdir}/cmake/prnn", cmake)
    for header in headers:
        installed += env.InstallAs(f"{prefix}/{header}", header)
    return installed


def generate(env):
    env.Tool("textfile")
    env.AddMethod(install_prefix, "InstallPrefix")


def exists(env):
    return True
