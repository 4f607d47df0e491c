"""All small mistakes that a module could have: each a mutant, the module with one change.

Among them: another comparison or operator, a constant one higher or lower, a condition negated or half of it left out,
branches swapped, a statement left out, a keyword argument, a method call or a `with` left out, two arguments swapped,
`max` for `min`. Not changed: annotations, types, docstrings, the texts of errors and of f-strings, `__all__`.
"""

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

OTHER_OPERATOR = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.MatMult: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
OTHER_NAME = {
    "any": "all", "all": "any", "min": "max", "max": "min", "amax": "amin", "amin": "amax", "sum": "prod",
    "maximum": "minimum", "minimum": "maximum", "exp": "expm1", "exp2": "exp", "log": "log2", "sin": "cos",
    "cos": "sin", "zeros": "ones", "zeros_like": "ones_like", "isneginf": "isposinf", "isfinite": "isnan",
}  # fmt: skip

# Functions that may have their first two arguments swapped, and those that may have the last two.
FIRST_EITHER_WAY = {"result_type", "promote_types", "broadcast_shapes", "minimum", "maximum", "min", "max", "swapaxes",
                    "clip"}  # fmt: skip
LAST_EITHER_WAY = {"result_type", "broadcast_shapes"}
QUIET = {"copy", "strict"}  # keywords: copy=False saves time only, and zip's strict=True never comes true


class Mutant(NamedTuple):
    """One change of one module: at `parent.field` (its item `i`, in a list), `node` becomes `new`."""

    path: str  # of the module, from the repository's root
    name: str  # function: `before` → `after`
    lines: range  # of the statement: a test that runs none of them cannot notice
    tree: ast.Module
    parent: ast.AST
    field: str
    i: int | None
    node: ast.AST
    new: ast.AST

    def code(self) -> CodeType:
        """Compile the module with the change; its tree is afterwards as it was."""
        ast.fix_missing_locations(ast.copy_location(self.new, self.node))
        self._put(self.new)
        try:
            return compile(self.tree, str(ROOT / self.path), "exec")
        finally:
            self._put(self.node)

    def words(self) -> tuple[str, str]:
        """Give the code that changes before and after; for a number or a name, what it stands in."""
        small = isinstance(self.node, ast.Constant | ast.Name | ast.Attribute) and isinstance(
            self.parent, ast.expr | ast.keyword
        )
        if not small:
            return _text(self.node), _text(self.new)
        before = _text(self.parent)
        self._put(self.new)
        after = _text(self.parent)
        self._put(self.node)
        return before, after

    def _put(self, node: ast.AST) -> None:
        if self.i is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.i] = node


def _text(node: ast.AST) -> str:
    """Give the first line of a node's code, and of the block under it."""
    return " ".join(" ".join(ast.unparse(node).split("\n")[:2]).split())


class Place(NamedTuple):
    """A node of behaviour, and where it hangs."""

    function: str
    lines: range
    parent: ast.AST
    field: str
    i: int | None
    node: ast.AST


def mutants(path: str, source: str | None = None) -> Iterator[Mutant]:
    """Give every mutant of a module, each with a name of its own."""
    source = (ROOT / path).read_text(encoding="utf8") if source is None else source
    tree = ast.parse(source)
    modules = {(name.asname or name.name) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)
               for name in node.names}  # fmt: skip
    seen: Counter[str] = Counter()
    for place in list(_places(tree, "", range(1, len(source.split("\n"))))):
        for new in _changes(place.node, modules):
            mutant = Mutant(path, "", place.lines, tree, place.parent, place.field, place.i, place.node, new)
            before, after = mutant.words()
            if before == after:
                continue
            name = f"{place.function or 'module'}: `{before}` → `{after}`"
            seen[name] += 1
            yield mutant._replace(name=name + (f" ({seen[name]})" if seen[name] > 1 else ""))


