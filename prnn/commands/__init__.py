"""One module a command, each with ``add_parser(subparsers)`` and ``run(arguments)``, which imports what it needs."""
