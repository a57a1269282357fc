"""Calls of a model for DJLServing. Continues djl.py; the files are one module."""

# Codes with which DJLServing says that the model failed, and that another try may succeed.
_DJL_FAILED, _DJL_RETRY = (424,), (408, 429, 503, 507)


def _is_djl(module):
    """Returns true for a module with `handle(inputs)` that uses `djl_python`.

    A module with `load`, or whose `handle` takes a job, may import `djl_python` for other uses.
    """
    handle = getattr(module, "handle", None)
    if _DJL not in sys.modules or not callable(handle) or hasattr(module, "load"):
        return False
    if not _accepts(handle, 1) or _accepts(handle, 2):
        return False
    known = (Input, Output, *(sys.modules.get(name, Input) for name in _DJL_MODULES))
    return any(item is part for item in vars(module).values() for part in known)


class _DjlModel:
    """`handle` of a module as a generator, and its call that warms the model up."""

    def __init__(self, module, config):
        self.bare = module.handle
        self.properties = _djl_properties(module, config)
        self.is_async = inspect.iscoroutinefunction(self.bare)
        self.handle = self.answer_async if self.is_async else self.answer

    def read(self, body):
        inputs = Input()
        inputs.content.add("data", bytes(body))
        return inputs

    def prepared(self, inputs, job=None):
        inputs.function_name = "handle"
        inputs.properties = dict(self.properties)
        if job is not None:
            inputs.properties.update(seed=str(job.seed), request_id=job.id, tenant=job.tenant)
        return inputs

    def warm_up(self):
        _djl_check(self.bare(self.prepared(Input())), loads=True)

    async def warm_up_async(self):
        output = await self.bare(self.prepared(Input()))
        if not inspect.isasyncgen(output):
            _djl_check(output, loads=True)

    def answer(self, inputs, job):
        output = _djl_check(self.bare(self.prepared(inputs, job)))
        if output is None:
            return
        try:
            yield from _djl_content(output)
            if output.stream_content is not None:
                if not hasattr(output.stream_content, "__next__"):
                    raise _Told("the stream content of an Output is an iterator")
                for item in output.stream_content:
                    yield _djl_piece(output, item)
        finally:
            _djl_end(output, getattr(output.stream_content, "close", None))

    async def answer_async(self, inputs, job):
        result = await self.bare(self.prepared(inputs, job))
        if not inspect.isasyncgen(result):
            result = _djl_once(result)
        try:
            async for output in result:
                pieces = self.pieces_async(_djl_check(output))
                try:
                    async for piece in pieces:
                        yield piece
                finally:
                    await pieces.aclose()
        finally:
            await result.aclose()

    async def pieces_async(self, output):
        if output is None:
            return
        stream = output.stream_content
        try:
            for piece in _djl_content(output):
                yield piece
            if hasattr(stream, "__anext__"):
                async for item in stream:
                    yield _djl_piece(output, item)
            elif hasattr(stream, "__next__"):
                for item in stream:
                    yield _djl_piece(output, item)
            elif stream is not None:
                raise _Told("the stream content of an Output is an iterator")
        finally:
            if hasattr(stream, "aclose"):
                await stream.aclose()
            _djl_end(output, getattr(stream, "close", None))


async def _djl_once(output):
    yield output


def _djl_properties(module, config):
    """Returns the properties that `handle` gets, all of them texts, and the marked formatters."""
    folder, models = os.path.dirname(config["file"]), config["models"]
    properties = {"Content-Type": _JSON_TYPE, "tensor_parallel_degree": "1", "model_dir": folder}
    model = models.get("target", next(iter(models.values()), None) if len(models) == 1 else None)
    if model is not None:
        properties["model_id"] = model
    for key, value in config["options"].items():
        properties[key] = value if isinstance(value, str) else _encode(value)
    for item in vars(module).values():
        for name in ("input_formatter", "output_formatter"):
            if inspect.isfunction(item) and getattr(item, "is_" + name, False):
                properties[name] = item
    return properties


def _djl_check(output, loads=False):
    """Returns an output, or raises the exception that its code stands for."""
    if output is None:
        return None
    if not isinstance(output, Output):
        raise _Told("`handle` returned %s, not an Output" % type(output).__name__)
    code = int(output.code)
    if code < 400:
        return output
    _djl_end(output, None)
    why = output.message if output._error is None else output._error
    if loads:
        raise RuntimeError("`handle` answers the empty input with code %d: %s" % (code, why))
    told = "`handle` returned an Output with code %d" % code
    if code in _DJL_RETRY:
        raise _ToldRetry(told)
    if code >= 500 or code in _DJL_FAILED:
        raise _Told(told)
    raise BadInput(str(why))


def _djl_content(output):
    """Yields the contents as pieces."""
    kind = str(next((v for k, v in output.properties.items() if k.lower() == "content-type"), ""))
    for value in output.content.values:
        if isinstance(value, _Json):
            yield json.loads(value)
        else:
            text = _djl_text(value)
            yield _djl_parsed(text) if _is_json(kind) else text


def _djl_piece(output, item):
    """Returns an element of a stream as a piece."""
    if output.stream_output_formatter is not None:
        item = output.stream_output_formatter(item)
    if isinstance(item, (bytes, bytearray)):
        return _djl_text(item)
    return item if isinstance(item, str) else json.loads(_djl_json(item))


def _djl_text(data):
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise _Told("an Output has bytes that are not UTF-8: a piece is JSON") from None


def _djl_parsed(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def _djl_end(output, close):
    """Closes the stream, and calls the function that was set by `finalize`."""
    try:
        if close is not None:
            close()
    finally:
        try:
            output.execute_finalize()
        except Exception:
            # The reply is complete.
            traceback.print_exc()
