"""The error and the warning for input that a user gave and can mend."""


class InputError(ValueError):
    """A file or option that cannot be used. Its message is one sentence for the user, which the command line prints
    before it exits with 2."""


class InputWarning(UserWarning):
    """A file that is used, and of which something may be lost. Its message is one sentence for the user, which the
    command line prints."""
