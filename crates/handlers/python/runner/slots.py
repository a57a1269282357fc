"""Slots: each answers one call at a time. Continues job.py; the files are one module."""


class _Slot:
    """State that both kinds of slot share."""

    def __init__(self, sock, model, folder):
        self.sock = sock
        self.handle = model.handle
        # Returns what `handle` gets of the bytes of an input.
        self.input = model.read
        self.folder = folder
        # True if standard error goes to a file of the operator, or is shown.
        self.verbose = False
        self.job = None
        # Number of the call in progress, of the last one that ended, and of the last stop.
        self.call = None
        self.done = 0
        self.stop = 0

    def failure(self, error):
        """Describes an exception. Only the sentence of a BadInput leaves this process."""
        if isinstance(error, (Stopped, asyncio.CancelledError)):
            return {"error": {"kind": "stopped"}}
        kind, name = "failed", str(error) if isinstance(error, _Told) else type(error).__name__
        if isinstance(error, BadInput):
            return {"error": {"kind": "bad_input", "why": str(error)}}
        if self.verbose:
            print("request %s:" % (self.job.id if self.job else "?"), file=sys.stderr)
            traceback.print_exception(type(error), error, error.__traceback__)
        if isinstance(error, (Retry, MemoryError)) or name == "OutOfMemoryError":
            kind = "retry"
        elif isinstance(error, Fatal):
            kind = "fatal"
        return {"error": {"kind": kind, "type": name, "place": _place(error, self.folder)}}


def _place(error, folder):
    """Returns the file and line of the innermost frame within the model's folder."""
    found, trace = getattr(error, "place", ""), error.__traceback__
    if found:
        return found
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name.startswith(folder + os.sep):
            found = "%s:%d" % (os.path.relpath(name, folder), trace.tb_lineno)
        trace = trace.tb_next
    return found


def _yield_place(generator, folder):
    """Returns the file and line of the `yield` at which a generator waits."""
    frame = getattr(generator, "gi_frame", None) or getattr(generator, "ag_frame", None)
    if frame is None or not frame.f_code.co_filename.startswith(folder + os.sep):
        return ""
    return "%s:%d" % (os.path.relpath(frame.f_code.co_filename, folder), frame.f_lineno)


class _ThreadSlot(_Slot, threading.Thread):
    """Slot that answers one call after another on a thread of its own.

    An exception may be raised in this thread at any bytecode, but only while `call` is set, `quiet`
    is not, and `raising` is. The thread sets its field first and then waits for `raising`; the
    control thread sets `raising` first and then looks at the fields. So neither overlooks the other.
    """

    def __init__(self, sock, model, folder):
        threading.Thread.__init__(self, name="slot", daemon=True)
        _Slot.__init__(self, sock, model, folder)
        self.link = _Link(sock)
        self.quiet = False
        self.raising = False
        self.room = 0
        self.end = None

    def run(self):
        try:
            while True:
                frame = self.link.read()
                if frame is None:
                    break
                head = json.loads(frame)
                if "call" in head:
                    self.answer(head)
        finally:
            # Also the end of a copy of this thread in a forked process.
            os._exit(70)

    def answer(self, head):
        body = self.link.read()
        self.send(b'"begun"')
        begun = False
        while True:
            try:
                if not begun:
                    begun, self.end, self.room = True, None, _WINDOW
                    self.work(head, body)
                self.call = None
                self.settle()
                break
            except Stopped:
                pass
        self.job = None
        self.done = head["call"]
        self.send(_encode(self.end or _FALLBACK).encode("utf-8", "replace"))

    def work(self, head, body):
        job = self.job = _ThreadJob(self, head)
        try:
            self.call = head["call"]
            job._stopped = self.stop == self.call
            value = self.input(body)
            del body
            self.end = {"end": self.run_model(value, job)}
        except BaseException as error:
            self.end = self.failure(error)

    def run_model(self, value, job):
        result = self.handle(value, job)
        if hasattr(result, "__next__"):
            try:
                for piece in result:
                    job.emit(piece)
            except _NotJson as error:
                error.place = error.place or _yield_place(result, self.folder)
                raise
            finally:
                close = getattr(result, "close", None)
                if close is not None:
                    close()
        elif inspect.isawaitable(result) or inspect.isasyncgen(result):
            raise TypeError("declare `handle` with `async def`")
        elif result is not None:
            job.emit(result)
        job.check()
        return job._end

    def settle(self):
        """Waits until no exception is about to be raised, and takes back one that is pending."""
        while self.raising:
            time.sleep(0.0002)
        _raise_in(self.ident, None)

    def interrupt(self, call):
        """Raises Stopped in the thread while it works on this call."""
        self.raising = True
        if self.call == call and not self.quiet:
            _raise_in(self.ident, Stopped)
        self.raising = False

    def notice(self, call):
        """Marks a call as stopped."""
        self.stop = call
        job = self.job
        if job is not None and self.call == call:
            job._stopped = True

    def send(self, data):
        self.link.write(data)

    def send_piece(self, job, data):
        while self.room <= 0:
            self.room += self.await_frame(job)["more"]
        self.room -= len(data)
        self.link.write(data)

    def ask_resumed(self, job):
        self.send(b'"resumed"')
        while True:
            frame = self.await_frame(job)
            if "resumed" in frame:
                return frame["resumed"]
            self.room += frame["more"]

    def await_frame(self, job):
        """Reads a frame for the call in progress. A stop comes on this socket as well."""
        self.quiet = True
        try:
            self.settle()
            frame = self.link.read()
        finally:
            self.quiet = False
        if frame is None:
            os._exit(0)
        frame = json.loads(frame)
        if "stop" in frame and frame["stop"] == self.call:
            job._stopped = True
        job.check()
        return frame if "stop" not in frame else {"more": 0}