def _places(node: ast.AST, function: str, lines: range) -> Iterator[Place]:
    """Give each node of behaviour under ``node``, statement by statement."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "format_spec"):
            continue
        for i, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST) or _changes_no_result(child):
                continue
            # What runs at import, such as a constant or a function's default, concerns all lines that follow from it.
            at_import = isinstance(node, ast.Module | ast.ClassDef)
            within, where = function, lines if at_import else _own_lines(child, lines)
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                within = f"{function}.{child.name}".lstrip(".")
            yield Place(within, where, node, field, i if isinstance(value, list) else None, child)
            inner = range(child.lineno, child.end_lineno + 1) if isinstance(child, ast.FunctionDef) else where
            yield from _places(child, within, inner)


def _changes_no_result(node: ast.AST) -> bool:
    """Tell whether a node is text for people, a type, or an argument that saves a copy or guards against ourselves."""
    if isinstance(node, ast.keyword):
        return node.arg in QUIET
    if isinstance(node, ast.Assign):  # a subscript alone names a type, such as Partial = tuple[…]
        return ast.unparse(node.targets[0]) == "__all__" or ast.unparse(node).split("[")[0].endswith("= tuple")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("Error"):
        return True
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return docstring or isinstance(node, ast.JoinedStr)


def _own_lines(node: ast.AST, lines: range) -> range:
    """Give a statement's own lines, without those of the block under it; for an expression those of its statement."""
    if not isinstance(node, ast.stmt):
        return lines
    body = getattr(node, "body", None)
    return range(node.lineno, max(body[0].lineno, node.lineno + 1) if body else node.end_lineno + 1)


def _changes(node: ast.AST, modules: set[str]) -> Iterator[ast.AST]:
    """Give what a node can be changed into."""

    def but(**fields: object) -> ast.AST:
        other = copy.copy(node)
        for field, value in fields.items():
            setattr(other, field, value)
        return other

    match node:
        case ast.Compare(ops=ops):
            for i, operator in enumerate(ops):
                yield from (but(ops=[*ops[:i], new, *ops[i + 1 :]]) for new in _other(operator))
        case ast.BinOp() | ast.AugAssign():
            yield from (but(op=new) for new in _other(node.op))
            if isinstance(node, ast.AugAssign):
                yield ast.Pass()
        case ast.BoolOp(values=values):
            yield from (but(op=new) for new in _other(node.op))
            yield from (but(values=values[:i] + values[i + 1 :]) for i in range(len(values)) if len(values) > 2)
            yield from (value for value in values if len(values) == 2)
        case ast.UnaryOp():
            yield node.operand
        case ast.Constant(value=bool()):
            yield but(value=not node.value)
        case ast.Constant(value=int() | float()):
            yield from (but(value=node.value + step) for step in (1, -1))
        case ast.Constant(value=str()):
            yield but(value="" if node.value else "x")
        case ast.Name(id=name) if name in OTHER_NAME:
            yield but(id=OTHER_NAME[name])
        case ast.Attribute(attr=name) if name in OTHER_NAME:
            yield but(attr=OTHER_NAME[name])
        case ast.Call():
            yield from _other_calls(node, but, modules)
        case ast.IfExp():
            yield but(body=node.orelse, orelse=node.body)
        case ast.comprehension(ifs=[_, *_]):
            yield but(ifs=[])
        case ast.If() | ast.While():
            yield but(test=ast.UnaryOp(ast.Not(), node.test))
        case ast.With():
            yield ast.If(ast.Constant(True), node.body, [])
        case ast.Return(value=ast.AST()) if ast.unparse(node) != "return False":
            yield but(value=ast.Constant(None))
        case ast.Raise() | ast.Assign() | ast.Expr() | ast.Continue() | ast.Break() | ast.For():
            yield ast.Pass()


def _other(operator: ast.AST) -> Iterator[ast.AST]:
    if type(operator) in OTHER_OPERATOR:
        yield OTHER_OPERATOR[type(operator)]()


def _other_calls(node: ast.Call, but: object, modules: set[str]) -> Iterator[ast.AST]:
    """Leave out a keyword, swap the first or the last two arguments, leave out a method's call."""
    for i, keyword in enumerate(node.keywords):
        if keyword.arg is not None and keyword.arg not in QUIET:
            yield but(keywords=node.keywords[:i] + node.keywords[i + 1 :])
    args, name = node.args, ast.unparse(node.func).split(".")[-1]
    if len(args) >= 2 and name not in FIRST_EITHER_WAY:
        yield but(args=[args[1], args[0], *args[2:]])
    if len(args) >= 3 and name not in LAST_EITHER_WAY:
        yield but(args=[*args[:-2], args[-1], args[-2]])
    if isinstance(node.func, ast.Attribute):
        of = node.func.value
        if not (isinstance(of, ast.Name) and of.id in modules) and ast.unparse(of) != "super()":
            yield of
