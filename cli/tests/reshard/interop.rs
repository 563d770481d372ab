//! zarr-python and tensorstore read what is written.
