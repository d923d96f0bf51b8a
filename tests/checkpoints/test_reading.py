"""Every kind of checkpoint gives the same tensors, whole and in slices."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from bireme_worker.checkpoints.errors import MissingTensor, TruncatedFile
from bireme_worker.checkpoints.open import open_checkpoint
from tests.checkpoints.tiny import save_tiny, tiny_llama, write_gguf

Q = "model.layers.1.self_attn.q_proj.weight"
K = "model.layers.0.self_attn.k_proj.weight"


def assert_same(path: Path, expected: dict[str, torch.Tensor]) -> None:
    reader = open_checkpoint(path)
    assert set(reader.tensors) == set(expected)
    for name, tensor in expected.items():
        assert reader.tensors[name].shape == tuple(tensor.shape)
        read = reader.read(name)
        assert read.dtype == reader.tensors[name].dtype
        assert torch.equal(read, tensor), name
    reader.close()


def test_a_single_file_written_by_transformers_reads_back(tmp_path: Path) -> None:
    model = save_tiny(tmp_path)
    assert_same(tmp_path, model.state_dict())


def test_a_sharded_checkpoint_reads_back_through_its_index(tmp_path: Path) -> None:
    model = save_tiny(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert_same(tmp_path, model.state_dict())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_each_float_type_reads_back_as_itself(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {
        "a": torch.randn(5, 7).to(dtype),
        "empty": torch.empty(0, 3, dtype=dtype),
        "one": torch.ones(1).to(dtype),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    assert_same(tmp_path, tensors)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_1", "Q5_0"])
def test_a_gguf_file_reads_back_in_hugging_face_row_order(tmp_path: Path, kind: str) -> None:
    expected = write_gguf(tmp_path / "m.gguf", tiny_llama(), kind=kind)
    reader = open_checkpoint(tmp_path)
    assert set(reader.tensors) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(reader.read(name).float(), tensor), name
    reader.close()


@pytest.mark.parametrize("kind", ["safetensors", "F32", "Q4_1"])
@pytest.mark.parametrize("name", [Q, K, "model.layers.0.mlp.down_proj.weight", "model.embed_tokens.weight"])
def test_any_slice_equals_the_same_slice_of_the_whole(tmp_path: Path, kind: str, name: str) -> None:
    if kind == "safetensors":
        save_tiny(tmp_path)
    else:
        write_gguf(tmp_path / "m.gguf", tiny_llama(), kind=kind)
    reader = open_checkpoint(tmp_path)
    whole = reader.read(name)
    rows, columns = whole.shape
    for cut in [
        (slice(0, rows // 2),),
        (slice(rows // 3, rows),),
        (slice(None), slice(0, columns // 2)),
        (slice(3, 9), slice(5, 41)),
        (slice(7, 7), slice(None)),
    ]:
        part = reader.read(name, cut)
        assert torch.equal(part, whole[cut])
        assert part.is_contiguous()
    reader.close()


def test_a_vector_can_be_sliced(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", model := tiny_llama(), kind="Q4_1")
    reader = open_checkpoint(tmp_path / "m.gguf")
    norm = model.state_dict()["model.norm.weight"]
    assert torch.equal(reader.read("model.norm.weight", (slice(10, 20),)), norm[10:20])
    reader.close()


@pytest.mark.parametrize("cut", [(slice(0, 65),), (slice(-3, None),), (slice(0, 8, 2),), (slice(None),) * 3])
def test_a_slice_over_the_border_is_refused_instead_of_clamped(tmp_path: Path, cut: tuple[slice, ...]) -> None:
    save_tiny(tmp_path)
    reader = open_checkpoint(tmp_path)
    with pytest.raises(ValueError, match="q_proj"):
        reader.read(Q, cut)
    reader.close()


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_an_unknown_name_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    save_tiny(tmp_path) if kind == "safetensors" else write_gguf(tmp_path / "m.gguf", tiny_llama())
    reader = open_checkpoint(tmp_path)
    with pytest.raises(MissingTensor, match=r"model\.layers\.9\.gone"):
        reader.read("model.layers.9.gone")
    reader.close()


def test_tensors_stay_valid_after_close(tmp_path: Path) -> None:
    model = save_tiny(tmp_path)
    reader = open_checkpoint(tmp_path)
    read = reader.read(Q)
    reader.close()
    (tmp_path / "model.safetensors").unlink()
    assert torch.equal(read, model.state_dict()[Q])


def test_writing_into_a_read_tensor_changes_neither_the_file_nor_the_next_read(tmp_path: Path) -> None:
    model = save_tiny(tmp_path)
    reader = open_checkpoint(tmp_path)
    reader.read(Q).zero_()
    assert torch.equal(reader.read(Q), model.state_dict()[Q])
    reader.close()
    assert_same(tmp_path, model.state_dict())


def test_a_file_that_is_cut_after_opening_is_an_error_and_no_crash(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    reader = open_checkpoint(tmp_path)
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.truncate(5000)
    with pytest.raises(TruncatedFile, match="5000 bytes"):
        reader.read("model.norm.weight")
    reader.close()
