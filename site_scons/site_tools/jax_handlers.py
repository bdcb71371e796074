"""SCons tool for the handlers that jax calls: JaxHandlers(build, sources, library, headers, objects).

Returns libprnn_jax.so, which finds the library beside itself. XLA keeps the binary interface of its FFI for later
versions, so that a library built with the headers of one jaxlib serves that and newer ones (docs/jax.md).
"""


def jax_handlers(env, build, sources, library, headers, objects):
    env = env.Clone()
    env.Append(RPATH=[env.Literal("\\$$ORIGIN")])
    # Handlers only pass arguments on: -O1 halves the time that they take to compile.
    flags = ["-O1" if flag == "-O3" else flag for flag in env["CXXFLAGS"]] + [f"-isystem{headers}"]
    objects = list(objects)
    for source in sources:
        objects += env.SharedObject(f"{build}/{source.with_suffix('')}", str(source), CXXFLAGS=flags)
    return env.SharedLibrary(f"{build}/prnn_jax", objects, LIBS=[library[0], *env.get("LIBS", [])])


def generate(env):
    env.AddMethod(jax_handlers, "JaxHandlers")


def exists(env):
    return True
