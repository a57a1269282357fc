"""Writes JSON schemas as pydantic 2, msgspec and the openai package make them.

The first argument is the folder to write to.
"""
import enum, json, re, sys, uuid, datetime as dt, decimal, ipaddress, pathlib, dataclasses
from collections import OrderedDict, deque
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, Optional, Pattern, TypeVar, Union
from pydantic import (AnyUrl, AwareDatetime, Base64Bytes, Base64Str, BaseModel, ByteSize, ConfigDict, Discriminator, EmailStr,
    Field, FilePath, FiniteFloat, FutureDate, HttpUrl, ImportString, IPvAnyAddress, Json, JsonValue, NameEmail, NaiveDatetime,
    PastDatetime, PostgresDsn, RootModel, SecretBytes, SecretStr, SerializeAsAny, StrictInt, StringConstraints, Tag, TypeAdapter,
    UUID4, WithJsonSchema, computed_field, conint, conlist, conset, constr, field_serializer)
from pydantic.dataclasses import dataclass
from pydantic_core import MultiHostUrl
from typing_extensions import TypeAliasType, TypedDict

out = pathlib.Path(sys.argv[1])


def put(folder, name, schema):
    (out / folder).mkdir(parents=True, exist_ok=True)
    (out / folder / f"{name}.json").write_text(json.dumps(schema, indent=1, ensure_ascii=False) + "\n")


def both(name, model):
    a = TypeAdapter(model)
    put("pydantic2", name + "-validation", a.json_schema(mode="validation"))
    put("pydantic2", name + "-serialization", a.json_schema(mode="serialization"))


def one(name, model, **kw):
    put("pydantic2", name, TypeAdapter(model).json_schema(**kw))


class Formats(BaseModel):
    raw: bytes
    raw64: Base64Bytes
    text64: Base64Str
    price: decimal.Decimal
    bounded: Annotated[decimal.Decimal, Field(ge=0, lt=1000, max_digits=6, decimal_places=2)]
    id: uuid.UUID
    id4: UUID4
    email: EmailStr
    named: NameEmail
    url: AnyUrl
    http: HttpUrl
    dsn: PostgresDsn
    day: dt.date
    at: dt.datetime
    time: dt.time
    took: dt.timedelta
    past: PastDatetime
    future: FutureDate
    aware: AwareDatetime
    naive: NaiveDatetime
    path: pathlib.Path
    file: FilePath
    ip: IPvAnyAddress
    v4: ipaddress.IPv4Address
    net: ipaddress.IPv6Network
    interface: ipaddress.IPv4Interface
    secret: SecretStr
    secret_bytes: SecretBytes
    pattern: Pattern[str]
    size: ByteSize
    blob: Json[dict[str, int]]
    cls: ImportString


both("formats", Formats)
one("bytes-base64-timedelta-float", type("M", (BaseModel,), {"__annotations__": {"b": bytes, "t": dt.timedelta}, "model_config": ConfigDict(
    ser_json_bytes="base64", val_json_bytes="base64", ser_json_timedelta="float")}), mode="serialization")


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Only(enum.Enum):
    ONE = "one"


class Number(enum.IntEnum):
    A = 1
    B = 2


class Mixed(enum.Enum):
    """Its members are of more than one type."""
    S = "s"
    N = 3
    NONE = None


class Enums(BaseModel):
    color: Color
    only: Only
    number: Number = Number.A
    mixed: Mixed
    lit: Literal["a", "b"]
    lit1: Literal["x"]
    lits: Literal["a", 1, True, None]
    color_or_none: Color | None = None
    desc: Color = Field(Color.RED, description="beside a reference", examples=["red"])
    none: None
    flag: Literal[False] = False
    keyed: dict[Color, int]


one("enum-literal", Enums)


