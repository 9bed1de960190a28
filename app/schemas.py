"""JSON Schemas of the service's JSON answers, for its API description; `app.views` and `app.json_text` make them."""

from typing import Any

from app.gguf import ValueType

__all__ = ["SCHEMAS", "Schema", "ref"]

Schema = dict[str, Any]


def ref(name: str) -> Schema:
    """A reference to one of `SCHEMAS`."""
    return {"$ref": f"#/components/schemas/{name}"}


def _object(description: str, required: Schema, optional: Schema | None = None) -> Schema:
    return {
        "type": "object",
        "description": description,
        "properties": {**required, **(optional or {})},
        "required": list(required),
    }


def _list(items: Schema, description: str | None = None) -> Schema:
    return {"type": "array", "items": items, **({"description": description} if description else {})}


def _map(values: Schema, description: str) -> Schema:
    return {"type": "object", "additionalProperties": values, "description": description}


def _described(schema: Schema, description: str) -> Schema:
    return {**schema, "description": description}


_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_FLAG: Schema = {"type": "boolean"}
_HREF: Schema = {
    "type": "string",
    "format": "uri-reference",
    "description": "A path of this service, ready to ask for.",
}
_PROBLEM_TYPE: Schema = {"type": "string", "pattern": "^/problems/[a-z]+(-[a-z]+)*$"}
_BASE64 = "Its bytes, where they are not UTF-8."
_VALUE_TYPE: Schema = {"enum": [kind.label for kind in ValueType]}
_PLAIN_TYPE: Schema = {"enum": [kind.label for kind in ValueType if kind not in (ValueType.ARRAY, ValueType.STRING)]}
_SCALAR: Schema = {
    "type": ["number", "boolean", "string"],
    "description": 'A string: "NaN", "Infinity" or "-Infinity".',
}


def _base64(field: str) -> Schema:
    return {f"{field}_base64": {"type": "string", "contentEncoding": "base64", "description": _BASE64}}


_ARRAY: Schema = {
    "type": {"const": "array"},
    "element_type": _VALUE_TYPE,
    "length": _described(_COUNT, "Elements of the whole array."),
    "items": _list(ref("Value")),
}
_STRING: Schema = {
    "type": {"const": "string"},
    "length": _described(_COUNT, "Bytes of the whole string."),
    "value": _TEXT,
}
_NUMBER: Schema = {"type": _PLAIN_TYPE, "value": _SCALAR}
_WHOLE: Schema = {"whole": _described(_FLAG, "Whether this is all of it; else href has the rest.")}
_ENTRY: Schema = {"key": _TEXT, "href": _HREF}
_OWNER: Schema = {"model": _described(_TEXT, "Model id.")}

_LISTED: Schema = {
    "id": _TEXT,
    "href": _HREF,
    "files": _described(_COUNT, "Files of the model: one, or the parts of a split set."),
    "bytes": _described(_COUNT, "Bytes of its files."),
}
_SUMMARY: Schema = {
    "architecture": {"type": ["string", "null"]},
    "name": {"type": ["string", "null"]},
    "parameters": _described(_COUNT, "Weights of all tensors."),
    "tensors": _COUNT,
    "unreadable_tensors": _COUNT,
}
_TENSOR: Schema = {
    "name": _TEXT,
    "shape": _list(_COUNT, "numpy's order: the last axis is the fastest."),
    "ne": _list(_COUNT, "ggml's order: the first axis is the fastest."),
    "type": {"type": ["string", "null"], "description": "Name of the ggml type; null for an id that is none."},
    "type_id": _COUNT,
    "rows": _COUNT,
    "row_weights": _COUNT,
    "weights": _COUNT,
    "bytes": {"type": ["integer", "null"], "description": "Stored bytes; null for an unknown type."},
    "file": _described(_COUNT, "Which file of the model holds it, from 0."),
    "offset": _described(_COUNT, "From the start of the file's data section."),
    "start": _described(_COUNT, "From the start of the file."),
    "readable": _FLAG,
    "href": _HREF,
    "data": _HREF,
}
_TENSOR_MORE: Schema = {
    **_base64("name"),
    "original_shape": _list(_COUNT, "The shape before it was stored, where the file tells it."),
    "fault": _object("Why it is not readable.", {"type": _PROBLEM_TYPE, "detail": _TEXT}),
}

