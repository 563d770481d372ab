"""Messages of the command, in which functions name their own arguments."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import zarrs_cuda
from zarrs_cuda._words import by_arguments, in_words_of_python


@pytest.mark.parametrize(
    ("function", "said", "words"),
    [
        (
            zarrs_cuda.reencode,
            "out holds a Zarr group. name another OUT, or replace its arrays with --overwrite",
            "out holds a Zarr group. name another `destination`, or replace its arrays with `overwrite=True`",
        ),
        (
            zarrs_cuda.reencode,
            "run the same command with --resume. --shard-size, of OUT/a (IN): IN/b",
            "make the same call with `resume=True`. `shard_size`, of `destination`/a (`source`): `source`/b",
        ),
        (
            zarrs_cuda.reencode,
            "make each with --part I/3; or begin again by --prepare with --overwrite",
            "make each with `part=(I, 3)`; or begin again by `client` with `overwrite=True`",
        ),
        (
            zarrs_cuda.reencode,
            "finish it by `zarrs-cuda reencode /IN /OUT --part I/3`; `zarrs-cuda status OUT`",
            "finish it by `zarrs-cuda reencode /IN /OUT --part I/3`; `zarrs-cuda status DESTINATION`",
        ),
        (
            zarrs_cuda.reencode,
            "let zarr-python decode it: `python -m zarrs_cuda reencode --decode-with zarr-python IN OUT`",
            'let zarr-python decode it: `decode_with="zarr-python"`',
        ),
        (
            zarrs_cuda.reencode,
            "error: invalid value 'lzw' for '--codec <CODEC>': no\n\nFor more information, try '--help'.",
            "invalid value 'lzw' for `codec`: no",
        ),
        (
            zarrs_cuda.reencode,
            "error: the argument '--keep-going' cannot be used with '--overwrite'\n\nUsage: zarrs-cuda …",
            "the argument `keep_going=True` cannot be used with `overwrite=True`",
        ),
        (
            zarrs_cuda.reencode,
            "/data/OUT/IN.zarr and ./--verify with --index and --backend; OUT.",
            "/data/OUT/IN.zarr and ./--verify with --index and `zarrs_cuda.backend`; `destination`.",
        ),
        (zarrs_cuda.reshard, "--index is end", "`index` is end"),
        (
            zarrs_cuda.pyramid,
            "name another OUT. --start 0, --axis, --overwrite",
            "name another `image`. `start` 0, `axes`, --overwrite",
        ),
    ],
)
def test_arguments_have_the_names_of_python(function: Any, said: str, words: str) -> None:
    assert by_arguments(said, inspect.signature(function).parameters) == words


def test_paths_that_were_given_stay() -> None:
    parameters = inspect.signature(zarrs_cuda.reencode).parameters
    said = "OUT/new holds an array. name another OUT, not IN"
    words = "OUT/new holds an array. name another `destination`, not `source`"
    assert by_arguments(said, parameters, ["IN", "OUT/new"]) == words.replace("`source`", "IN")
    assert by_arguments(said, parameters, ["a", "o"]) == words.replace("OUT/new", "`destination`/new")


@pytest.mark.parametrize("error", [ValueError, RuntimeError])
def test_errors_keep_their_kind(error: type[Exception]) -> None:
    @in_words_of_python
    def fails(source: str, *, overwrite: bool = False) -> None:
        raise error(f"{source}: give --overwrite", overwrite)

    with pytest.raises(error) as caught:
        fails("./--overwrite", overwrite=False)
    assert caught.value.args == ("./--overwrite: give `overwrite=True`", False)
    assert fails.__name__ == "fails"

    @in_words_of_python
    def another() -> None:
        raise OSError(5, "--overwrite")

    with pytest.raises(OSError, match="--overwrite"):
        another()
