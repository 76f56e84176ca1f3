"""Write files atomically, and read them through a declared schema, since others may have made them."""

from __future__ import annotations

import json
import math
import os
import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar

from specviz.errors import SpecvizError, TraceError
from specviz.paths import expanded

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Kind = TypeVar("Kind")
HALF = re.compile("[\ud800-\udfff]")  # lone surrogates, which UTF-8 cannot hold
PART = re.compile(r"\.[0-9a-f]{16}\.part")  # names of temporary files
LIMIT = 64 << 20  # maximum bytes of a JSON file
WORDS = {  # pydantic's types of fault
    "dict_type": "should be an object",
    "list_type": "should be a list",
    "string_type": "should be a string",
    "int_type": "should be a whole number",
    "float_type": "should be a number",
    "bool_type": "should be true or false",
    "too_short": "is too short",
    "too_long": "is too long",
    "string_too_short": "is too short",
    "string_too_long": "is too long",
}


def exists(path: Path) -> bool:
    """Whether a file or folder exists; False for a name that no file can have."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a block a temporary path next to `path` to write, then replace `path` with it.

    If the block fails, `path` stays as it was, and no temporary file is left.
    """
    part = path.with_name(f".{token_hex(8)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        os.replace(part, path)
    finally:
        with suppress(OSError):
            part.unlink()


def temporary(path: Path) -> bool:
    """Whether a path has the name of a temporary file of `replacing`; a killed process leaves such files."""
    return PART.fullmatch(path.name) is not None


def write_bytes(path: Path, content: bytes, force: bool = False) -> Path:
    """Write a file under a temporary name, wait until it is on the disk, then rename it.

    Raises
    ------
    TraceError
        If it exists (unless `force`) or cannot be written.
    """
    path = expanded(path, TraceError)
    try:
        if path.exists() and not force:
            raise TraceError(f"{path} exists: choose another path, or overwrite it with --force (force=True)")
        with replacing(path) as part, open(part, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise TraceError(f"cannot write {path}: {error.strerror or error}") from None
    return path


def write_text(path: Path, text: str, force: bool = False) -> Path:
    """Write text as `write_bytes`, in UTF-8; lone surrogates, which some models write, are kept."""
    return write_bytes(path, text.encode("utf8", "surrogatepass"), force)


def plain_data(value: Any) -> Any:
    """Data as JSON can hold it; NaN, which many parsers reject, and infinite numbers become None."""
    if is_dataclass(value):  # an estimate, without the draws, which do not count in comparisons
        value = {each.name: getattr(value, each.name) for each in fields(value) if each.compare}
    if isinstance(value, dict):
        return {str(k): plain_data(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(v) for v in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---------------------------------------------------------------- reading


_adapters: dict[type, TypeAdapter[Any]] = {}


def _adapter(kind: type[Kind]) -> TypeAdapter[Kind]:
    if kind not in _adapters:
        from pydantic import TypeAdapter

        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def checked(
    kind: type[Kind], data: object, where: str, remedy: str = "", error: type[SpecvizError] = TraceError
) -> Kind:
    """`data`, if it has the declared form; keys that the form does not name are kept.

    Parameters
    ----------
    kind : type
        A `TypedDict`, or any type that pydantic validates. Numbers in quotation marks are rejected.
    where : str
        The file, for the error message.
    remedy : str
        Advice to add to the error message.
    error : type
        Class of the error to raise.

    Raises
    ------
    SpecvizError
        If it has another form; the message names the file, the place in it, the fault and the remedy.
    """
    from pydantic import ValidationError

    after = remedy and f": {remedy}"
    try:
        _adapter(kind).validate_python(data, strict=True)
    except ValidationError as errors:
        fault = errors.errors(include_url=False, include_context=False)[0]
        raise error(f"{where}{_fault(data, fault)}{after}") from None
    except RecursionError:
        raise error(f"{where} is nested too deeply{after}") from None
    return data  # type: ignore[return-value]


def _fault(data: object, fault: Mapping[str, Any]) -> str:
    """Describe the place and the fault: ", cells[3].value should be a valid number, not 'x'"."""
    place, value = "", data
    for key in fault["loc"]:  # names of union members are among the keys, but not in the data
        if isinstance(value, dict) and key in value:
            place, value = f"{place}.{key}" if place else str(key), value[key]
        elif isinstance(value, list) and isinstance(key, int) and key < len(value):
            place, value = f"{place}[{key}]", value[key]
    place = place and f", {place[:120]}"
    if fault["type"] == "missing":
        return f"{place} lacks '{str(fault['loc'][-1])[:60]}'"
    if fault["loc"][-1:] == ("[key]",):
        return f"{place} is not a key of this object"
    words = WORDS.get(fault["type"]) or str(fault["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    words = words[:160]
    got = "" if fault["type"] == "value_error" or "too_" in fault["type"] else f", not {shown(value)}"
    return f"{place} {words[:1].lower()}{words[1:]}{got}"


def whole_text(text: str) -> str:
    """Validate that UTF-8 can hold a text.

    Raises
    ------
    ValueError
        If it holds a lone surrogate.
    """
    if HALF.search(text):
        raise ValueError("holds half a character (a lone surrogate)")
    return text


def shown(value: object) -> str:
    """Describe a value: a number or a short text as it is, anything else by its type."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value) if value != value or abs(value) < 1e18 else "a huge number"
    if isinstance(value, str):
        return f"{value[:40]!r}" if len(value) <= 40 else "a long text"
    names = {dict: "an object", list: "a list", type(None): "null"}
    return names.get(type(value), f"something of type {type(value).__name__}")


def parsed(text: str | bytes, where: str, remedy: str = "", error: type[SpecvizError] = TraceError) -> Any:
    """Parse JSON; lone surrogates are kept.

    Raises
    ------
    SpecvizError
        If it is not JSON, or is nested too deeply for Python to read.
    """
    after = remedy and f": {remedy}"
    try:
        if isinstance(text, bytes):
            text = text.decode("utf8", "surrogatepass")
        return json.loads(text)
    except UnicodeDecodeError:
        raise error(f"{where} is not UTF-8 text{after}") from None
    except RecursionError:
        raise error(f"{where} is nested too deeply{after}") from None
    except json.JSONDecodeError as fault:
        place = (f"line {fault.lineno}, " if "\n" in text else "") + f"column {fault.colno}"
        raise error(f"{where} is not JSON ({fault.msg}, {place}){after}") from None
    except ValueError:  # a number with thousands of digits
        raise error(f"{where} has a number that is too long{after}") from None


def read_json(path: Path, kind: type[Kind], remedy: str = "", error: type[SpecvizError] = TraceError) -> Kind:
    """Read a JSON file of a declared form.

    Raises
    ------
    SpecvizError
        If it is missing, longer than `LIMIT`, not JSON, or of another form.
    """
    try:
        if path.stat().st_size > LIMIT:
            raise error(f"{path} is larger than {LIMIT >> 20} MiB{remedy and f': {remedy}'}")
        content = path.read_bytes()
    except (OSError, ValueError) as fault:
        raise error(f"cannot read {path}: {getattr(fault, 'strerror', None) or fault}") from None
    return checked(kind, parsed(content, str(path), remedy, error), str(path), remedy, error)


def read_json_lines(
    path: Path, kind: type[Kind], remedy: str = "", error: type[SpecvizError] = TraceError
) -> list[Kind]:
    """Read a file of JSON lines of a declared form; empty lines are skipped.

    Raises
    ------
    SpecvizError
        If it cannot be read, or a line is not JSON or of another form; the message names the line.
    """
    try:
        lines = path.read_bytes().removeprefix(BOM_UTF8).split(b"\n")
    except (OSError, ValueError) as fault:
        raise error(f"cannot read {path}: {getattr(fault, 'strerror', None) or fault}") from None
    places = ((f"{path}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip())
    return [checked(kind, parsed(line, where, remedy, error), where, remedy, error) for where, line in places]
