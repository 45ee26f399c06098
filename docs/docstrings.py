"""A griffe extension: the examples at the end of our docstrings, which have no heading, become a section of their own."""

import re

import griffe

EXAMPLE = re.compile(r"^>>> ", re.M)


class Examples(griffe.Extension):
    """Puts the heading `Examples:` before the first prompt of a docstring, and indents what follows it."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        docstring = obj.docstring
        if docstring is None or (found := EXAMPLE.search(docstring.value)) is None:
            return
        before, after = docstring.value[: found.start()], docstring.value[found.start() :]
        indented = "\n".join(f"    {line}" if line else "" for line in after.splitlines())
        docstring.value = f"{before}Examples:\n{indented}"
