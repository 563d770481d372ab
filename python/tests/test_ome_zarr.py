"""Images, labels, plates and wells of OME-Zarr 0.4 become 0.5, as the validators of others see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ngff_zarr
import numpy as np
import ome_zarr_models.v05
import pytest
import yaozarrs
import zarr
import zarrs_cuda

if TYPE_CHECKING:
    from pathlib import Path

VALUES = np.arange(64, dtype="uint16").reshape(1, 8, 8)


def image(group: zarr.Group, **more: Any) -> None:
    """Make an image of two levels, as OME-Zarr 0.4 describes it."""
    axes = [
        {"name": "c", "type": "channel"},
        {"name": "y", "type": "space", "unit": "micrometer"},
        {"name": "x", "type": "space", "unit": "micrometer"},
    ]
    datasets = [
        {"path": str(level), "coordinateTransformations": [{"type": "scale", "scale": [1.0, size, size]}]}
        for level, size in enumerate((0.5, 1.0))
    ]
    multiscales = [{"version": "0.4", "name": "cells", "axes": axes, "datasets": datasets}]
    group.attrs.update({"multiscales": multiscales, **more})
    for level, values in enumerate((VALUES, VALUES[:, ::2, ::2])):
        group.create_array(str(level), data=values, chunks=(1, 4, 4))


@pytest.fixture
def plate(tmp_path: Path) -> Path:
    """A plate of two wells of two fields, with labels."""
    root = zarr.create_group(tmp_path / "old", zarr_format=2)
    wells = [
        {"path": "A/1", "rowIndex": 0, "columnIndex": 0},
        {"path": "B/2", "rowIndex": 1, "columnIndex": 1},
    ]
    rows, columns = ([{"name": name} for name in names] for names in ("AB", "12"))
    root.attrs["plate"] = {
        "version": "0.4",
        "name": "screen",
        "field_count": 2,
        "rows": rows,
        "columns": columns,
        "wells": wells,
        "acquisitions": [{"id": 0, "name": "first", "maximumfieldcount": 2}],
    }
    window = {"start": 0, "end": 60, "min": 0, "max": 65535}
    omero = {
        "version": "0.4",
        "channels": [{"color": "00FF00", "label": "a", "active": True, "window": window}],
    }
    for path in ("A/1", "B/2"):
        well = root.create_group(path)
        fields = [{"path": name, "acquisition": 0} for name in "01"]
        well.attrs["well"] = {"version": "0.4", "images": fields}
        for field in "01":
            group = well.create_group(field)
            image(group, omero=omero)
            labels = group.create_group("labels")
            labels.attrs["labels"] = ["nuclei"]
            colors = [{"label-value": 1, "rgba": [255, 0, 0, 128]}]
            label = {"version": "0.4", "colors": colors, "source": {"image": "../../"}}
            image(labels.create_group("nuclei"), **{"image-label": label})
    return tmp_path / "old"


def test_a_plate(plate: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    zarrs_cuda.reencode(plate, new, recursive=True)
    yaozarrs.validate_zarr_store(str(new))
    ome_zarr_models.v05.HCS.from_zarr(zarr.open_group(new, mode="r"))
    for well in ("A/1", "B/2"):
        yaozarrs.validate_zarr_store(str(new / well))
        for field in "01":
            path = new / well / field
            for described in (path, path / "labels/nuclei"):
                yaozarrs.validate_zarr_store(str(described))
                read = ngff_zarr.from_ngff_zarr(str(described), validate=True, version="0.5")
                assert [level.data.shape for level in read.images] == [(1, 8, 8), (1, 4, 4)]
                assert read.images[0].scale["x"] == 0.5
            ome_zarr_models.v05.Image.from_zarr(zarr.open_group(path, mode="r"))
            ome_zarr_models.v05.ImageLabel.from_zarr(zarr.open_group(path / "labels/nuclei", mode="r"))
            array = zarr.open_array(path / "0", mode="r")
            assert array.metadata.dimension_names == ("c", "y", "x")  # type: ignore[union-attr]
            np.testing.assert_array_equal(array[...], VALUES)
