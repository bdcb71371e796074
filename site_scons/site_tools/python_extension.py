"""SCons tool for the Python extension: PythonExtension(target, sources, library, built_for).

It is compiled for the Python that runs SCons, and finds the library in lib/ beside itself. Its sources are compiled as
one file: pybind11's headers take longer than all that is bound. `built_for` is what prnn._C.BUILT_FOR says.
"""

import sysconfig


def python_extension(env, target, sources, library, built_for):
    import pybind11

    includes = [sysconfig.get_path("include"), sysconfig.get_path("platinclude"), pybind11.get_include()]
    env = env.Clone()
    env.Append(
        CPPPATH=["#python"],
        CXXFLAGS=[f"-isystem{path}" for path in dict.fromkeys(includes)],
        RPATH=[env.Literal("\\$$ORIGIN/lib")],
    )
    # Bindings only convert arguments: -O1 halves the time that they take to compile.
    env["CXXFLAGS"] = ["-O1" if flag == "-O3" else flag for flag in env["CXXFLAGS"]]
    # Python's own symbols come from the interpreter that loads the extension.
    env["LINKFLAGS"] = [flag for flag in env["LINKFLAGS"] if flag != "-Wl,--no-undefined"]
    build = str(target).rpartition("/")[0]
    lines = [f'#define PRNN_BUILT_FOR "{built_for}"', *(f'#include "{source.name}"' for source in sources)]
    whole = env.Textfile(f"{build}/python/extension.cc", lines)
    return env.SharedLibrary(
        target,
        env.SharedObject(f"{build}/python/extension", whole),
        LIBS=[library[0]],
        SHLIBPREFIX="",
        SHLIBSUFFIX=sysconfig.get_config_var("EXT_SUFFIX"),
    )


def generate(env):
    env.Tool("textfile")
    env.AddMethod(python_extension, "PythonExtension")


def exists(env):
    return True
