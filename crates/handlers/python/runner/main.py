"""Start of the process, and the control socket. Continues model.py; the files are one module."""


def _watch(control, slots, status):
    """Reads stops from the control socket, and tells the state, until the worker is gone."""
    pending = {}
    poll = select.poll()
    poll.register(control.sock, select.POLLIN)
    idle, told = (1000, 0.0) if status else (None, None)
    while True:
        if status and time.monotonic() - told >= 1:
            control.write(_encode({"status": status()}).encode())
            told = time.monotonic()
        if control.buffer or poll.poll(20 if pending else idle):
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


def _start(sockets, model, folder, verbose):
    """Starts the slots."""
    handle = model.handle
    if inspect.isasyncgenfunction(handle) or inspect.iscoroutinefunction(handle):
        slots = [_TaskSlot(sock, model, folder) for sock in sockets]
        outcome = queue.SimpleQueue()
        count = iter(slots)
        last = slots[-1]

        async def serve():
            def ready():
                if next(count) is last:
                    outcome.put(None)

            try:
                # On the loop of the calls, to which what it makes belongs.
                await model.warm_up_async()
            except BaseException as error:
                outcome.put(error)
                await asyncio.Event().wait()
            await asyncio.gather(*(slot.run(ready) for slot in slots))

        def loop():
            try:
                asyncio.set_event_loop(model.loop)
                model.loop.run_until_complete(serve())
            finally:
                os._exit(70)

        threading.Thread(target=loop, name="loop", daemon=True).start()
        failure = outcome.get()
        if failure is not None:
            raise failure
    else:
        slots = [_ThreadSlot(sock, model, folder) for sock in sockets]
        for slot in slots:
            slot.start()
    for slot in slots:
        slot.verbose = verbose
    return slots


def _keep_group():
    """Starts a process that kills this one's group once this one has ended, however it ends.

    The kernel ends this process with the worker, but not the programs that the model has started. Returns the
    end of a pipe that only this process may hold, or None if the group is that of other processes too.
    """
    if os.getpgrp() != os.getpid():
        return None
    read, write = os.pipe()
    between = os.fork()
    if between:
        os.close(read)
        os.waitpid(between, 0)
        return write
    if os.fork():
        # So that the model never waits for it.
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for fd in range(3, max(read, write, null) + 1):
        if fd != read:
            try:
                os.close(fd)
            except OSError:
                pass
    os.read(read, 1)
    os.killpg(0, signal.SIGKILL)


def _main():
    control = _Link(socket.socket(fileno=os.dup(0)))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    keeper = _keep_group()
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
        if keeper is not None:
            os.close(keeper)

    os.register_at_fork(after_in_child=in_child)
    try:
        sys.meta_path.insert(0, _DjlFinder())
        model = _Model(config)
        sockets.extend(_connect(config, index) for index in range(len(sockets), model.slots))
        slots = _start(sockets, model, folder, bool(config["output"]) or config["show_output"])
        made_by = [model.version, sys.version, _packages()]
        if not config["show_output"] or config["output"]:
            _sink(config["output"])
    except BaseException as error:
        # The sentences of an engine's adapter are for operators, who look for nothing in its code.
        whole = config["engine"] and isinstance(error, Fatal)
        told = whole or isinstance(error, _Told)
        why = str(error) if told else "%s: %s" % (type(error).__name__, error)
        if isinstance(error, ModuleNotFoundError):
            why += " in the environment of %s" % sys.executable
        place = "" if whole else _place(error, folder)
        why = "%s (%s)" % (why, place) if place else why
        control.write(json.dumps({"failed": why}).encode())
        os._exit(1)
    ready = {"made_by": made_by, "slots": len(sockets), "schema": model.schema}
    control.write(json.dumps({"ready": ready}).encode())
    _watch(control, slots, model.status)
