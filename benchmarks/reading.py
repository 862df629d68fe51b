"""What reading tables takes: peak memory of opening and of reading, for several block and row-group sizes.

    python -m benchmarks.reading            # about ten minutes, and 300 MB of disk
    python -m benchmarks.reading --kind parquet
    python -m benchmarks.reading --quick    # small files

16 columns of generated numbers. Each case runs in a process of its own, which first uses the libraries once and reads
one small CSV and one small Parquet file; peaks are resident memory above that (``first_use`` is what the first CSV file
took). Arrow reads CSV files ahead in a thread of its own, so what it has read and not yet given out depends on how fast
its user is: each case is measured at full speed and with a pause after every chunk. Chunks are not kept. ``told``
is ``TableReader.reading_bytes``, and ``chunk`` the largest chunk that was given out.

Writes ``benchmarks/results/reading.jsonl`` and the table of ``docs/memory.md``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from finitegp.memory import return_freed_memory
from finitegp.tables.reader import TableReader

from .libraries import load_libraries
from .process_memory import peak_memory_bytes, reset_peak_memory, resident_memory_bytes
from .record import put_into_page, record

PAGE = Path(__file__).parents[1] / "docs" / "memory.md"
COLUMNS = 16
KIB, MIB = 1 << 10, 1 << 20
# Kind of file, its megabytes, bytes of a block or rows of a row group, most rows of a chunk, and what is special.
CASES = [
    ("csv", 2, 1 * MIB, 65_536, ""),
    ("csv", 16, 1 * MIB, 65_536, ""),
    ("csv", 64, 1 * MIB, 65_536, ""),
    ("csv", 128, 64 * KIB, 65_536, ""),
    ("csv", 128, 256 * KIB, 65_536, ""),
    ("csv", 128, 1 * MIB, 65_536, ""),
    ("csv", 128, 4 * MIB, 65_536, ""),
    ("csv.gz", 64, 1 * MIB, 65_536, ""),
    ("parquet", 64, 8_192, 8_192, ""),
    ("parquet", 64, 8_192, 65_536, ""),
    ("parquet", 64, 65_536, 8_192, ""),
    ("parquet", 128, 65_536, 65_536, ""),
    ("parquet", 128, 262_144, 8_192, ""),
    ("parquet", 128, 1_000_000, 8_192, ""),
    ("parquet", 128, 1_000_000, 8_192, "dictionaries"),
    ("parquet", 128, 1_000_000, 8_192, "pages of 8 MiB"),
]
QUICK = [("csv", 4, 256 * KIB, 65_536, ""), ("csv.gz", 4, 256 * KIB, 65_536, ""), ("parquet", 4, 8_192, 8_192, "")]
WRITING = {
    "": {"use_dictionary": False},
    "dictionaries": {},
    "pages of 8 MiB": {"use_dictionary": False, "data_page_size": 8 * MIB, "max_rows_per_page": 1 << 30},
}


def write_table(path: Path, kind: str, megabytes: int, group: int, special: str = "") -> None:
    """Random numbers in a file of about that size (before it is packed), written in parts."""
    random = np.random.default_rng(0)
    names = [f"x{column}" for column in range(COLUMNS)]
    plain = path.with_suffix("") if kind == "csv.gz" else path
    row_bytes = COLUMNS * (8 if kind == "parquet" else 20)
    rows, part = megabytes * 10**6 // row_bytes, group if kind == "parquet" else 20_000
    schema = pa.schema([(name, pa.float64()) for name in names])
    writer = pq.ParquetWriter(plain, schema, **WRITING[special]) if kind == "parquet" else csv.CSVWriter(plain, schema)
    with writer:
        for start in range(0, rows, part):
            values = random.normal(size=(COLUMNS, min(part, rows - start)))
            writer.write_table(pa.table(dict(zip(names, values, strict=True)), schema=schema))
    if kind == "csv.gz":
        with open(plain, "rb") as unpacked, gzip.open(path, "wb", compresslevel=1) as packed:
            shutil.copyfileobj(unpacked, packed)
        plain.unlink()


def read_small_files(directory: Path) -> int:
    """One small file of each kind, so that libraries are loaded; what the CSV file took."""
    for kind in ("parquet", "csv"):
        write_table(directory / f"small.{kind}", kind, 1, 1000)
    for _ in TableReader(directory / "small.parquet"):
        pass
    before = resident_memory_bytes()
    reset_peak_memory()
    # Blocks so small that reading ahead is next to nothing.
    for _ in TableReader(directory / "small.csv", block_size=16 * KIB):
        pass
    return peak_memory_bytes() - before


def measure(path: str, block_size: int, chunk_size: int, pause: float) -> dict[str, object]:
    """Peaks of opening and reading in this process."""
    return_freed_memory()
    load_libraries()
    with tempfile.TemporaryDirectory() as directory:
        first_use = read_small_files(Path(directory))
    return_freed_memory()
    reset_peak_memory()
    baseline = resident_memory_bytes()
    table = TableReader(path, block_size=block_size, chunk_size=chunk_size)
    opening = peak_memory_bytes() - baseline
    reset_peak_memory()
    largest = 0
    for chunk in table:
        largest = max(largest, chunk.nbytes)
        time.sleep(pause)
    return {
        "first_use": first_use,
        "opening": opening,
        "reading": peak_memory_bytes() - baseline,
        "told": table.reading_bytes,
        "chunk": largest,
        "rows": table.num_rows,
        "arrow": pa.__version__,
        "allocator": pa.default_memory_pool().backend_name,
    }


def render(path: Path) -> None:
    """Put the table into the page: the larger of full speed and pauses, without the chunk that is given out."""
    lines = ["| file | in one piece | rows of a chunk | measured MB | `reading_bytes` MB |", "|---|---|--:|--:|--:|"]
    cases: dict[tuple[object, ...], list[dict]] = {}
    for line in map(json.loads, path.read_text().splitlines()):
        case = tuple(line[name] for name in ("kind", "file_bytes", "chunk_rows", "piece", "special"))
        cases.setdefault(case, []).append(line)
    for (kind, size, rows, length, special), same in cases.items():
        if kind == "parquet":
            group = f"{length:,}".replace(",", " ")
            piece = f"row groups of {group} rows, {same[0]['row_group_bytes'] / 1e6:.1f} MB"
        else:
            piece = f"blocks of {length // KIB} KiB"
        piece += f", {special}" if special else ""
        peak = max(max(line["opening"], line["reading"]) - line["chunk"] for line in same)
        told = f"{same[0]['told'] / 1e6:.1f}"
        lines.append(f"| {kind}, {size / 1e6:.0f} MB | {piece} | {rows} | {peak / 1e6:.1f} | {told} |")
    put_into_page(PAGE, __file__, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only small files")
    parser.add_argument("--kind", choices=sorted({case[0] for case in CASES}), help="only files of this kind")
    parser.add_argument("--directory", type=Path, help="where the results go")
    parser.add_argument("--worker", help="one case, as JSON; used by the above")
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(measure(*json.loads(arguments.worker))))
        return
    found = []
    with tempfile.TemporaryDirectory() as directory:
        for kind, megabytes, size, chunk_size, special in QUICK if arguments.quick else CASES:
            if arguments.kind not in (None, kind):
                continue
            path = Path(directory) / f"table.{kind}"
            write_table(path, kind, megabytes, size, special)
            row: dict[str, object] = {
                "kind": kind,
                "megabytes": megabytes,
                "file_bytes": path.stat().st_size,
                "chunk_rows": chunk_size,
            }
            row |= {"row_group_rows" if kind == "parquet" else "block_bytes": size, "piece": size, "special": special}
            if kind == "parquet":
                row["row_group_bytes"] = pq.read_metadata(path).row_group(0).total_byte_size
            for word, pause in (("full speed", 0.0), ("pauses", 0.05)):
                case = [str(path), size, chunk_size, pause]
                command = [sys.executable, "-m", __spec__.name, "--worker", json.dumps(case)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                found.append(row | {"speed": word, "pause_seconds": pause} | json.loads(done.stdout))
                print(json.dumps(found[-1]), flush=True)
            path.unlink()
    options = {} if arguments.directory is None else {"directory": arguments.directory}
    path = record("reading", found, same=("kind", "megabytes", "chunk_rows", "piece", "special", "speed"), **options)
    print("written to", path)
    if arguments.directory is None:
        render(path)


if __name__ == "__main__":
    main()
