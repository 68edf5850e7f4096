"""Datasets: sequences of examples from lists and from .jsonl, .json and .csv files."""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...runtime.protocol.errors import RequestError, json_fault

Example = Mapping[str, Any]
Dataset = Iterable[Example] | str | os.PathLike[str]


def read_dataset(dataset: Dataset) -> list[dict[str, Any]]:
    """Return the examples of a dataset: mappings, or the rows of a .jsonl, .json (a list) or .csv (with a header) file.

    Values of a .csv file are strings. Raises RequestError naming the file, line or index of what is no example.
    """
    if isinstance(dataset, str | os.PathLike):
        return _read_file(Path(dataset))
    if isinstance(dataset, Mapping) or not isinstance(dataset, Iterable):
        raise RequestError(
            f"dataset must be a sequence of mappings or the path of a .jsonl, .json or .csv file, got {dataset!r}",
            param="dataset",
        )
    return [example_of(value, f"dataset[{index}]") for index, value in enumerate(dataset)]


def example_of(value: Any, where: str) -> dict[str, Any]:
    """Return the example as a dict. Raises RequestError, which names the place `where`, for what is none."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise RequestError(f"{where} must be a mapping with names as keys, got {value!r}", param="dataset")
    return dict(value)


def digest(value: Any) -> str:
    """Return a short digest of an example, which is the same in every process."""
    text = msgspec.json.encode(value, order="deterministic", enc_hook=repr)
    return hashlib.sha256(text).hexdigest()[:16]


def inputs_of(example: Example, parameters: Sequence[str], required: Sequence[str], index: int) -> dict[str, Any]:
    """Return the values of an example that are arguments of a program; the others are for the metric.

    Raises RequestError for a required argument that the example lacks.
    """
    if missing := [name for name in required if name not in example]:
        known = ", ".join(map(repr, example))
        raise RequestError(
            f"example {index} has no value for the program's argument {missing[0]!r}; it has {known}", param="dataset"
        )
    return {name: example[name] for name in parameters if name in example}


def _read_file(path: Path) -> list[dict[str, Any]]:
    try:
        if path.suffix == ".csv":
            with path.open(newline="", encoding="utf-8-sig") as file:
                rows = csv.DictReader(file, strict=True)
                return [_row(row, f"{path}, line {rows.line_num}") for row in rows]
        if path.suffix == ".jsonl":
            lines = enumerate(path.read_bytes().splitlines(), start=1)
            return [_decoded(line, path, number) for number, line in lines if line.strip()]
        if path.suffix == ".json":
            values = _parsed(path.read_bytes(), path)
            if not isinstance(values, list):
                raise RequestError(f"{path} must hold a list of objects", param="dataset")
            return [example_of(value, f"{path}, entry {index}") for index, value in enumerate(values)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RequestError(f"the dataset {str(path)!r} cannot be read: {error}", param="dataset") from None
    raise RequestError(f"a dataset's file ends in .jsonl, .json or .csv, got {str(path)!r}", param="dataset")


def _decoded(line: bytes, path: Path, number: int) -> dict[str, Any]:
    return example_of(_parsed(line, path, number), f"{path}, line {number}")


def _parsed(text: bytes, path: Path, first_line: int = 1) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        fault = json_fault(text, error, first_line=first_line)
        raise RequestError(f"{path} is not JSON: {fault}", param="dataset") from None


def _row(row: dict[Any, Any], where: str) -> dict[str, Any]:
    if None in row or None in row.values():
        raise RequestError(f"{where} has another number of values than the header", param="dataset")
    return row
