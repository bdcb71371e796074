"""The packages that parts of prnn need and prnn itself does not, and how they are installed."""

# Extras of pyproject.toml; what is not here is of "asr".
_EXTRAS = {"onnx": "export", "sounddevice": "microphone", "espeakng_loader": "digits", "av": "media"}
_DISTRIBUTIONS = {
    "espeakng_loader": "espeakng-loader",
    "kaldi_native_fbank": "kaldi-native-fbank",
    "yaml": "PyYAML",
}


def is_installed(distribution: str) -> bool:
    """Whether pip knows of it."""
    import importlib.metadata  # takes half the time that prnn --version has

    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def install_command(*modules: str) -> str:
    """The command that brings modules, all of one extra: of the extra where prnn was installed, and of them alone where
    it was built in place, since pip knows of no prnn there."""
    tops = [module.partition(".")[0] for module in modules]
    if is_installed("prnn"):
        return f"pip install 'prnn[{_EXTRAS.get(tops[0], 'asr')}]'"
    return "pip install " + " ".join(_DISTRIBUTIONS.get(top, top) for top in tops)