class Constrained(BaseModel):
    model_config = ConfigDict(extra="forbid", regex_engine="python-re", str_max_length=500, title="Limits", json_schema_extra={"examples": [{"slug": "a"}]})
    slug: constr(pattern=r"^[a-z0-9-]+$", min_length=1, max_length=64)
    look: Annotated[str, Field(pattern=r"^(?!-)[A-Za-z0-9-]{1,63}(?<!-)$")]
    strip: Annotated[str, StringConstraints(strip_whitespace=True, to_upper=True, pattern=re.compile(r"^\w+$"))]
    n: conint(gt=0, le=100, multiple_of=5)
    f: Annotated[float, Field(gt=-1.5, lt=1.5)]
    finite: FiniteFloat
    strict: StrictInt
    big: Annotated[int, Field(ge=-(2**63), le=2**64 - 1)]
    items: conlist(int, min_length=1, max_length=3)
    unique: conset(str, min_length=1, max_length=5)
    longest: Annotated[list[Annotated[str, Field(max_length=3)]], Field(max_length=8)]
    old: Annotated[int | None, Field(deprecated=True)] = None
    when: Annotated[dt.datetime, Field(gt=dt.datetime(2020, 1, 1))]
    alias: int = Field(validation_alias="in-name", serialization_alias="outName", default=0)
    with_union: Annotated[int | str, Field(ge=1)] = 1


put("pydantic2", "constrained", Constrained.model_json_schema(by_alias=True))


class Containers(BaseModel):
    s: set[int]
    fs: frozenset[str]
    d: deque[float]
    t: tuple[int, str]
    tv: tuple[int, ...]
    t0: tuple[()]
    bare: tuple
    m: dict[str, int]
    mi: dict[int, str]
    mk: dict[Annotated[str, Field(pattern=r"^[a-z]{2}$")], float]
    ml: dict[Annotated[str, Field(min_length=2)], list[str]]
    mm: Annotated[dict[str, int], Field(min_length=1, max_length=4)]
    mu: dict[uuid.UUID, bool]
    md: dict[dt.date, decimal.Decimal]
    mlit: dict[Literal["a", "b"], int]
    any: Any
    anys: list
    obj: dict
    ordered: OrderedDict[str, Any]
    js: JsonValue
    nested: list[list[dict[str, tuple[float, float] | None]]] = Field(default_factory=list)


one("containers", Containers)


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog", "puppy"]
    bark: Optional[str] = None


class Fish(BaseModel):
    kind: Literal["fish"] = "fish"
    friends: list["Pet"] = []


Pet = Annotated[Union[Cat, Dog, Fish], Field(discriminator="kind")]
Fish.model_rebuild()


class Owner(BaseModel):
    pets: list[Pet]
    best: Pet | None = None
    plain: Cat | Dog | str | int | float | bool | None = Field(None, union_mode="left_to_right")


one("discriminated-union", Owner)


def which(v):
    return "list" if isinstance(v, list) else "other"


one("callable-discriminator", Annotated[Union[Annotated[list[int], Tag("list")], Annotated[dict[str, int], Tag("other")]], Discriminator(which)])


class Tree(BaseModel):
    """A node.

    With a second paragraph.
    """
    value: int
    left: Optional["Tree"] = None
    children: list["Tree"] = Field(default_factory=list, description="More of it")


one("recursive", Tree)
Jsonish = TypeAliasType("Jsonish", "Union[dict[str, Jsonish], list[Jsonish], str, int, float, bool, None]")
one("recursive-alias", Jsonish)
one("recursive-root-model", RootModel[dict[str, list[Tree]]])
T = TypeVar("T")
K = TypeVar("K")


class Page(BaseModel, Generic[T]):
    items: list[T]
    next: str | None = None


class Pair(BaseModel, Generic[K, T]):
    key: K
    value: T


class Generics(BaseModel):
    a: Page[int]
    b: Page[Pair[str, list[Cat]]]
    c: Page[dict[str, Any]]
    d: Page


one("generics", Generics)


