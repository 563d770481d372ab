"""Look at an acquisition while it runs: one process appends frames, and another reads the smallest level.

``python follow_acquisition.py --frames 200`` simulates a camera that sees a bright spot move. The process
that follows reads a small part of the elements, and says where the spot is, in micrometres.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import zarr
import zarrs_cuda

EXTENT, CHUNK, FRAMES_OF_A_SHARD = 512, 64, 8
MICROMETRES = 0.325


def spot(number: int) -> tuple[int, int]:
    """Say where the spot is in a frame: on a circle."""
    angle = number / 20
    return round(EXTENT * (0.5 + 0.4 * np.sin(angle))), round(EXTENT * (0.5 + 0.4 * np.cos(angle)))


def frame(number: int) -> np.ndarray[Any, Any]:
    """Make what the camera sees."""
    y, x = spot(number)
    pixels = np.full((EXTENT, EXTENT), 100, dtype="uint16")
    pixels[max(y - 8, 0) : y + 8, max(x - 8, 0) : x + 8] = 4000
    return pixels


def acquire(path: Path, frames: int, interval: float) -> None:
    """Append the frames of the camera, one by one."""
    image = zarr.create_group(path)
    array = image.create_array(
        "0",
        shape=(0, EXTENT, EXTENT),
        chunks=(1, CHUNK, CHUNK),
        shards=(FRAMES_OF_A_SHARD, EXTENT, EXTENT),
        dtype="uint16",
        dimension_names=["t", "y", "x"],
    )
    axes = [
        zarrs_cuda.Axis("t", unit="second", scale=interval),
        zarrs_cuda.Axis("y", unit="micrometer", scale=MICROMETRES),
        zarrs_cuda.Axis("x", unit="micrometer", scale=MICROMETRES),
    ]
    with zarrs_cuda.MultiscaleWriter(array, axes=axes) as writer:
        for number in range(frames):
            time.sleep(interval)
            writer.append(frame(number))
            if (number + 1) % FRAMES_OF_A_SHARD == 0:
                # Followers see the frames now, and not when more of them are encoded together.
                writer.flush()


def smallest(path: Path) -> tuple[str, list[float], list[float]] | None:
    """Return the path of the smallest level and where its elements are, if the image is there."""
    try:
        image: Any = zarr.open_group(path, mode="r")
        dataset = image.attrs["ome"]["multiscales"][0]["datasets"][-1]
    except (FileNotFoundError, KeyError):
        return None
    found = {each["type"]: each[each["type"]] for each in dataset["coordinateTransformations"]}
    scale = found["scale"]
    return dataset["path"], scale, found.get("translation", [0.0] * len(scale))


def follow(path: Path, acquisition: multiprocessing.process.BaseProcess) -> None:
    """Read the frames of the smallest level as they come, and say where the spot is."""
    while (image := smallest(path)) is None:
        if acquisition.exitcode is not None:
            raise SystemExit("the acquisition ended before it began")
        time.sleep(0.01)
    name, scale, translation = image
    seen = while_running = 0
    farthest = 0.0
    is_over = False
    while not is_over:
        # Before the array is opened: it has all frames then.
        is_over = acquisition.exitcode is not None
        level: Any = zarr.open_array(path / name, mode="r")
        for number in range(seen, level.shape[0]):
            pixels = level[number]
            bright = np.argwhere(pixels > pixels.min()).mean(axis=0)
            y, x = bright * scale[1:] + translation[1:]
            # The spot covers the pixels from y - 8 to y + 7, so its centre is at y - 0.5.
            expected = (np.array(spot(number)) - 0.5) * MICROMETRES
            farthest = max(farthest, float(np.abs([y, x] - expected).max()))
            if number % FRAMES_OF_A_SHARD == 0:
                print(f"frame {number}: the spot is at y = {y:.1f}, x = {x:.1f} micrometres", flush=True)
        while_running += 0 if is_over else level.shape[0] - seen
        seen = level.shape[0]
        time.sleep(0.01)
    print(
        f"saw {seen} frames of {level.shape[1]} x {level.shape[2]} elements, {while_running} of them "
        f"while the acquisition ran; the spot was at most {farthest / MICROMETRES:.1f} pixels away from there"
    )


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("--interval", type=float, default=0.02, help="between two frames, in seconds")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "image.zarr"
        context = multiprocessing.get_context("spawn")
        acquisition = context.Process(target=acquire, args=(path, arguments.frames, arguments.interval))
        acquisition.start()
        follow(path, acquisition)
        acquisition.join()
    if acquisition.exitcode != 0:
        raise SystemExit("the acquisition failed")


if __name__ == "__main__":
    main()
