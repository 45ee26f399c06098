"""The commands of the command line, one function each: (arguments) -> exit code."""
