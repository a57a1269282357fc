"""Compares the checks of type hints with a validator of their JSON schemas, on thousands of inputs.

Needs the packages of requirements.txt.
"""

import copy
import enum
import pathlib
import random
import sys
import types
from dataclasses import dataclass, field
from typing import Annotated, Any, Dict, List, Literal, NewType, Optional, Tuple, TypedDict, Union

import jsonschema
import pydantic

runner = sys.modules["nsbridge_handler"] = types.ModuleType("nsbridge_handler")
for part in ["api.py", "job.py", "hints.py", "kinds.py"]:
    path = pathlib.Path(__file__).parent.parent / "runner" / part
    exec(compile(path.read_text(), str(path), "exec"), runner.__dict__)


class Color(enum.Enum):
    RED = "red"
    ONE = 1
    YES = True
    NONE = None


class Level(enum.IntEnum):
    LOW = 0
    HIGH = 10


@dataclass
class Point:
    x: float
    y: float = 0.5


@dataclass
class Tree:
    name: str
    children: List["Tree"] = field(default_factory=list)
    at: Optional[Point] = None
    made: int = field(default=0, init=False)


class Base(TypedDict):
    id: int


class Record(Base, total=False):
    color: Color
    tags: Dict[str, List[str]]


class Node(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: str = pydantic.Field(min_length=1)
    level: Level = Level.LOW
    children: List["Node"] = []
    size: Optional[pydantic.PositiveInt] = None


@dataclass
class Mixed:
    node: Node
    either: Union[int, str, Point, List[int]]
    pair: Tuple[int, str] = (1, "a")
    rest: Tuple[bool, ...] = ()
    kind: Literal["a", 1, False, None] = "a"
    anything: Any = None
    loose: dict = field(default_factory=dict)


@dataclass
class Left:
    child: Union["Left", "Right", None] = None
    note: int = 0


@dataclass
class Right:
    child: Union["Left", "Right", None] = None
    note: str = ""


@dataclass
class Chain:
    next: Optional[Annotated["Chain", "the link after this one"]] = None


class Ask(TypedDict):
    then: "Steps"
    kind: Literal["ask"]


class Tell(TypedDict):
    then: "Steps"
    kind: Literal["tell"]


Steps = Union[List[Ask], List[Tell]]

UserId = NewType("UserId", int)

# Hints, each with an input that fits.
CASES = [
    (int, 1),
    (float, 1.5),
    (bool, True),
    (str, "a"),
    (None, None),
    (list, [1, "a"]),
    (tuple, [1]),
    (UserId, 7),
    (Color, "red"),
    (Level, 10),
    (List[Optional[int]], [1, None]),
    (Dict[str, float], {"a": 1, "b": 0.5}),
    (Union[str, List["str"]], ["a"]),
    (Union[float, bool, None], True),
    (Union[Point, Tree], {"name": "a"}),
    (Tuple[int, str], [1, "a"]),
    (Tuple[int, ...], [1, 2]),
    (Point, {"x": 1, "y": 2.5}),
    (Tree, {"name": "a", "at": {"x": 1}, "children": [{"name": "b", "children": []}]}),
    (Record, {"id": 1, "color": "red", "tags": {"a": ["b"]}}),
    (Left, {"child": {"child": {"note": "a"}, "note": 1}, "note": 2}),
    (Chain, {"next": {"next": None}}),
    (Steps, [{"then": [{"then": [], "kind": "tell"}], "kind": "ask"}]),
    (Node, {"name": "a", "level": 10, "size": 3, "children": [{"name": "b"}]}),
    (
        Mixed,
        {
            "node": {"name": "a", "children": [{"name": "b"}]},
            "either": {"x": 1},
            "pair": [1, "a"],
            "rest": [True],
            "kind": False,
            "anything": [{}],
            "loose": {"a": 1},
        },
    ),
]
# Inputs of which it is not enough that check and schema agree.
EXPECTED = [
    (Node, {"name": "a", "size": 1}, True),
    (Node, {"name": "a", "size": "1"}, False),
    (Record, {"id": 1}, True),
    (Record, {"color": "red"}, False),
]
if sys.version_info >= (3, 11):
    from typing import NotRequired, Required

    class Wrapped(TypedDict, total=False):
        need: "Required[int]"
        may: "NotRequired[str]"

    CASES.append((Wrapped, {"need": 1, "may": "a"}))
    CASES.append((int | list[str], ["a"]))
    EXPECTED.append((Wrapped, {"need": 1}, True))
    EXPECTED.append((Wrapped, {"may": "a"}, False))
if sys.version_info >= (3, 12):
    exec("type Json = None | bool | float | str | list[Json] | dict[str, Json]")
    CASES.append((Json, [{"a": [1, None, "a"]}]))  # noqa: F821

SCALARS = [None, True, False, 0, 1, -1, 10, 2.5, 10**400, "", "a", "red", "1"]
WHOLE = [1.0, 0.0, 10.0, 1e300]
OTHERS = [[], [1], ["a"], [None], [1, "a"], {}, {"x": 1}, {"a": "b"}, {"name": "a"}, {"id": 1}]


def hint_of_argument(hint):
    def handle(input, job: "Unknown"):  # noqa: F821
        pass

    handle.__annotations__["input"] = hint
    return runner._hint(handle)


def places(value, path=()):
    """Lists the paths of all values within a value."""
    found = [path]
    parts = value.items() if type(value) is dict else enumerate(value) if type(value) is list else ()
    for key, part in parts:
        found += places(part, path + (key,))
    return found


def changed(value, pool, rng):
    """Returns a copy in which a value is replaced, left out or added."""
    value = copy.deepcopy(value)
    path = rng.choice(places(value))
    part = copy.deepcopy(rng.choice(pool))
    if not path:
        return part
    parent = value
    for step in path[:-1]:
        parent = parent[step]
    what = rng.randrange(4)
    if what == 0 and type(parent) is dict:
        del parent[path[-1]]
    elif what == 1 and type(parent) is dict:
        parent[rng.choice(["x", "name", "other", "", "made"])] = part
    elif what == 2 and type(parent) is list:
        parent.append(part)
    else:
        parent[path[-1]] = part
    return value


def fits(check, value):
    try:
        check(value)
        return True
    except runner.BadInput:
        return False


def check_counted(check, value, most):
    """Returns whether an input fits, and fails if the check makes more calls than this."""
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event == "call"
        assert calls <= most, "the check takes more than %d calls" % most

    sys.setprofile(count)
    try:
        return fits(check, value)
    finally:
        sys.setprofile(None)


def check_that_unions_of_recursive_classes_take_linear_time():
    for form in ["fits", "last fits none", "first fits none"]:
        # The first alternative is wrong in its last field.
        chain, steps = {"note": "a"}, []
        if form == "last fits none":
            chain, steps = {"note": None}, [{"then": 0, "kind": "tell"}]
        for _ in range(30):
            chain = {"child": chain, "note": "a"}
            steps = [{"then": steps, "kind": "tell"}]
        if form == "first fits none":
            chain["note"], steps[0]["kind"] = None, 0
        for hint, value in [(Union[Left, Right], chain), (Steps, steps)]:
            _, check = runner._checked(hint_of_argument(hint))
            assert check_counted(check, value, 3000) == (form == "fits"), (hint, form)


def main():
    check_that_unions_of_recursive_classes_take_linear_time()
    rng = random.Random(7)
    accepted = refused = 0
    for hint, example in CASES:
        schema, check = runner._checked(hint_of_argument(hint))
        jsonschema.Draft202012Validator.check_schema(schema)
        validator = jsonschema.Draft202012Validator(schema)
        # pydantic's strict integers are narrower than those of its schema.
        has_pydantic = hint in (Node, Mixed)
        pool = SCALARS + OTHERS + ([] if has_pydantic else WHOLE)
        values = [example, *copy.deepcopy(pool)]
        for _ in range(500):
            value = example
            for _ in range(rng.randrange(1, 4)):
                value = changed(value, pool, rng)
            values.append(value)
        assert validator.is_valid(example), (hint, example)
        for value in values:
            fit = fits(check, value)
            assert fit == validator.is_valid(value), (hint, value, fit)
            accepted += fit
            refused += not fit
    for hint, value, expected in EXPECTED:
        schema, check = runner._checked(hint_of_argument(hint))
        assert fits(check, value) == expected, (hint, value)
    assert accepted > 1000 and refused > 1000, (accepted, refused)
    print("%d inputs accepted, %d refused" % (accepted, refused))


main()
