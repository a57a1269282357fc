"""Module `djl_python`, with which models for DJLServing are written. Continues kinds.py; the files
are one module.
"""

_DJL = "djl_python"
_JSON_TYPE = "application/json"
# What DJLServing's classes have and these do not, because inputs and pieces are JSON.
_NO_INPUT = ("get_as_image", "get_as_numpy", "get_as_npz", "get_as_csv", "read")
_NO_OUTPUT = ("add_as_numpy", "add_as_npz", "send", "encode", "binary_encode", "write_utf8")


class _Unsupported(_Told, AttributeError):
    """Use of a part of `djl_python` that does not exist here."""


class PairList:
    """Keys and values in their order. A key may be None, and may occur more than once."""

    def __init__(self, keys=None, values=None, pair_list=None, pair_map=None):
        self.keys = list(keys or [])
        self.values = list(values or [])
        if len(self.keys) != len(self.values):
            raise ValueError("there must be as many keys as values")
        for pair in pair_list or (pair_map or {}).items():
            self.add(pair=pair)

    def add(self, key=None, value=None, index=None, pair=None):
        if pair is not None:
            key, value = pair
        at = self.size() if index is None else index
        self.keys.insert(at, key)
        self.values.insert(at, value)

    def add_all(self, other):
        self.keys.extend(other.keys)
        self.values.extend(other.values)

    def size(self):
        return len(self.keys)

    def is_empty(self):
        return not self.keys

    def get(self, key):
        return self.values[self.keys.index(key)] if key in self.keys else None

    def key_at(self, index):
        return self.keys[index]

    def value_at(self, index):
        return self.values[index]

    def get_keys(self):
        return self.keys

    def get_values(self):
        return self.values


class Input:
    """Request as DJLServing hands it to `handle`. Its content has the key "data"."""

    def __init__(self):
        self.function_name = None
        self.properties = {}
        self.content = PairList()

    def __getattr__(self, name):
        raise _absent("Input", name, _NO_INPUT)

    def is_empty(self):
        """Returns true for the call that warms the model up."""
        return self.content.is_empty()

    def is_batch(self):
        return False

    def get_batch_size(self):
        return 1

    def get_batches(self):
        return [self]

    def get_function_name(self):
        return self.function_name

    def get_properties(self):
        return self.properties

    def get_property(self, key, default=None):
        """Returns a property; the case of its key does not matter."""
        found = (value for name, value in self.properties.items() if name.lower() == key.lower())
        return next(found, default)

    def get_content(self):
        return self.content

    def contains_key(self, key):
        return key in self.content.keys

    def get_data(self, key=None):
        return None if self.is_empty() else self.get_as_json(key)

    def get_as_json(self, key=None):
        return _parse(self._raw(key))

    def get_as_string(self, key=None):
        """Returns the text of the input: that of a JSON string, or the JSON itself."""
        raw = self._raw(key)
        return _parse(raw) if raw.lstrip()[:1] == b'"' else raw.decode("utf-8")

    def get_as_bytes(self, key=None):
        """Returns the text of the input in UTF-8; None if the input is empty."""
        if self.is_empty():
            return None
        return self.get_as_string(key).encode("utf-8", "surrogatepass")

    def _raw(self, key):
        if self.is_empty():
            raise ValueError("the input is empty: return None if inputs.is_empty()")
        if not key:
            key = "data" if self.contains_key("data") else self.content.key_at(0)
        if not self.contains_key(key):
            raise KeyError(key)
        return self.content.get(key)


class _Json(bytes):
    """Content that is JSON, whatever the content type says."""


