"""SCons tool for the library that stands in for cuDNN's recurrent functions: CudnnStandIn(build, objects).

Returns libprnn_cudnn.so and libprnn_cudnn_front.so; src/cudnn_standin/front.c says what the latter is.
"""

FOLDER = "src/cudnn_standin"
# In the place of cuDNN's path, which prnn/commands/run.py writes over it: 1,016 characters, in parts that a file system
# takes as names, for tools such as auditwheel look for what a library needs.
PLACEHOLDER = "/prnn-cudnn-path" + 5 * ("/" + 199 * "-")


def _library(env, target, objects, soname, exports=None):
    named = env.Textfile(f"{target}.soname", f"-Wl,-soname,{soname}", TEXTFILESUFFIX="")  # a placeholder fills pages
    flags = [f"@{named[0]}"] + ([f"-Wl,--version-script={exports}"] if exports else [])
    library = env.SharedLibrary(target, objects, SHLINKFLAGS=env["SHLINKFLAGS"] + flags)
    env.Depends(library, [named, exports] if exports else named)
    return library


def cudnn_standin(env, build, objects):
    standin = _library(env, f"{build}/prnn_cudnn", objects, "libprnn_cudnn.so", exports=f"{FOLDER}/libprnn_cudnn.map")
    bare = env.Clone(LIBS=[], LINKFLAGS=["-nostdlib", "-Wl,--no-as-needed"])
    front_object = bare.SharedObject(f"{build}/{FOLDER}/front", f"{FOLDER}/front.c")
    placeholder = _library(bare, f"{build}/prnn_cudnn_placeholder", front_object, PLACEHOLDER)
    front = _library(
        bare,
        f"{build}/prnn_cudnn_front",
        [front_object, standin, placeholder],
        "libcudnn.so.9",
        exports=f"{FOLDER}/front.map",
    )
    return standin + front


def generate(env):
    env.Tool("textfile")
    env.AddMethod(cudnn_standin, "CudnnStandIn")


def exists(env):
    return True
