"""The GGUF reader: the same as the `gguf` library reads, of whole, cut, odd and split files."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from engines.artifacts.gguf import read
from engines.artifacts.gguf_types import FILE_TYPES, TENSOR_TYPES
from engines.artifacts.opening import BadFile
from engines.artifacts.sample_gguf import write_gguf
from engines.spec import ArtifactHeader
from tests.realengine.tiny_gguf import make_tiny_gguf

Type = gguf.GGMLQuantizationType


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def refusal(path: Path) -> str:
    with pytest.raises(BadFile) as caught:
        read(path)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


# ----------------------------------------------------------------------------------------- held against the library


def test_the_tables_are_the_librarys() -> None:
    assert {number: (kind.name, kind.block, kind.bytes) for number, kind in TENSOR_TYPES.items()} == {
        int(kind): (kind.name, *gguf.GGML_QUANT_SIZES[kind]) for kind in Type
    }
    assert {number: name.partition("_")[2] for number, name in [(int(t), t.name) for t in gguf.LlamaFileType]} == {
        **FILE_TYPES,
        int(gguf.LlamaFileType.GUESSED): "",
    }


def write(path: Path, fill: Callable[[Any], None], endianess: Any = gguf.GGUFEndian.LITTLE) -> None:
    writer = gguf.GGUFWriter(path, "qwen3", endianess=endianess)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def everything(writer: Any) -> None:
    """A value of each type, a vocabulary, tensors of many types."""
    writer.add_name("A model")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_token_list([f"token {index}" for index in range(3000)])
    writer.add_token_scores([0.5] * 3000)
    writer.add_array("nested", [[1, 2], [3]])
    writer.add_uint8("u8", 1)
    writer.add_int8("i8", -1)
    writer.add_uint16("u16", 1)
    writer.add_int16("i16", -1)
    writer.add_int32("i32", -1)
    writer.add_uint64("u64", 2**40)
    writer.add_int64("i64", -1)
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.5)
    writer.add_bool("bool", True)
    writer.add_string("text", "x" * 5000)
    for kind in Type:
        _, size = gguf.GGML_QUANT_SIZES[kind]
        writer.add_tensor(f"{kind.name}.weight", np.zeros((3, size * 2), np.uint8), raw_dtype=kind)


def test_a_file_with_everything_is_what_the_library_reads(path: Path) -> None:
    write(path, everything)
    expect_as_the_library(path, name="A model", quantization="Q4_K_M")


def test_a_big_endian_file_is_what_the_library_reads(path: Path) -> None:
    def fill(writer: Any) -> None:
        writer.add_name("big")
        writer.add_tensor("a", np.zeros((4, 32), np.float32))

    write(path, fill, gguf.GGUFEndian.BIG)
    expect_as_the_library(path, name="big", quantization="F32")


def test_an_alignment_of_its_own_is_kept(path: Path) -> None:
    def fill(writer: Any) -> None:
        writer.add_custom_alignment(4096)
        writer.add_tensor("a", np.zeros((4, 33), np.float32))
        writer.add_tensor("b", np.zeros((1,), np.float16))

    write(path, fill)
    expect_as_the_library(path, name="", quantization="F32+F16")


def test_the_model_that_llama_cpp_runs_in_the_tests_is_read(path: Path) -> None:
    make_tiny_gguf(path)
    header = expect_as_the_library(path, name="tiny-1", quantization="F32")
    assert header.architecture == "llama"


def test_our_own_sample_is_read_by_the_library(path: Path) -> None:
    write_gguf(path, tensors=3, file_type=7)
    expect_as_the_library(path, name="qwen3.8-flash-next", quantization="Q8_0")


def expect_as_the_library(path: Path, *, name: str, quantization: str) -> ArtifactHeader:
    header, library = read(path), gguf.GGUFReader(path)
    assert header.format == "gguf"
    assert header.version == library.fields["GGUF.version"].parts[-1][0]
    assert header.objects == len(library.tensors)
    assert header.architecture == library.fields["general.architecture"].contents()
    assert header.expected_size == max(tensor.data_offset + tensor.n_bytes for tensor in library.tensors)
    assert (header.model, header.quantization) == (name, quantization)
    assert header.whole
    os.truncate(path, header.expected_size - 1)
    assert read(path).fault.startswith(f"it is truncated: {header.expected_size - 1} bytes")
    return header


# ------------------------------------------------------------------------------------------------- odd ones


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a GGUF file: empty"),
        (b"GGUF", "truncated: 4 bytes, a header has at least 24"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "unknown version 1, expected 2 or 3"),
        (b"GGUF" + struct.pack("<IQQ", 4, 0, 0), "unknown version 4"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1), "truncated: 24 bytes"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<QI", 0, 99), "of unknown type 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<QI", 0, 9), "claims 9 dimensions"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<QIQIQ", 0, 1, 2**63, 0, 0), "claims to end at"),
    ],
)
def test_what_is_no_gguf_is_refused(path: Path, content: bytes, words: str) -> None:
    path.write_bytes(content)
    assert words in refusal(path)


@pytest.mark.parametrize("alignment", [0, 2**20 + 1, 2**63, 2**64 - 1])
def test_an_alignment_that_no_file_can_have_is_refused(path: Path, alignment: int) -> None:
    key = b"general.alignment"
    keys = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 10, alignment)
    tensor = struct.pack("<QIQIQ", 0, 1, 1, 0, 0)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + keys + tensor)
    assert f"general.alignment is {alignment}" in refusal(path)


def test_a_key_of_the_wrong_type_is_refused(path: Path) -> None:
    key = b"general.name"
    path.write_bytes(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, len(key)) + key + struct.pack("<II", 4, 1))
    assert "general.name is of type 4, expected text" in refusal(path)


def test_a_model_without_tensors_is_whole_where_its_metadata_ends(path: Path) -> None:
    write_gguf(path, tensors=0)
    header = read(path)
    assert (header.objects, header.whole, header.expected_size <= header.size) == (0, True, True)


def test_a_name_that_cant_be_printed_is_escaped(path: Path) -> None:
    write_gguf(path, name="a\nb\x1b[31m" + "x" * 1000)
    assert read(path).model.isprintable()
    assert len(read(path).model) == 256


# ------------------------------------------------------------------------------------------------- split


def split(folder: Path, count: int = 3) -> list[Path]:
    paths = [folder / f"m-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    for number, path in enumerate(paths):
        write_gguf(path, split=(number, count))
    return paths


def test_all_files_of_a_split_model_are_looked_at(tmp_path: Path) -> None:
    first, *others = split(tmp_path)
    header = read(first)
    assert [part.name for part in header.parts] == [path.name for path in others]
    assert header.whole


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.unlink(), "does not exist"),
        (lambda path: os.truncate(path, path.stat().st_size - 1), "truncated"),
        (lambda path: write_gguf(path, split=(2, 3)), "it is part 3 of 3, expected part 2 of 3"),
        (lambda path: write_gguf(path, split=(1, 4)), "it is part 2 of 4, expected part 2 of 3"),
        (write_gguf, "it is part 1 of 0"),
        (lambda path: path.write_bytes(b"x"), "not a GGUF file"),
    ],
)
def test_a_split_model_with_a_missing_or_wrong_file_is_not_whole(
    tmp_path: Path, damage: Callable[[Path], object], words: str
) -> None:
    first, second, _ = split(tmp_path)
    damage(second)
    header = read(first)
    assert not header.whole
    assert f"its part {second.name} isn't whole: " in header.fault
    assert words in header.fault


def test_a_split_model_of_more_files_than_any_is_refused_before_they_are_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-60000.gguf"
    write_gguf(path, split=(0, 60000))
    assert "it claims 60000 parts" in refusal(path)


def test_a_further_file_of_a_split_model_is_no_model(tmp_path: Path) -> None:
    _, second, _ = split(tmp_path)
    assert "part 2 of 3 of a split GGUF, expected its first file" in refusal(second)


def test_a_split_model_under_a_name_that_names_no_others_is_refused(tmp_path: Path) -> None:
    first, *_ = split(tmp_path)
    first.rename(tmp_path / "m.gguf")
    assert "must be named …-00001-of-00003.gguf" in refusal(tmp_path / "m.gguf")
