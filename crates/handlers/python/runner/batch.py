"""Batches of inputs of several calls. Continues slots.py; the files are one module."""


class _Place:
    """Input that waits for its output."""

    def __init__(self, value, job):
        self.value = value
        self.job = job
        self.since = time.monotonic()
        # True once the call has ended without its output.
        self.left = False
        self.outcome = queue.SimpleQueue()


class _Batcher:
    """Handle of a model that answers a batch at once, on a thread that belongs to the model.

    The slots only use queues here, whose methods an exception of a stop cannot interrupt halfway.
    """

    def __init__(self, run, size, delay):
        self.run = run
        self.takes_jobs = _accepts(run, 2)
        self.size = size
        self.delay = delay
        self.waiting = queue.SimpleQueue()
        threading.Thread(target=self.work, name="batch", daemon=True).start()

    def handle(self, value, job):
        # A reply has one piece, so a client that has a piece has the whole reply.
        if job.resumed():
            return
        place = _Place(value, job)
        self.waiting.put(place)
        try:
            outcome = self.outcome(place)
        finally:
            place.left = True
        if isinstance(outcome, BaseException):
            raise outcome
        job.emit(outcome)

    def outcome(self, place):
        while True:
            try:
                return place.outcome.get(timeout=0.02)
            except queue.Empty:
                place.job.check()

    def work(self):
        while True:
            batch = [place for place in self.gather() if not place.left]
            if batch:
                self.answer(batch)

    def gather(self):
        """Waits for a batch that is full, or whose oldest input has waited long enough."""
        batch = [self.waiting.get()]
        due = batch[0].since + self.delay
        while len(batch) < self.size:
            left = due - time.monotonic()
            try:
                batch.append(self.waiting.get(left > 0, max(left, 0)))
            except queue.Empty:
                break
        return batch

    def answer(self, batch):
        inputs, jobs = [place.value for place in batch], [place.job for place in batch]
        try:
            outcomes = list(self.run(inputs, jobs) if self.takes_jobs else self.run(inputs))
            if len(outcomes) != len(batch):
                raise Fatal("`run` returns one output for each input")
        except Fatal as error:
            outcomes = [error] * len(batch)
        except BaseException as error:
            if len(batch) > 1:
                # Only the input that causes it fails.
                for place in batch:
                    self.answer([place])
                return
            outcomes = [error]
        for place, outcome in zip(batch, outcomes):
            place.outcome.put(outcome)
