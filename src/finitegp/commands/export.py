"""The command ``finitegp export``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import DataError
from . import options
from .console import Console, figure

if TYPE_CHECKING:
    from ..export import CExport
    from ..lite.model import LiteModel


def export(
    model: options.Model,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="An ONNX graph.", show_default=False)] = None,
    c: Annotated[Path | None, typer.Option("--c", help="A C99 header.", show_default=False)] = None,
    name: Annotated[str, typer.Option(help="What names in the header begin with.")] = "model",
    double: Annotated[bool, typer.Option("--double", help="Numbers of 64 bits instead of 32.")] = False,
    max_bytes: Annotated[
        str | None,
        typer.Option(help="The most bytes of constants in the header, such as 32kB: leaves features out."),
    ] = None,
    intervals: Annotated[
        bool, typer.Option("--intervals/--no-intervals", help="Whether the graph has ends of intervals.")
    ] = True,
    rows: Annotated[
        Path | None, typer.Option(help="A table with the truth, on which the loss of leaving features out is measured.")
    ] = None,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Write a model for another runtime: a C99 header for small devices, or an ONNX graph.

    A header has no dependency but math.h and allocates nothing; a graph has standard operators only. Both give mean and
    standard deviations (epistemic, noise, all), a graph intervals as well.
    """
    console = Console(as_json)
    with console.guard():
        if (output is None) == (c is None):
            raise DataError("Give one of --c FILE (a C header) and --output FILE (an ONNX graph).")
        if c is not None:
            from ..export import export_c
            from ..export.formulas import described

            options.check_output(c, force=force, inputs=[model, *([] if rows is None else [rows])])
            given, targets = _read(model, rows)
            real = "double" if double else "float"
            limits: dict[str, Any] = {"max_bytes": max_bytes, "rows": given, "targets": targets}
            whole = described(model)
            result = export_c(whole, c, name=name, real=real, overwrite=force, **limits)
            _show(console, c, result, real, measured=rows is not None)
            console.note(*_note_on_repeated(whole))
            console.result({"header": str(c)} | result._asdict())
        else:
            from ..export import to_onnx
            from ..export.formulas import described

            assert output is not None
            if max_bytes is not None or rows is not None:
                raise DataError("--max-bytes and --rows are for --c.")
            options.check_output(output, force=force, inputs=[model])
            whole = described(model)
            made = to_onnx(whole, output, double=double, intervals=intervals, overwrite=force)
            console.print(f"{made.nodes} operators, {made.bytes} bytes, inputs and outputs {made.real}: ", output)
            columns = (f"{name} ({', '.join(each)})" if each else name for name, each in made.inputs.items())
            console.print(f"Inputs: {', '.join(columns)}. Outputs: {', '.join(made.outputs)}.")
            console.note(*_note_on_repeated(whole))
            console.result({"graph": str(output)} | made._asdict())


def _note_on_repeated(model: LiteModel) -> list[str]:
    if all(fit.repeated is None for fit in model.fits):
        return []
    return [
        "The model knows rows that come again; what is exported does not, and predicts them as any other row. "
        "finitegp-lite does."
    ]


def _read(model: Path, rows: Path | None) -> tuple[Any, Any]:
    if rows is None:
        return None, None
    from ..tables.model import TableRegressor

    table, targets = TableRegressor.load(model).scored_rows(rows)
    return {name: table.column(name).to_pylist() for name in table.column_names}, targets


def _show(console: Console, path: Path, result: CExport, real: str, *, measured: bool) -> None:
    console.print(
        f"{result.constant_bytes} bytes of constants, {result.stack_bytes} bytes on the stack; one prediction takes "
        f"{result.operations} operations and {result.calls} calls of math.h: ",
        path,
    )
    if result.lost_of is not None:
        what = "NLPD on the given rows" if result.lost_of == "NLPD" else "evidence of the rows seen"
        console.print(
            f"{result.features} of {result.features_before} features are left: {figure(result.lost)} nats per row of "
            f"{what} lost."
        )
    if real == "float":
        where = "the given rows" if measured else "256 made rows"
        console.print(
            f"Rounding to float moves mean and standard deviation by at most {figure(result.rounding)} standard "
            f"deviations on {where}."
        )
