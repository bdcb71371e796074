"""The packages that parts of prnn need and prnn itself does not, and how they are installed."""

# A distribution -> the extra of pyproject.toml that has it.
_EXTRAS = {
    "av": "media",
    "espeakng-loader": "digits",
    "jax": "jax",
    "jiwer": "asr",
    "jsonargparse": "asr",
    "kaldi-native-fbank": "asr",
    "lhotse": "asr",
    "lightning": "asr",
    "matplotlib": "asr",
    "onnx": "export",
    "PyYAML": "asr",
    "sentencepiece": "asr",
    "sounddevice": "microphone",
    "soundfile": "asr",
    "soxr": "asr",
    "tensorboard": "asr",
    "urllib3": "asr",
}
_DISTRIBUTIONS = {"yaml": "PyYAML"}  # whose names are not their module's


def is_installed(distribution: str) -> bool:
    """Whether pip knows of it."""
    import importlib.metadata  # takes half the time that prnn --version has

    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def install_command(*modules: str) -> str:
    """The command that brings modules, all of one extra or of none: of the extra where prnn was installed, and of them
    alone where it was built in place, since pip knows of no prnn there."""
    tops = [module.partition(".")[0] for module in modules]
    names = [_DISTRIBUTIONS.get(top, top.replace("_", "-")) for top in tops]
    extra = _EXTRAS.get(names[0])
    if extra is not None and is_installed("prnn"):
        return f"pip install 'prnn[{extra}]'"
    return f"pip install {' '.join(names)}"
