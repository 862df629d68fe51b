"""Spools, the rows of a source in one file on disk: used again, renewed when files change, never half."""

import gc
import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from source_rows import ROWS, assert_rows, joined, write_table

from finitegp import DataError
from finitegp.atomic import temporary_file
from finitegp.data import ArraySource, NpySource, ScaledSource, Scaling, as_source, open_spool, spool
from finitegp.data.scaling import Standardizer
from finitegp.data.spool import spool_temporarily
from finitegp.tables.source import TableSource


class TestSpool:
    def test_is_used_again_until_its_files_change(self, tmp_path, arrays):
        files = tmp_path / "files"
        files.mkdir()
        cache = tmp_path / "cache"
        calls = []

        def spooled():
            table = TableSource(write_table(files, arrays), ["s", "t"], weights="w", counts="n", chunk_size=100)
            return spool(table, cache, progress=lambda *seen: calls.append(seen))

        first = spooled()
        # Chunks end where row groups and files end.
        assert calls[-1] == (ROWS, ROWS)
        assert [done for done, _ in calls] == sorted(done for done, _ in calls)
        calls.clear()
        again = spooled()  # written again: another time, the same contents
        assert not calls
        assert again.note == ""
        assert again.manifest == first.manifest
        arrays[0][321, 1] += 1.0
        changed = spooled()
        assert calls
        assert "part-1.parquet has other contents" in changed.note
        assert_rows(joined(changed), arrays, np.float32)
        assert len(list(cache.glob("rows-*"))) == 1

    def test_of_other_rows_is_not_overwritten(self, tmp_path, arrays):
        spool(arrays, tmp_path)
        with pytest.raises(DataError, match=r"cannot be compared.*overwrite=True"):
            spool(arrays, tmp_path)
        changed = [array[:100] for array in arrays]
        assert spool(tuple(changed), tmp_path, overwrite=True).num_data == 100

    def test_other_columns_or_scaling_are_other_rows(self, tmp_path, arrays):
        files = tmp_path / "files"
        files.mkdir()
        table = TableSource(write_table(files, arrays), ["s", "t"], weights="w", counts="n")
        spool(ScaledSource(table, Scaling.measure(table)), tmp_path / "cache")
        with pytest.raises(DataError, match="other rows"):
            spool(table, tmp_path / "cache")
        with pytest.raises(DataError, match="other rows"):
            spool(TableSource(files, "s"), tmp_path / "cache")

    @pytest.mark.parametrize("damage", ["flip", "truncate", "lengthen", "remove"])
    def test_a_damaged_file_is_found(self, tmp_path, arrays, damage):
        path = spool(arrays, tmp_path)._file.path
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 0x10
        if damage == "remove":
            path.unlink()
        else:
            size = len(content)
            path.write_bytes({"flip": content, "truncate": content[:-1], "lengthen": content + b"x"}[damage])
            assert path.stat().st_size != size or damage == "flip"
        message = {"flip": "is damaged: its checksum", "remove": "cannot be read"}.get(damage, "cut off or changed")
        with pytest.raises(DataError, match=message):
            open_spool(tmp_path)

    @pytest.mark.parametrize(
        "change",
        [
            {"num_data": 10**15},
            {"input_dim": 10**12},
            {"input_dim": "3"},
            {"file": "../rows.bin"},
            {"input_dtype": "object"},
            {"format": "another"},
        ],
    )
    def test_a_damaged_manifest_is_found(self, tmp_path, arrays, change):
        spool(arrays, tmp_path)
        path = tmp_path / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        with pytest.raises(DataError):
            open_spool(tmp_path)
        path.write_text(path.read_text()[:-20])
        with pytest.raises(DataError, match="cannot be read"):
            open_spool(tmp_path)

    def test_an_interrupted_spool_leaves_nothing(self, tmp_path, arrays):
        def interrupt(done, _):
            if done > 100:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            spool(as_source(arrays, chunk_size=60), tmp_path, progress=interrupt)
        assert [path.name for path in tmp_path.iterdir()] in ([], ["lock"])
        with pytest.raises(DataError, match="holds no whole spool"):
            open_spool(tmp_path)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    @pytest.mark.parametrize("had_one", [False, True])
    def test_a_killed_spool_is_not_used(self, tmp_path, arrays, had_one):
        shorter = tuple(array[:50] for array in arrays)
        if had_one:
            spool(shorter, tmp_path)
        child = os.fork()
        if child == 0:
            spool(
                as_source(arrays, chunk_size=60),
                tmp_path,
                overwrite=True,
                progress=lambda done, _: os._exit(7) if done > 100 else None,
            )
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert len(list(tmp_path.glob("*.part"))) == 1  # it was in the middle of writing
        if had_one:
            assert_rows(joined(open_spool(tmp_path)), shorter, np.float32)
        else:
            with pytest.raises(DataError, match="holds no whole spool"):
                open_spool(tmp_path)
        assert_rows(joined(spool(arrays, tmp_path, overwrite=True)), arrays, np.float32)
        assert not list(tmp_path.glob("*.part"))

    def test_unfinished_files_of_others_stay(self, tmp_path, arrays):
        (tmp_path / "mine.part").write_text("half of a download")
        spool(arrays, tmp_path)
        assert (tmp_path / "mine.part").read_text() == "half of a download"

    def test_refuses_columns_that_float32_would_spoil(self, tmp_path, arrays):
        inputs = arrays[0].copy()
        inputs[:, 1] = 1.7e15 + 1e6 * inputs[:, 1]
        source = ArraySource(inputs, arrays[1], column_names=["a", "time", "c"])
        with pytest.raises(DataError, match=r"too coarse for the columns 'time'.*standardise"):
            spool(source, tmp_path / "raw")
        assert spool(source, tmp_path / "wide", input_dtype="float64").num_data == ROWS
        scaled = joined(spool(ScaledSource(source, Scaling.measure(source)), tmp_path / "scaled"))[0].numpy()
        np.testing.assert_allclose(scaled, Standardizer.fit(inputs).transform(inputs), rtol=1e-6, atol=1e-7)
        inputs[7, 2] = 1e39
        with pytest.raises(DataError, match=r"row 7, column 2 \('c'\) is 1e\+39, too large"):
            spool(ArraySource(inputs, arrays[1], column_names=["a", "b", "c"]), tmp_path / "large")

    def test_a_temporary_one_goes_with_its_source(self, arrays):
        source = spool_temporarily(arrays)
        directory = source.directory
        assert_rows(joined(source), arrays, np.float32)
        del source
        gc.collect()
        assert not directory.exists()

    def test_a_temporary_one_stays_while_other_chunks_of_it_are_read(self, arrays):
        source = spool_temporarily(arrays).with_chunks(7)
        gc.collect()
        assert_rows(joined(source), arrays, np.float32)

    def test_refuses_chunks_that_differ(self, tmp_path):
        chunks = [(torch.zeros(3, 2), torch.zeros(3)), (torch.zeros(2, 2), torch.zeros(2, 2))]
        with pytest.raises(DataError, match="chunk from row 3 on has 2 inputs, 2 targets"):
            spool(chunks, tmp_path)
        counted = [(*chunks[0], None, torch.ones(3)), chunks[0]]
        with pytest.raises(DataError, match=r"chunk from row 3 on has .* no weights and no counts, unlike"):
            spool(counted, tmp_path)

    def test_a_column_of_weights_is_not_one_of_counts(self, tmp_path, arrays):
        for name, array in zip(("inputs", "targets", "numbers"), arrays, strict=False):
            np.save(tmp_path / f"{name}.npy", array)
        paths = [tmp_path / f"{name}.npy" for name in ("inputs", "targets", "numbers")]
        weighted = spool(NpySource(*paths), tmp_path / "cache")
        assert weighted.weights is not None
        assert weighted.counts is None
        with pytest.raises(DataError, match="other rows"):
            spool(NpySource(*paths[:2], counts=paths[2]), tmp_path / "cache")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_named_with_what_to_do(tmp_path, arrays, monkeypatch):
    @contextmanager
    def full(*arguments):
        with temporary_file(*arguments) as temporary:
            temporary.unlink()
            temporary.symlink_to("/dev/full")
            yield temporary

    monkeypatch.setattr(sys.modules["finitegp.data.spool"], "temporary_file", full)
    with pytest.raises(
        DataError, match=r"cannot be written to .*rows \(No space left on device, after 0 rows\).*TMPDIR"
    ):
        spool(arrays[:2], tmp_path / "rows", input_dtype="float64")
    assert [path.name for path in (tmp_path / "rows").iterdir()] == ["lock"]
