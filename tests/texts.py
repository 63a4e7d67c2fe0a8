"""The texts below the fields of a struct. Python itself throws them away."""

from __future__ import annotations

import ast
import inspect

import msgspec


def texts(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The text of each field that has one, and that of the struct under the name `""`.

    Any whitespace in a text is a single space here.
    """
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    found = {"": " ".join((ast.get_docstring(tree) or "").split())}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return found
