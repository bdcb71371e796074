"""SCons tool for the Python extension: PythonExtension(target, sources, library, built_for, pythons, objects).

It is compiled for each of the Pythons, which are named by their executables, and finds the library in lib/ beside
itself. Its sources are compiled as one file: pybind11's headers take longer than all that is bound. `built_for` is what
prnn._C.BUILT_FOR says. `objects` are linked in, too.
"""

from python_builds import python_build


def python_extension(env, target, sources, library, built_for, pythons, objects):
    import pybind11

    build = str(target).rpartition("/")[0]
    lines = [f'#define PRNN_BUILT_FOR "{built_for}"', *(f'#include "{source.name}"' for source in sources)]
    whole = env.Textfile(f"{build}/python/extension.cc", lines)
    env = env.Clone()
    env.Append(CPPPATH=["#python"], RPATH=[env.Literal("\\$$ORIGIN/lib")])
    # Bindings only convert arguments: -O1 halves the time that they take to compile.
    env["CXXFLAGS"] = ["-O1" if flag == "-O3" else flag for flag in env["CXXFLAGS"]]
    # Python's own symbols come from the interpreter that loads the extension.
    env["LINKFLAGS"] = [flag for flag in env["LINKFLAGS"] if flag != "-Wl,--no-undefined"]
    extensions = []
    for python in map(python_build, pythons):
        includes = dict.fromkeys([*python.includes, pybind11.get_include()])
        flags = env["CXXFLAGS"] + [f"-isystem{path}" for path in includes]
        name = f"{build}/python/{python.suffix.split('.')[1]}"
        compiled = env.SharedObject(name, whole, CXXFLAGS=flags) + objects
        extensions += env.SharedLibrary(
            target, compiled, LIBS=[library[0], *env.get("LIBS", [])], SHLIBPREFIX="", SHLIBSUFFIX=python.suffix
        )
    return extensions


def generate(env):
    env.Tool("textfile")
    env.AddMethod(python_extension, "PythonExtension")


def exists(env):
    return True