class Defaults(BaseModel):
    a: int = 1
    b: list[str] = ["x", "y"]
    c: Optional[str] = None
    d: str | None
    e: dict[str, Any] = {"k": [1, None]}
    f: float = Field(0.5, description="A ratio", examples=[0.1, 0.2])
    g: Cat = Cat(kind="cat")
    h: dt.datetime = dt.datetime(2024, 2, 29, 12, 0)
    i: SerializeAsAny[Cat] | None = None
    j: float = 1e300
    k: bytes = b"\x00abc"
    l: Annotated[Any, WithJsonSchema({"type": "string", "contentMediaType": "text/html"})] = ""
    m: int = Field(3, frozen=True, title="")

    @computed_field
    @property
    def total(self) -> int:
        return self.a

    @field_serializer("f")
    def ser(self, v) -> str:
        return str(v)


both("default-computed", Defaults)


@dataclass
class Point:
    """A dataclass."""
    x: float
    y: float = 0.0
    tags: list[str] = dataclasses.field(default_factory=list)


class Movie(TypedDict, total=False):
    name: str
    year: NotRequired[int]


class Strict(TypedDict):
    __pydantic_config__ = ConfigDict(extra="forbid")
    id: int
    note: NotRequired[str | None]


class Row(NamedTuple):
    id: int
    name: str = "x"


class Kinds(BaseModel):
    model_config = ConfigDict(extra="allow")
    point: Point
    movie: Movie
    strict: Strict
    row: Row


one("dataclass-typeddict-namedtuple", Kinds)


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, int]
    name: str


one("extra-typed", Extra)
both("number-string", type("N", (BaseModel,), {"__annotations__": {"d": decimal.Decimal, "n": Optional[decimal.Decimal], "l": list[decimal.Decimal]}}))
one("description-sibling", type("Sib", (BaseModel,), {"__annotations__": {"a": Annotated[Cat, Field(description="one", title="T")], "b": Annotated[Optional[Cat], Field(description="two")]},
    "b": None, "__doc__": "Long. " * 200}))
one("name-clash", type("Clash", (BaseModel,), {"__annotations__": {"a": Cat, "b": type("Cat", (BaseModel,), {"__annotations__": {"x": int}, "__module__": "other.mod"}), "$ref": str, "properties": int, "default": bool}}))
put("pydantic2", "openapi-ref-template", Owner.model_json_schema(ref_template="#/components/schemas/{model}"))

# The strict form that the openai package makes of a model.
from openai.lib._pydantic import to_strict_json_schema
import openai
put("sdk", "openai-python-strict", to_strict_json_schema(Tree))
put("sdk", "openai-python-strict-union", to_strict_json_schema(Owner))
put("sdk", "openai-python-function-tool", openai.pydantic_function_tool(Enums)["function"]["parameters"])

# msgspec
import msgspec


class Get(msgspec.Struct, tag="get", forbid_unknown_fields=True):
    key: Annotated[str, msgspec.Meta(min_length=1, pattern="^[a-z/]+$", examples=["a/b"])]


class Del(msgspec.Struct, tag="del"):
    key: str
    force: bool = False


class Put(msgspec.Struct, tag="put", array_like=True):
    key: str
    val: bytes
    ttl: Optional[Annotated[int, msgspec.Meta(ge=1, multiple_of=2)]] = None


class Batch(msgspec.Struct, rename="camel"):
    all_ops: list[Union[Get, "Del"]]
    puts: list[Put]
    when: dt.datetime
    amounts: dict[str, decimal.Decimal]
    sizes: dict[Annotated[str, msgspec.Meta(max_length=3)], int]
    uniq: set[int]
    pair: tuple[int, str]
    lit: Literal[1, 2, None] = None
    took: Optional[dt.timedelta] = None
    at: Annotated[dt.time, msgspec.Meta(tz=False)] = dt.time(1)
    nested: Optional["Batch"] = None
    un: Union[int, msgspec.UnsetType] = msgspec.UNSET


put("msgspec", "tagged-structs", msgspec.json.schema(Batch))
put("msgspec", "named-tuple-and-enums", msgspec.json.schema(tuple[Row, Color, Number, Optional[uuid.UUID]]))
