"""Typed access to decoded JSON, with errors that name the place."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from ptxgen.device.expression import Expression, parse_expression
from ptxgen.errors import LaunchError, UnknownNameError


class Reader:
    """One JSON object; every getter raises LaunchError naming `where` and what was expected.

    `finish` refuses the keys that nobody asked for, so a misspelt key is an error and not a default.
    """

    def __init__(self, data: object, where: str) -> None:
        if not isinstance(data, Mapping):
            raise LaunchError(f"{where}: expected an object, got {_shown(data)}")
        self._data = data
        self._asked: set[str] = set()
        self.where = where

    def has(self, key: str) -> bool:
        """Whether `key` is present and not null."""
        self._asked.add(key)
        return self._data.get(key) is not None

    def text(self, key: str) -> str:
        """A string that is not empty."""
        value = self._get(key)
        if not isinstance(value, str) or not value:
            raise self._wrong(key, "a name", value)
        return value

    def choice(self, key: str, known: Sequence[str], default: str | None = None) -> str:
        """One of the strings in `known`."""
        value = self._get(key, default)
        if value not in known:
            raise LaunchError(f"{self.where}.{key}: {UnknownNameError(key, value, known)}")
        return str(value)

    def boolean(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def optional_boolean(self, key: str) -> bool | None:
        """true or false; None where the key is absent."""
        return self.boolean(key, default=False) if self.has(key) else None

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number."""
        value = self._get(key, default)
        if not _is_integer(value):
            raise self._wrong(key, "a whole number", value)
        return value

    def optional_integer(self, key: str) -> int | None:
        """A whole number, or None where the key is absent."""
        return self.integer(key) if self.has(key) else None

    def number(self, key: str) -> float:
        """A floating-point number."""
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number", value)
        return float(value)

    def integers(self, key: str, count: int | None = None, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """A list of whole numbers, `count` of them if given."""
        return self._whole_numbers(key, self._get(key, default), count)

    def integer_lists(self, key: str, count: int) -> tuple[tuple[int, ...], ...]:
        """A list of lists of `count` whole numbers; empty where the key is absent."""
        return tuple(
            self._whole_numbers(f"{key}[{index}]", item, count)
            for index, item in enumerate(self._list(key, self._get(key, ()), None))
        )

    def expression(self, key: str, default: Expression | None = None) -> Expression:
        """A size that may depend on the problem."""
        return parse_expression(self._get(key, default), f"{self.where}.{key}")

    def expressions(self, key: str, count: int) -> tuple[Expression, ...]:
        """A list of `count` sizes."""
        items = self._list(key, self._get(key), count)
        return tuple(parse_expression(item, f"{self.where}.{key}[{i}]") for i, item in enumerate(items))

    def hexadecimal(self, key: str) -> bytes:
        """Bytes written as hexadecimal digits."""
        value = self._get(key)
        if not isinstance(value, str) or not re.fullmatch(r"(?:[0-9a-fA-F]{2})+", value):
            raise self._wrong(key, "an even number of hexadecimal digits", value)
        return bytes.fromhex(value)

    def nested(self, key: str) -> Reader:
        """A nested object."""
        return Reader(self._get(key), f"{self.where}: {key}")

    def nested_list(self, key: str, default: tuple[()] | None = None) -> list[Reader]:
        """A list of nested objects."""
        items = self._list(key, self._get(key, default), None)
        return [Reader(item, f"{self.where}: {key}[{index}]") for index, item in enumerate(items)]

    def finish(self) -> None:
        """Refuse keys that were not asked for."""
        for key in self._data:
            if key not in self._asked:
                raise LaunchError(f"{self.where}: {UnknownNameError('key', key, sorted(self._asked))}")

    def _get(self, key: str, default: object = None) -> object:
        self._asked.add(key)
        value = self._data.get(key)
        if value is None:
            value = default
        if value is None:
            raise LaunchError(f"{self.where}: {key!r} is missing")
        return value

    def _whole_numbers(self, key: str, value: object, count: int | None) -> tuple[int, ...]:
        items = self._list(key, value, count)
        if not all(_is_integer(item) for item in items):
            raise self._wrong(key, "whole numbers", value)
        return tuple(int(str(item)) for item in items)

    def _list(self, key: str, value: object, count: int | None) -> Sequence[object]:
        if not isinstance(value, list | tuple):
            raise self._wrong(key, "a list", value)
        if count is not None and len(value) != count:
            raise self._wrong(key, f"{count} items", value)
        return value

    def _wrong(self, key: str, wanted: str, value: object) -> LaunchError:
        return LaunchError(f"{self.where}.{key}: expected {wanted}, got {_shown(value)}")


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: object) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 60 else f"{text[:57]}..."