class _TaskSlot(_Slot):
    """Slot that answers calls as tasks of an event loop."""

    async def run(self, ready):
        reader, self.writer = await asyncio.open_unix_connection(sock=self.sock)
        ready()
        while True:
            frame = json.loads(await self.read(reader))
            if "call" in frame:
                body = await self.read(reader)
                self.begin(frame, body)
            elif "more" in frame:
                self.room += frame["more"]
                self.changed.set()
            elif "resumed" in frame:
                self.pieces = frame["resumed"]
                self.changed.set()
            elif "stop" in frame and self.call == frame["stop"]:
                self.cancel()

    async def read(self, reader):
        return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))

    def begin(self, head, body):
        self.call, self.job, self.began = head["call"], _TaskJob(self, head), False
        self.room, self.changed, self.pieces = _WINDOW, asyncio.Event(), None
        self.task = asyncio.ensure_future(self.answer(self.job, body))

    async def answer(self, job, body):
        self.began = True
        self.send(b'"begun"')
        try:
            job.check()
            end = {"end": await self.run_model(self.input(body), job)}
        except BaseException as error:
            end = self.failure(error)
        self.done, self.call, self.job = self.call, None, None
        self.send(_encode(end).encode("utf-8", "replace"))

    async def run_model(self, value, job):
        result = self.handle(value, job)
        if inspect.isasyncgen(result):
            try:
                async for piece in result:
                    await job.emit(piece)
            except _NotJson as error:
                error.place = error.place or _yield_place(result, self.folder)
                raise
            finally:
                await result.aclose()
        else:
            result = await result
            if result is not None:
                await job.emit(result)
        job.check()
        return job._end

    def cancel(self):
        self.job._stopped = True
        # A task that is canceled before its first step would never say that it ended.
        if self.began:
            self.task.cancel()

    def notice(self, call):
        self.stop = call

    def interrupt(self, call):
        pass

    def send(self, data):
        self.writer.write(struct.pack(">I", len(data)) + data)

    async def send_piece(self, data):
        while self.room <= 0:
            self.changed.clear()
            await self.changed.wait()
        self.room -= len(data)
        self.send(data)

    async def ask_resumed(self):
        self.send(b'"resumed"')
        while self.pieces is None:
            self.changed.clear()
            await self.changed.wait()
        return self.pieces


def _raise_in(thread, exception):
    value = None if exception is None else ctypes.py_object(exception)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), value)
