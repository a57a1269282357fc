"""Hint of the input, as a JSON schema and as a check. Continues batch.py; the files are one
module.
"""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DEFS = "#/$defs/"
# Longest name of a field that a sentence quotes, and most choices that it lists.
_LONGEST_NAME, _MOST_CHOICES = 64, 12


class _Misfit(Exception):
    """Value that does not fit its hint. The steps of its path come innermost first."""

    def __init__(self, what, *path):
        Exception.__init__(self, what)
        self.path = list(path)

    def is_deep(self):
        """Returns true if the value has the hint's own form, and a part or a rule of it fails."""
        return bool(self.path) or not str(self).startswith("must be")


class _Kind:
    """Schema of a hint, its check, which returns what the model gets, and words for what fits."""

    def __init__(self, schema, read, words):
        self.schema = schema
        self.read = read
        self.words = words


def _checked(hint):
    """Returns the schema of a hint and the check of an input, or None twice if any JSON fits."""
    kinds = _Kinds()
    kind = kinds.of(hint, "input")
    kinds.remember()
    if kind.schema == {}:
        return None, None
    schema = dict({"$schema": _DIALECT}, **kind.schema)
    if kinds.definitions:
        schema["$defs"] = kinds.definitions

    def check(value):
        kinds.memory.seen = {}
        try:
            return kind.read(value)
        except _Misfit as misfit:
            why = "`input%s` %s" % ("".join(reversed(misfit.path)), misfit)
        except RecursionError:
            why = "the input is nested too deeply"
        finally:
            del kinds.memory.seen
        raise BadInput(why)

    return schema, check


def _hint(function):
    """Returns the hint of a function's first argument; Any if it has none."""
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
    except ValueError:
        # A function of C without a signature.
        return typing.Any
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if first is None or first.kind not in positional or first.annotation is first.empty:
        return typing.Any
    inner = inspect.unwrap(function)
    inner = getattr(inner, "__func__", inner)
    if not hasattr(inner, "__globals__"):
        inner = getattr(type(inner), "__call__", inner)

    def holder():
        pass

    # The hints of other arguments may name what is imported for type checkers alone.
    holder.__annotations__ = {"input": first.annotation}
    names = getattr(inner, "__globals__", {})
    try:
        return typing.get_type_hints(holder, names, include_extras=True)["input"]
    except Exception as error:
        raise TypeError("the hint of `%s` cannot be read: %s" % (first.name, error)) from None


def _hint_of_batch(function):
    """Returns the hint of one input of a function that takes a list of them."""
    hint = _hint(function)
    if hint in (typing.Any, list, collections.abc.Sequence):
        return typing.Any
    if typing.get_origin(hint) in (list, collections.abc.Sequence):
        arguments = typing.get_args(hint)
        return arguments[0] if arguments else typing.Any
    raise TypeError("the first argument of `run` is a list of inputs: write list[X]")


def _same(one, other):
    """Returns true if two JSON scalars are equal as in a JSON schema: 1 is 1.0 but not true."""
    return (type(one) is bool) == (type(other) is bool) and one == other


def _is_scalar(value):
    if isinstance(value, float):
        return value - value == 0
    return isinstance(value, (str, int, type(None))) and not isinstance(value, enum.Enum)


def _is_flat(schema):
    """Returns true for the schema of scalars, whose check takes no time."""
    return "enum" in schema or schema.get("type", "object") not in ("array", "object")


def _step(name):
    if len(name) > _LONGEST_NAME:
        name = name[: _LONGEST_NAME - 3] + "..."
    return "." + name if name.isidentifier() else "[%s]" % _encode(name)


def _shown(hint):
    return hint.__qualname__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def _float(value):
    try:
        return float(value)
    except OverflowError:
        # As the JSON number 1e400.
        return float("inf") if value > 0 else float("-inf")


def _scalar(name, words, fits, convert=None):
    def read(value):
        if not fits(value):
            raise _Misfit("must be " + words)
        return convert(value) if convert else value

    return _Kind({"type": name}, read, words)
