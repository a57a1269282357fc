"""Start of the process, and the control socket. Continues batch.py; the files are one module."""


def _watch(control, slots):
    """Reads stops from the control socket until the worker is gone."""
    pending = {}
    poll = select.poll()
    poll.register(control.sock, select.POLLIN)
    while True:
        if control.buffer or poll.poll(20 if pending else None):
            frame = control.read()
            if frame is None:
                os._exit(0)
            stop = json.loads(frame)
            slots[stop["slot"]].notice(stop["call"])
            pending[stop["slot"]] = [stop["call"], time.monotonic() + _PATIENCE]
        for index, (call, due) in list(pending.items()):
            if slots[index].done >= call:
                del pending[index]
            elif time.monotonic() >= due:
                slots[index].interrupt(call)
                pending[index][1] = time.monotonic() + _PATIENCE


def _accepts(function, count):
    """Returns true if the function can be called with this many positional arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True


# Names of the function or method that answers requests.
_ENTRIES = ("handle", "run")


def _model(config):
    """Imports the model's file and returns its `handle`, its version and a warm-up function."""
    folder, file = os.path.split(config["file"])
    if sys.path[:1] == [""]:
        del sys.path[0]
    sys.path.insert(0, folder)
    name = os.path.splitext(file)[0]
    spec = importlib.util.spec_from_file_location(name, config["file"])
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    target = module
    if config["class"]:
        target = getattr(module, config["class"])
    elif not any(callable(getattr(module, name, None)) for name in _ENTRIES):
        own = [item for item in vars(module).values() if isinstance(item, type)]
        own = [item for item in own if item.__module__ == name]
        own = [item for item in own if any(hasattr(item, name) for name in _ENTRIES)]
        if len(own) != 1:
            raise TypeError(
                "%d classes have a method `handle` or `run`, not one: name it as %s:Class"
                % (len(own), file)
            )
        target = own[0]
    if isinstance(target, type):
        target = target()
    models = {key: pathlib.Path(path) for key, path in config["models"].items()}
    if hasattr(target, "load"):
        arguments = (models, config["options"])
        target.load(*arguments[: 2 if _accepts(target.load, 2) else 1])
    batched = config["batch"]
    if not hasattr(target, "handle") or (batched and hasattr(target, "run")):
        if not batched:
            raise ValueError("a model with `run` needs [handler] batch_size")
        handle = _Batcher(target.run, batched["size"], batched["delay_ms"] / 1000).handle
    elif batched:
        raise ValueError("[handler] batch_size is for a model with `run`")
    else:
        handle = target.handle
    if not _accepts(handle, 2):
        bare = handle
        if inspect.isasyncgenfunction(bare) or inspect.iscoroutinefunction(bare):
            raise TypeError("an asynchronous `handle` takes the input and the job")
        handle = lambda value, _job: bare(value)  # noqa: E731
    if hasattr(target, "warm_up"):
        target.warm_up()
    return handle, str(getattr(target, "version", getattr(module, "__version__", "")))


def _packages():
    """Returns a digest of the installed packages and their versions."""
    from importlib import metadata

    found = {"%s==%s" % (item.metadata["Name"], item.version) for item in metadata.distributions()}
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()


def _sink(path):
    """Sends standard output and standard error to a file, or to nowhere."""
    sys.stdout.flush()
    sys.stderr.flush()
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    sink = os.open(path, flags, 0o600) if path else os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.close(sink)


def _connect(config, index):
    sock = socket.socket(socket.AF_UNIX)
    sock.connect("\0" + config["address"])
    _Link(sock).write(_encode({"hello": {"token": config["token"], "slot": index}}).encode())
    return sock


def _start(sockets, handle, folder, verbose):
    """Starts the slots."""
    if inspect.isasyncgenfunction(handle) or inspect.iscoroutinefunction(handle):
        slots = [_TaskSlot(sock, handle, folder) for sock in sockets]
        started = threading.Event()
        count = iter(slots)
        last = slots[-1]

        async def serve():
            def ready():
                if next(count) is last:
                    started.set()

            await asyncio.gather(*(slot.run(ready) for slot in slots))

        def loop():
            try:
                asyncio.run(serve())
            finally:
                os._exit(70)

        threading.Thread(target=loop, name="loop", daemon=True).start()
        started.wait()
    else:
        slots = [_ThreadSlot(sock, handle, folder) for sock in sockets]
        for slot in slots:
            slot.start()
    for slot in slots:
        slot.verbose = verbose
    return slots


def _main():
    control = _Link(socket.socket(fileno=os.dup(0)))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The end of the stream means that the worker was gone before the line above.
    frame = control.read()
    if frame is None:
        os._exit(0)
    config = json.loads(frame)
    if not config["dumpable"]:
        prctl(_PR_SET_DUMPABLE, 0)
    folder = os.path.dirname(config["file"])
    sockets = [_connect(config, index) for index in range(config["slots"])]

    def in_child():
        # A child process must not keep the worker from seeing the end of this one.
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for sock in [control.sock, *sockets]:
            sock.close()

    os.register_at_fork(after_in_child=in_child)
    try:
        if sys.version_info < (3, 9):
            raise RuntimeError("Python %s is older than 3.9" % sys.version.split()[0])
        handle, version = _model(config)
        slots = _start(sockets, handle, folder, bool(config["output"]))
        made_by = [version, sys.version, _packages()]
        _sink(config["output"])
    except BaseException as error:
        why = "%s: %s" % (type(error).__name__, error)
        place = _place(error, folder)
        why = "%s (%s)" % (why, place) if place else why
        control.write(json.dumps({"failed": why}).encode())
        os._exit(1)
    control.write(json.dumps({"ready": {"made_by": made_by}}).encode())
    _watch(control, slots)
