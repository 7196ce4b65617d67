"""`shardwise calibrate`: measure the current device, as a cluster that plans can be priced with."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..files import require_writable, write_text
from ._app import Json, app, print_json
from ._progress import Bars


@app.command()
def calibrate(
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    samples: Annotated[
        Path | None,
        typer.Option(help="Fit these samples, measured on another machine, instead of measuring."),
    ] = None,
    links: Annotated[
        str | None,
        typer.Option(help="The preset that provides the links. By default the one for this device."),
    ] = None,
    nccl: Annotated[
        list[Path] | None,
        typer.Option(
            help="The output of one program of nccl-tests, such as all_gather_perf; may be repeated. With --links and "
            "without --samples, no kernels are measured: the device is that of the preset."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the cluster here, as JSON.")] = None,
    as_json: Json = False,
) -> None:
    """Measure the kernels of this device, and write a cluster to price plans with.

    Example: shardwise calibrate --device cpu --out here.json
    """
    from ..mesh import Calibration, Cluster, fit_collectives, fit_file
    from ..mesh import calibrate as measured

    require_writable(out)
    if samples is not None:
        made = fit_file(samples, links=links)
    elif nccl and links is not None:
        made = Calibration(Cluster.of(links), ())
    else:
        with Bars(quiet=as_json) as progress:
            made = measured(device, links=links, progress=progress)
    if nccl:
        made = fit_collectives(nccl, made)
    if out is not None:
        write_text(out, json.dumps(made.cluster.to_json(), indent=2) + "\n")
    if as_json:
        print_json({"cluster": made.cluster.to_json(), "fits": [asdict(fit) for fit in made.fits]})
        return
    typer.echo(str(made))
    if out is not None:
        typer.echo(f"\nwritten to {out}: use it with --cluster {out}")
