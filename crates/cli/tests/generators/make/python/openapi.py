"""Writes component schemas (OpenAPI 3.1) and parameters as FastAPI makes them, and (OpenAPI 3.0) as drf-spectacular does.

The first argument is the folder to write to.
"""
import datetime as dt, json, pathlib, sys, uuid
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, Union
from fastapi import Body, FastAPI, File, Form, Query, UploadFile
from pydantic import BaseModel, ConfigDict, Field

out = pathlib.Path(sys.argv[1]) / "openapi"
out.mkdir(parents=True, exist_ok=True)


def put(name, schema):
    (out / f"{name}.json").write_text(json.dumps(schema, indent=1, ensure_ascii=False) + "\n")


class Status(str, Enum):
    open = "open"
    closed = "closed"


class Address(BaseModel):
    street: str = Field(max_length=80, examples=["1 Main St"])
    zip: str | None = Field(None, pattern=r"^\d{5}(-\d{4})?$")


class Item(BaseModel):
    model_config = ConfigDict(json_schema_extra={"example": {"id": 1, "name": "x"}})
    id: int = Field(json_schema_extra={"readOnly": True})
    password: str = Field("", json_schema_extra={"writeOnly": True, "format": "password"})
    name: str
    status: Status = Status.open
    price: Decimal = Field(gt=0, decimal_places=2)
    home: Address | None = None
    tags: set[str] = set()
    made: dt.datetime | None = None
    extra: dict[str, Any] | None = None


class Mail(BaseModel):
    channel: Literal["mail"]
    to: list[str] = Field(min_length=1)


class Sms(BaseModel):
    channel: Literal["sms"]
    number: str


app = FastAPI()


@app.post("/items")
def create(item: Item, note: Annotated[Union[Mail, Sms], Body(discriminator="channel")], q: Annotated[list[int], Query(max_length=3)] = []) -> Item: ...


@app.post("/upload")
def upload(files: list[UploadFile], raw: Annotated[bytes, File()], token: Annotated[str, Form()], one: UploadFile | None = None, id: uuid.UUID = Form(None)): ...


doc = app.openapi()


def component(doc, name):
    """One component with those it refers to, its references as they are."""
    all_ = doc["components"]["schemas"]
    need, todo = {}, [name]
    while todo:
        n = todo.pop()
        text = json.dumps(all_[n])
        for m in all_:
            if f'"#/components/schemas/{m}"' in text and m not in need and m != name:
                need[m] = all_[m]
                todo.append(m)
    schema = dict(all_[name])
    if need or f'#/components/schemas/{name}"' in json.dumps(schema):
        schema["components"] = {"schemas": {**need, name: all_[name]}}
    return schema


for n, f in {"Item-Input": "fastapi-item-input", "Item": "fastapi-item-input", "Item-Output": "fastapi-item-output", "Body_create_items_post": "fastapi-body-discriminator",
             "Body_upload_upload_post": "fastapi-form-upload", "HTTPValidationError": "fastapi-validation-error"}.items():
    if n in doc["components"]["schemas"]:
        put(f, component(doc, n))

import django
from django.conf import settings
settings.configure(SECRET_KEY="x", ROOT_URLCONF=__name__, INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "rest_framework", "drf_spectacular"],
                   REST_FRAMEWORK={"DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema"}, SPECTACULAR_SETTINGS={"COMPONENT_SPLIT_REQUEST": True}, USE_TZ=True)
django.setup()
from django.core.validators import RegexValidator
from django.urls import path
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.utils import OpenApiExample, PolymorphicProxySerializer, extend_schema, extend_schema_serializer
from rest_framework import serializers
from rest_framework.views import APIView


class AuthorSerializer(serializers.Serializer):
    id = serializers.IntegerField(read_only=True)
    name = serializers.CharField(max_length=40, help_text="Full name")
    email = serializers.EmailField(allow_null=True, required=False)


@extend_schema_serializer(examples=[OpenApiExample("one", value={"title": "t"})])
class BookSerializer(serializers.Serializer):
    uid = serializers.UUIDField(read_only=True)
    title = serializers.CharField(validators=[RegexValidator(r"^[^\s].*\Z")])
    slug = serializers.SlugField(allow_blank=True)
    genre = serializers.ChoiceField(choices=[("sf", "Science fiction"), ("cr", "Crime")], allow_null=True, allow_blank=True)
    genres = serializers.MultipleChoiceField(choices=["a", "b"])
    author = AuthorSerializer(help_text="beside a reference", allow_null=True)
    others = AuthorSerializer(many=True, read_only=True)
    price = serializers.DecimalField(max_digits=6, decimal_places=2, min_value=0)
    pages = serializers.IntegerField(min_value=1, max_value=9223372036854775807, default=100)
    rate = serializers.FloatField(allow_null=True)
    cover = serializers.ImageField(required=False)
    data = serializers.JSONField()
    sizes = serializers.DictField(child=serializers.IntegerField(min_value=0))
    codes = serializers.ListField(child=serializers.CharField(max_length=2), min_length=1, max_length=3)
    day = serializers.DateField()
    took = serializers.DurationField()
    at = serializers.DateTimeField(write_only=True)
    ip = serializers.IPAddressField()
    flag = serializers.BooleanField(allow_null=True, default=None)
    url = serializers.URLField()


class MagSerializer(serializers.Serializer):
    kind = serializers.ChoiceField(choices=["mag"])
    issue = serializers.IntegerField()


class View(APIView):
    @extend_schema(request=BookSerializer, responses=BookSerializer)
    def post(self, request): ...

    @extend_schema(request=BookSerializer, responses=BookSerializer)
    def patch(self, request): ...

    @extend_schema(responses=PolymorphicProxySerializer("Medium", {"mag": MagSerializer, "author": AuthorSerializer}, "kind"))
    def get(self, request): ...


urlpatterns = [path("books", View.as_view())]
doc = SchemaGenerator().get_schema(request=None, public=True)
doc = json.loads(json.dumps(doc))
for n, f in {"Book": "drf-book", "BookRequest": "drf-book-request", "PatchedBookRequest": "drf-book-patched", "Medium": "drf-polymorphic"}.items():
    put(f, component(doc, n))