SCHEMAS: dict[str, Schema] = {
    "Problem": {
        **_object(
            "What went wrong (RFC 9457). There may be more members, as limit or length.",
            {
                "type": _described(_PROBLEM_TYPE, "Which problem it is: for programs."),
                "title": _TEXT,
                "status": {"type": "integer", "minimum": 400, "maximum": 599},
                "detail": _described(_TEXT, "The thing, the limit and the remedy: for people."),
            },
        ),
        "additionalProperties": True,
        "examples": [
            {
                "type": "/problems/no-such-tensor",
                "title": "No such tensor",
                "status": 404,
                "detail": "the model has no tensor 'x'; the tensor table has all of them.",
            }
        ],
    },
    "Models": _object(
        "Every model on the volume.",
        {"count": _COUNT, "models": _list({"anyOf": [ref("ReadableModel"), ref("UnreadableModel")]})},
    ),
    "ReadableModel": _object(
        "A line of the list of models.",
        {
            **_LISTED,
            "readable": {"const": True},
            **_SUMMARY,
            "types": _map(_COUNT, "Tensors of each type."),
            "warnings": _described(_COUNT, "How many oddities its header has."),
        },
        _base64("id"),
    ),
    "UnreadableModel": _object(
        "A line of the list for a model that cannot be read.",
        {**_LISTED, "readable": {"const": False}, "problem": {"anyOf": [ref("Problem"), {"type": "null"}]}},
        _base64("id"),
    ),
    "Model": _object(
        "One model.",
        {
            "id": _TEXT,
            "href": _HREF,
            "links": _object("Its listings.", {"metadata": _HREF, "tensors": _HREF, "safetensors": _HREF}),
            **_SUMMARY,
            "bytes": _described(_COUNT, "Bytes of its files."),
            "files": _list(ref("File")),
            "metadata_keys": _COUNT,
            "types": _map(
                _object("Sums over the tensors of a type.", {"tensors": _COUNT, "weights": _COUNT, "bytes": _COUNT}),
                "What the model has of each type.",
            ),
            "warnings": _list(_TEXT, "The oddities of its header, in words."),
        },
        _base64("id"),
    ),
    "File": _object(
        "The header of one file.",
        {
            "bytes": _COUNT,
            "version": {"enum": [1, 2, 3]},
            "byte_order": {"enum": ["little", "big"]},
            "alignment": _COUNT,
            "data_start": _described(_COUNT, "Where its data section begins."),
            "tensors": _COUNT,
        },
    ),
    "Metadata": _object(
        "Metadata keys in the file's order.",
        {
            **_OWNER,
            "count": _COUNT,
            "metadata": _list({"anyOf": [ref("ArrayEntry"), ref("StringEntry"), ref("NumberEntry")]}),
        },
        _base64("model"),
    ),
    "ArrayEntry": _object("A key whose value is an array.", {**_ENTRY, **_ARRAY, **_WHOLE}, _base64("key")),
    "StringEntry": _object(
        "A key whose value is a string.", {**_ENTRY, **_STRING, **_WHOLE}, _base64("key") | _base64("value")
    ),
    "NumberEntry": _object("A key whose value is a number or a bool.", {**_ENTRY, **_NUMBER}, _base64("key")),
    "Key": {
        "description": "One metadata key; where the file gives it more than once, the first value, and all in values.",
        "anyOf": [
            _object(
                f"The value is {what}.",
                {**_OWNER, "key": _TEXT, **value},
                {
                    **_base64("model"),
                    **_base64("key"),
                    **more,
                    "values": _list({"anyOf": [ref("ArrayValue"), ref("StringValue"), ref("NumberValue")]}),
                },
            )
            for what, value, more in (
                ("an array, or the slice of it that was asked for", _ARRAY, {}),
                ("a string", _STRING, _base64("value")),
                ("a number or a bool", _NUMBER, {}),
            )
        ],
    },
    "ArrayValue": _object("An array, or a slice of one.", _ARRAY),
    "StringValue": _object("A string.", _STRING, _base64("value")),
    "NumberValue": _object("A number or a bool.", _NUMBER),
    "Value": {
        "description": "An element of an array.",
        "anyOf": [
            _SCALAR,
            _object("A string that is not UTF-8.", {"text": _TEXT, "base64": {"type": "string"}}),
            _list(ref("Value"), "An inner array."),
        ],
    },
    "Tensors": _object(
        "Lines of the tensor table.",
        {
            **_OWNER,
            "count": _described(_COUNT, "All tensors that match, on every page."),
            "tensors": _list(ref("TensorLine")),
        },
        {**_base64("model"), "next": _described(_HREF, "The next page, if there is one.")},
    ),
    "TensorLine": _object("One tensor in a list.", _TENSOR, _TENSOR_MORE),
    "Tensor": _object(
        "One tensor.",
        {**_OWNER, **_TENSOR},
        {
            **_base64("model"),
            **_TENSOR_MORE,
            "same_name": _list(ref("TensorLine"), "All tensors of the name, where the file has it more than once."),
        },
    ),
    "Weights": _object(
        "Weights as JSON.",
        {
            "shape": _list(_COUNT),
            "dtype": {"enum": ["float32", "float16", "float64", "int8", "int16", "int32", "int64"]},
            "data": ref("Nested"),
        },
    ),
    "Nested": {
        "description": "Weights in lists, as deep as the shape is long.",
        "anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}, _list(ref("Nested"))],
    },
    "Status": _object("The state of the process.", {"status": {"enum": ["ok", "ready"]}}),
}
