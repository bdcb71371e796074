"""One module a command, each with ``add_parser(subparsers)`` and ``run(arguments)``. What a command needs is imported when it runs."""
