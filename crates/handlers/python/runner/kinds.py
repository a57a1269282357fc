"""Kinds of hints. Continues hints.py; the files are one module."""


_ANY = _Kind({}, lambda value: value, "any JSON")
_NULL = _scalar("null", "null", lambda value: value is None)
_SCALARS = {
    type(None): _NULL,
    bool: _scalar("boolean", "true or false", lambda value: type(value) is bool),
    str: _scalar("string", "a string", lambda value: type(value) is str),
    int: _scalar(
        "integer",
        "an integer",
        lambda value: type(value) is int or (type(value) is float and value.is_integer()),
        int,
    ),
    float: _scalar("number", "a number", lambda value: type(value) in (int, float), _float),
}
_ARRAYS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_OBJECTS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_UNIONS = (typing.Union, getattr(types, "UnionType", typing.Union))


class _Kinds:
    """Kinds of the hints of one input. Classes become definitions of the schema."""

    def __init__(self):
        self.definitions = {}
        self.named = {}
        self.forks = False
        # Results of the check that the thread makes.
        self.memory = threading.local()

    def remember(self):
        """Makes each class read a value once per check, if there is a union that needs it.

        Without it, a union of recursive classes takes time exponential in the depth of the input.
        """
        if self.forks:
            for kind in self.named.values():
                kind.read = self.once(kind.read)

    def once(self, read):
        def read_once(value):
            key = (read, id(value))
            result, what, path = self.memory.seen.get(key, (None, None, None))
            if path is None:
                try:
                    result, path = read(value), ()
                except _Misfit as misfit:
                    # A copy, because the path grows on its way out.
                    what, path = str(misfit), tuple(misfit.path)
                self.memory.seen[key] = result, what, path
            if what is not None:
                raise _Misfit(what, *path)
            return result

        return read_once

    def of(self, hint, place):
        notes = getattr(hint, "__metadata__", None) if typing.get_origin(hint) else None
        if notes is not None:
            return self.annotated(hint, notes, place)
        if hasattr(hint, "__supertype__"):
            return self.of(hint.__supertype__, place)
        if hint in (typing.Any, object):
            return _ANY
        if hint is None or hint in _SCALARS:
            return _SCALARS[type(None) if hint is None else hint]
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is typing.Literal:
            return self.choices([(value, value) for value in arguments], hint, place)
        if origin in _UNIONS:
            return self.union([self.of(part, place) for part in arguments])
        if (origin or hint) in _ARRAYS:
            item = arguments[0] if arguments else typing.Any
            return self.array(self.of(item, place + "[]"), list)
        if (origin or hint) is tuple:
            return self.tuple(arguments, hint, place)
        if (origin or hint) in _OBJECTS:
            if arguments and arguments[0] not in (str, typing.Any):
                self.refuse(hint, place, "the keys of a JSON object are strings")
            return self.object(self.of(arguments[1] if arguments else typing.Any, place + "[]"))
        if origin is None and type(hint).__name__ == "TypeAliasType":
            return self.definition(hint, place, self.alias)
        if origin is None and isinstance(hint, type):
            return self.class_(hint, place)
        return self.refuse(hint, place)

    def class_(self, hint, place):
        if issubclass(hint, enum.Enum):
            return self.choices([(item.value, item) for item in hint], hint, place)
        if hasattr(hint, "model_validate_json") and hasattr(hint, "model_json_schema"):
            return self.definition(hint, place, self.pydantic)
        if hasattr(hint, "__total__") and hasattr(hint, "__required_keys__"):
            return self.definition(hint, place, self.typed_dict)
        if dataclasses.is_dataclass(hint):
            return self.definition(hint, place, self.dataclass)
        return self.refuse(hint, place)

    def refuse(self, hint, place, why="take a dataclass, a TypedDict or a pydantic model"):
        raise TypeError("the hint %s of `%s` is not supported: %s" % (_shown(hint), place, why))

    def annotated(self, hint, notes, place):
        kind = self.of(hint.__origin__, place)
        schema = dict(kind.schema)
        for note in notes:
            text = getattr(note, "documentation", note)
            if not isinstance(text, str):
                self.refuse(type(note), place, "a pydantic model may have such constraints")
            schema["description"] = text
        # The class of a recursive hint has no check yet.
        return _Kind(schema, lambda value: kind.read(value), kind.words)

    def choices(self, choices, hint, place):
        values = [value for value, _ in choices]
        if not all(_is_scalar(value) for value in values):
            self.refuse(hint, place, "its values are no JSON scalars")
        if len(values) > _MOST_CHOICES:
            words = "one of %d values" % len(values)
        else:
            words = "one of " + ", ".join(map(_encode, values))

        def read(value):
            for choice, result in choices:
                if _same(choice, value):
                    return result
            raise _Misfit("must be " + words)

        return _Kind({"enum": values}, read, words)

    def union(self, kinds):
        words = " or ".join(kind.words for kind in kinds)
        forms = [kind.schema.get("type") for kind in kinds if not _is_flat(kind.schema)]
        # A list is told from an object at once.
        alike = None in forms or len(set(forms)) < len(forms)
        self.forks = self.forks or (alike and len(forms) > 1)

        def read(value):
            deeper = []
            for kind in kinds:
                try:
                    return kind.read(value)
                except _Misfit as misfit:
                    if misfit.is_deep():
                        deeper.append(misfit)
            # The alternative whose form the value has tells more than the list of all of them.
            raise deeper[0] if len(deeper) == 1 else _Misfit("must be " + words)

        return _Kind({"anyOf": [kind.schema for kind in kinds]}, read, words)

    def array(self, item, make):
        def read(value):
            if type(value) is not list:
                raise _Misfit("must be an array")
            read, items = item.read, []
            try:
                for part in value:
                    items.append(read(part))
            except _Misfit as misfit:
                misfit.path.append("[%d]" % len(items))
                raise
            return items if make is list else make(items)

        schema = {"type": "array"}
        if item.schema:
            schema["items"] = item.schema
        return _Kind(schema, read, "an array")

    def tuple(self, arguments, hint, place):
        if hint in (tuple, typing.Tuple) or arguments[1:] == (Ellipsis,):
            item = arguments[0] if arguments else typing.Any
            return self.array(self.of(item, place + "[]"), tuple)
        if not arguments or arguments == ((),):
            self.refuse(hint, place)
        kinds = [self.of(part, "%s[%d]" % (place, at)) for at, part in enumerate(arguments)]
        words = "an array of %d elements" % len(kinds)

        def read(value):
            if type(value) is not list or len(value) != len(kinds):
                raise _Misfit("must be " + words)
            items = []
            try:
                for kind, part in zip(kinds, value):
                    items.append(kind.read(part))
            except _Misfit as misfit:
                misfit.path.append("[%d]" % len(items))
                raise
            return tuple(items)

        schema = {"type": "array", "prefixItems": [kind.schema for kind in kinds]}
        schema.update(items=False, minItems=len(kinds))
        return _Kind(schema, read, words)

    def object(self, item):
        def read(value):
            if type(value) is not dict:
                raise _Misfit("must be an object")
            items = {}
            try:
                for key, part in value.items():
                    items[key] = item.read(part)
            except _Misfit as misfit:
                misfit.path.append(_step(key))
                raise
            return items

        schema = {"type": "object"}
        if item.schema:
            schema["additionalProperties"] = item.schema
        return _Kind(schema, read, "an object")

    def definition(self, hint, place, make):
        """Returns the kind of a class, which `make` completes. Classes may contain themselves."""
        if hint not in self.named:
            name = base = "".join(c if c.isascii() and c.isalnum() else "_" for c in hint.__name__)
            while name in self.definitions:
                name += "_" + base
            words = ("an " if name[0] in "AEIOU" else "a ") + hint.__name__
            kind = self.named[hint] = _Kind({"$ref": _DEFS + name}, None, words)
            self.definitions[name] = {}
            self.definitions[name], kind.read = make(hint, place, name)
        return self.named[hint]

    def alias(self, hint, place, _name):
        kind = self.of(hint.__value__, place)
        return kind.schema, lambda value: kind.read(value)

    def pydantic(self, hint, _place, name):
        schema = hint.model_json_schema(ref_template="%s%s.{model}" % (_DEFS, name))
        for inner, definition in schema.pop("$defs", {}).items():
            self.definitions["%s.%s" % (name, inner)] = definition

        def read(value):
            # Without `strict`, more would fit than the schema says, such as "1" for an integer.
            try:
                return hint.model_validate_json(json.dumps(value), strict=True)
            except ValueError as error:
                errors = getattr(error, "errors", list)()
            first = errors[0] if errors else {"loc": (), "msg": "it cannot be read"}
            path = [
                "[%d]" % part if type(part) is int else _step(str(part))
                for part in reversed(first["loc"])
            ]
            raise _Misfit("does not fit: %s" % first["msg"], *path)

        return schema, read

    def typed_dict(self, hint, place, _name):
        hints = typing.get_type_hints(hint, include_extras=True)
        required, kinds = set(hint.__required_keys__), {}
        for name, part in hints.items():
            wrapper = getattr(typing.get_origin(part), "_name", None)
            while wrapper in ("Required", "NotRequired", "ReadOnly"):
                # Python does not see the wrappers of hints that are strings.
                if wrapper != "ReadOnly":
                    (required.add if wrapper == "Required" else required.discard)(name)
                part = typing.get_args(part)[0]
                wrapper = getattr(typing.get_origin(part), "_name", None)
            kinds[name] = self.of(part, "%s.%s" % (place, name))
        return self.fields(hint, kinds, [name for name in kinds if name in required], dict, {})

    def dataclass(self, hint, place, _name):
        hints = typing.get_type_hints(hint, include_extras=True)
        if not hint.__dataclass_params__.init:
            self.refuse(hint, place, "it has no `__init__` of its fields")
        kinds, required, defaults = {}, [], {}
        for name, part in hints.items():
            if isinstance(part, dataclasses.InitVar):
                self.refuse(part, "%s.%s" % (place, name), "it is no field")
        for field in dataclasses.fields(hint):
            if not field.init:
                continue
            kinds[field.name] = self.of(hints[field.name], "%s.%s" % (place, field.name))
            default = field.default.value if isinstance(field.default, enum.Enum) else field.default
            if _is_scalar(default):
                defaults[field.name] = default
            if field.default is field.default_factory is dataclasses.MISSING:
                required.append(field.name)

        def make(values):
            try:
                return hint(**values)
            except (ValueError, AssertionError) as error:
                raise _Misfit("is refused: %s" % error) from None

        return self.fields(hint, kinds, required, make, defaults)

    def fields(self, hint, kinds, required, make, defaults):
        """Returns the schema and the check of an object with these fields and no others."""
        # They tell the alternatives of a union apart.
        first = {name for name, kind in kinds.items() if "enum" in kind.schema}

        def read(value):
            if type(value) is not dict:
                raise _Misfit("must be an object")
            values = dict(value)
            for key in sorted(value, key=lambda key: key not in first) if first else value:
                if key not in kinds:
                    raise _Misfit("is not a field of %s" % hint.__name__, _step(key))
                try:
                    values[key] = kinds[key].read(value[key])
                except _Misfit as misfit:
                    misfit.path.append(_step(key))
                    raise
            for name in required:
                if name not in values:
                    raise _Misfit("is missing", _step(name))
            return make(values)

        properties = {name: kind.schema for name, kind in kinds.items()}
        for name, default in defaults.items():
            properties[name] = dict(properties[name], default=default)
        schema = {"title": hint.__name__, "type": "object", "properties": properties}
        if required:
            schema["required"] = list(required)
        return dict(schema, additionalProperties=False), read
