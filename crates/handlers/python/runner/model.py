"""Load of model.py. Continues serving.py; the files are one module."""

# Names of the function or method that answers requests.
_ENTRIES = ("handle", "run")


def _accepts(function, count):
    """Returns true if the function can be called with this many positional arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True


def _import(path):
    """Imports the model's file."""
    folder, file = os.path.split(path)
    if sys.path[:1] == [""]:
        del sys.path[0]
    sys.path.insert(0, folder)
    name = os.path.splitext(file)[0]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise _Told("%s is no file of Python code: its name must end with .py" % file)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _target(module, name, file):
    """Returns the module, or an object of its class, that has `handle` or `run`."""
    if name:
        target = getattr(module, name)
        return target() if isinstance(target, type) else target
    if any(callable(getattr(module, entry, None)) for entry in _ENTRIES):
        return module
    own = [item for item in vars(module).values() if isinstance(item, type)]
    own = [item for item in own if item.__module__ == module.__name__]
    own = [item for item in own if any(hasattr(item, entry) for entry in _ENTRIES)]
    if len(own) != 1:
        if not own and _DJL in sys.modules:
            raise _Told("%s has no `handle`: DJLServing's own handlers are not here" % file)
        raise TypeError(
            "%d classes have a method `handle` or `run`, not one: name it as %s:Class"
            % (len(own), file)
        )
    return own[0]()


class _Model:
    """Model that is loaded: `handle`, how it reads an input, and the schema of its inputs."""

    def __init__(self, config):
        file = os.path.basename(config["file"])
        module = _import(config["file"])
        self.read = _parse
        self.schema = None
        self.version = _version(module, "__version__", "")
        self.warm_up_async = _nothing
        self.slots = config["slots"]
        # Returns the state that the worker is told once a second.
        self.status = None
        # Loop of asynchronous calls, to which what an asynchronous `load` makes belongs.
        self.loop = asyncio.new_event_loop()
        if _is_djl(module) and not config["class"]:
            self.serve_djl(module, config)
        else:
            self.serve(_target(module, config["class"], file), config)

    def serve_djl(self, module, config):
        if config["batch"]:
            raise ValueError("[handler] batch_size is for a model with `run`")
        model = _DjlModel(module, config)
        self.handle, self.read = model.handle, model.read
        self.version = _version(module, "version", self.version)
        if not config["load"]:
            return
        if model.is_async:
            self.warm_up_async = model.warm_up_async
        else:
            model.warm_up()

    def serve(self, target, config):
        batched = config["batch"]
        # Before the load, which may take minutes, unless that is what makes the function.
        hinted = self.read_hint(target, batched)
        if not config["load"]:
            self.handle = _nothing
            return
        if hasattr(target, "load"):
            models = {key: pathlib.Path(path) for key, path in config["models"].items()}
            arguments = [models, config["options"]]
            if config["engine"]:
                arguments.append(config["adapters"])
            while len(arguments) > 1 and not _accepts(target.load, len(arguments)):
                arguments.pop()
            self.wait(target.load(*arguments))
        if not hinted:
            self.read_hint(target, batched)
        if config["engine"]:
            self.status = _status(target)
            if config["slots_of_engine"]:
                self.slots = target.slots
        if _is_batch(target, batched):
            if not batched:
                batched = config["default_batch"]
                self.slots = 2 * batched["size"]
            handle = _Batcher(target.run, batched["size"], batched["delay_ms"] / 1000).handle
        elif batched:
            raise ValueError("[handler] batch_size is for a model with `run`")
        else:
            handle = target.handle
        self.handle = handle if _accepts(handle, 2) else _without_job(handle)
        if hasattr(target, "warm_up"):
            self.wait(target.warm_up())
        self.version = _version(target, "version", self.version)

    def wait(self, result):
        """Waits for what an asynchronous method returns."""
        if inspect.isawaitable(result):
            self.loop.run_until_complete(result)

    def read_hint(self, target, batched):
        """Makes the schema and the check of the input. Returns false if there is no function yet."""
        runs = _is_batch(target, batched)
        function = getattr(target, "run" if runs else "handle", None)
        if not callable(function):
            return False
        self.schema, check = _checked(_hint_of_batch(function) if runs else _hint(function))
        if check is not None:
            self.read = lambda body: check(_parse(body))
        return True


def _status(engine):
    """Returns a function that reads the state of an engine."""
    return lambda: {"broken": engine.health(), "measures": engine.measures()}


def _version(owner, name, default):
    """Returns an attribute if it is a version, and no function or module of that name."""
    value = getattr(owner, name, None)
    return str(value) if isinstance(value, (str, int, float)) else default


def _is_batch(target, batched):
    return not hasattr(target, "handle") or bool(batched and hasattr(target, "run"))


async def _nothing(*_):
    pass


def _without_job(bare):
    if inspect.isasyncgenfunction(bare) or inspect.iscoroutinefunction(bare):
        raise TypeError("an asynchronous `handle` takes the input and the job")
    return lambda value, _job: bare(value)