class Output:
    """Reply as DJLServing takes it from `handle`."""

    def __init__(self, code=200, message="OK"):
        self.code = code
        self.message = message
        self.properties = {}
        self.content = PairList()
        self.stream_content = None
        self.stream_output_formatter = None
        self._error = None
        self._last = None

    def __getattr__(self, name):
        raise _absent("Output", name, _NO_OUTPUT)

    def set_code(self, code):
        self.code = code
        return self

    def set_message(self, message):
        self.message = message
        return self

    def error(self, error, code=424, message="invoke handler failure"):
        """Makes this the reply of a request that failed."""
        self.code, self.message, self._error = code, message, str(error)
        return self

    def add_property(self, key, val):
        self.properties[key] = val
        return self

    def get_properties(self):
        return self.properties

    def get_property(self, key):
        return self.properties.get(key)

    def add(self, value, key=None, batch_index=None):
        """Adds a piece: text, or anything that JSON can express."""
        if batch_index:
            raise _Unsupported("Output.add has no batch_index above 0: a call has one request")
        if isinstance(value, str):
            value = value.encode("utf-8")
        elif isinstance(value, (bytes, bytearray)):
            value = value if isinstance(value, _Json) else bytes(value)
        else:
            value = _Json(_djl_json(value))
        self.content.add(key=key, value=value)
        return self

    def add_as_json(self, val, key=None, batch_index=None):
        return self.add(_Json(_djl_json(val)), key, batch_index)

    def add_as_string(self, value, key=None, batch_index=None):
        return self.add(str(value), key, batch_index)

    def add_stream_content(self, stream_content, output_formatter=None):
        """Makes the elements of an iterator the pieces. A formatter is called for each of them."""
        if output_formatter is not None and not callable(output_formatter):
            raise _Unsupported("Output.add_stream_content takes a function as formatter, no name")
        self.stream_content = stream_content
        self.stream_output_formatter = output_formatter
        return self

    def finalize(self, finalize_function, *args):
        """Sets a function that is called after the reply."""
        self._last = (finalize_function, args)
        return self

    def execute_finalize(self):
        if self._last is not None:
            function, arguments = self._last
            return function(*arguments)


def input_formatter(function):
    """Marks the function that `handle` finds as the property `input_formatter`."""
    function.is_input_formatter = True
    return function


def output_formatter(function):
    """Marks the function that `handle` finds as the property `output_formatter`."""
    function.is_output_formatter = True
    return function


def decode(inputs, content_type, key=None, require_csv_headers=True):
    """Returns the input, which is always JSON."""
    if content_type and not _is_json(content_type):
        raise _Unsupported("djl_python.encode_decode.decode reads application/json alone")
    return inputs.get_as_json(key)


def encode(outputs, prediction, content_type, key=None):
    """Adds a piece, which is always JSON."""
    if content_type and not _is_json(content_type):
        raise _Unsupported("djl_python.encode_decode.encode writes application/json alone")
    outputs.add_as_json(prediction, key)


def _is_json(content_type):
    """Returns true for JSON, but not for JSON lines."""
    return content_type.split(";")[0].strip().lower() == _JSON_TYPE


# The modules, and what each has.
_DJL_MODULES = {
    _DJL: (Input, Output, PairList, input_formatter, output_formatter),
    _DJL + ".inputs": (Input,),
    _DJL + ".outputs": (Output,),
    _DJL + ".pair_list": (PairList,),
    _DJL + ".input_parser": (input_formatter,),
    _DJL + ".output_formatter": (output_formatter,),
    _DJL + ".encode_decode": (decode, encode),
}


class _DjlFinder:
    """Importer of `djl_python`."""

    def find_spec(self, name, path=None, target=None):
        if name in _DJL_MODULES:
            # A `from` import asks a package's importer for the names that it lacks.
            return importlib.util.spec_from_loader(name, self, is_package=True)
        if name.startswith(_DJL + "."):
            # Without the argument `name`, with which `from` replaces the sentence by its own.
            raise ModuleNotFoundError(_djl_lacks(name))
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        for item in _DJL_MODULES[module.__name__]:
            setattr(module, item.__name__, item)

        def missing(name):
            whole = "%s.%s" % (module.__name__, name)
            if name.startswith("__"):
                raise AttributeError(name)
            if whole in _DJL_MODULES:
                return importlib.import_module(whole)
            raise _Unsupported(_djl_lacks(whole))

        module.__getattr__ = missing


def _djl_lacks(name):
    there = ", ".join(item.__name__ for item in _DJL_MODULES[_DJL])
    return "%s is not a part of nsbridge: its djl_python has %s and encode_decode" % (name, there)


def _absent(owner, name, known):
    if name in known:
        return _Unsupported("%s.%s.%s is not a part of nsbridge: use JSON" % (_DJL, owner, name))
    return AttributeError("%s has no attribute %r" % (owner, name))


def _djl_json(value):
    """Encodes a value of a piece; arrays and scalars of numpy become lists and numbers."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_djl_plain)
    return text.encode("utf-8")


def _djl_plain(value):
    if hasattr(value, "tolist"):
        return value.tolist()
    if type(value).__module__ == "datetime":
        return str(value)
    raise TypeError("%s is not JSON" % type(value).__name__)
