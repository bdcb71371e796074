"""The error for input that a user gave and can mend."""


class InputError(ValueError):
    """A file or option that cannot be used. Its message is one sentence for the user; the command line prints it and exits with 2."""
