//! The data of streams and shards: boxes of uint16 elements, each with a label that says what they are.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zarrs::array::{Array, ArrayBytes};
use zarrs::filesystem::FilesystemStore;

use super::failure::{Failure, Result, require};
use crate::microscopy::Microscopy;

/// The environment variable that names the array with the scan, a folder.
const VARIABLE: &str = "ZARRS_CUDA_BENCH_MRI";

/// The kinds of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Volume {
    /// A smooth field with 5 random bits in each element.
    Microscopy,
    /// The same field as the expected number of photons, with their noise.
    Photons,
    /// A small MRI scan, repeated.
    Mri,
}

impl Volume {
    pub(crate) const ALL: [Self; 3] = [Self::Microscopy, Self::Photons, Self::Mri];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Microscopy => "microscopy",
            Self::Photons => "photons",
            Self::Mri => "mri-tiled",
        }
    }

    /// Says what the data are, for readers of the results.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Microscopy => "made up: a smooth field with 5 random bits in each element",
            Self::Photons => {
                "made up: 100 and a number of photons, whose mean is a smooth field from 40 to 340, and whose \
                 variance is the mean (a normal distribution, rounded)"
            }
            Self::Mri => {
                "a real MRI scan of 24 x 96 x 128 elements, tiled: it repeats after as many elements, so larger \
                 subchunks compress better than those of a large scan would"
            }
        }
    }

    /// Returns the little-endian elements of a box of `shape`, in C order.
    ///
    /// # Errors
    /// The scan cannot be read.
    pub(crate) fn elements(self, shape: [usize; 3]) -> Result<Vec<u8>> {
        let extents = shape.map(|extent| extent as u64);
        match self {
            Self::Microscopy => Ok(Microscopy::new().volume([0; 3], extents, 5)),
            Self::Photons => {
                let mut source = Microscopy::new();
                let mut elements = source.volume([0; 3], extents, 0);
                for element in elements.as_chunks_mut().0 {
                    let mean = (f64::from(u16::from_le_bytes(*element)) - 600.0) / 16.0 + 40.0;
                    *element = photons(mean, source.random()).to_le_bytes();
                }
                Ok(elements)
            }
            Self::Mri => Ok(tiled(&scan(&place())?, shape)),
        }
    }
}

/// Returns an offset of 100, and a number of photons with this mean. `random` is 64 random bits.
fn photons(mean: f64, random: u64) -> u16 {
    // Four uniform numbers have a sum with a variance of a third, and nearly a normal distribution.
    let sum: f64 = (0..4)
        .map(|part| f64::from((random >> (16 * part)) as u16) / 65_536.0)
        .sum();
    let normal = (sum - 2.0) * 3.0_f64.sqrt();
    normal.mul_add(mean.sqrt(), mean + 100.0).round().max(0.0) as u16
}

/// The folder of the scan: the one that the environment names, or that of the repository.
fn place() -> PathBuf {
    env::var_os(VARIABLE).map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/data/bold.zarr"),
        PathBuf::from,
    )
}

/// Reads the shape and the elements of the scan in `folder`.
fn scan(folder: &Path) -> Result<([usize; 3], Vec<u8>)> {
    let store = Arc::new(FilesystemStore::new(folder)?);
    let array = Array::open(store, "/")?;
    let shape: Vec<usize> = array.shape().iter().map(|&n| n as usize).collect();
    let elements: ArrayBytes = array.retrieve_array_subset(&array.subset_all())?;
    let elements = elements.into_fixed()?.into_owned();
    let shape: [usize; 3] = shape
        .try_into()
        .map_err(|shape| Failure(format!("{}: {shape:?} is no volume", folder.display())))?;
    require(
        elements.len() == shape.iter().product::<usize>() * 2,
        || format!("{}: the elements are not uint16", folder.display()),
    )?;
    Ok((shape, elements))
}

/// Repeats a scan along each axis.
fn tiled((scan, elements): &([usize; 3], Vec<u8>), shape: [usize; 3]) -> Vec<u8> {
    let mut all = Vec::with_capacity(shape.iter().product::<usize>() * 2);
    let row = scan[2] * 2;
    for z in 0..shape[0] {
        for y in 0..shape[1] {
            let at = ((z % scan[0]) * scan[1] + y % scan[1]) * row;
            let line = elements[at..at + row].iter().cycle().take(shape[2] * 2);
            all.extend(line);
        }
    }
    all
}

#[cfg(test)]
#[allow(
    unused_imports,
    reason = "the benchmark itself has no harness, and leaves out its tests"
)]
mod tests {
    use super::*;

    fn values(volume: Volume, shape: [usize; 3]) -> Vec<u16> {
        let elements = volume
            .elements(shape)
            .unwrap_or_else(|error| panic!("{error:?}"));
        assert_eq!(elements.len(), shape.iter().product::<usize>() * 2);
        let (values, _) = elements.as_chunks();
        values
            .iter()
            .map(|&value| u16::from_le_bytes(value))
            .collect()
    }

    #[test]
    fn photons_have_the_variance_of_their_mean() {
        let mut source = Microscopy::new();
        for mean in [40.0, 340.0] {
            let counts: Vec<f64> = (0..20_000)
                .map(|_| f64::from(photons(mean, source.random())) - 100.0)
                .collect();
            let average = counts.iter().sum::<f64>() / 20_000.0;
            let variance = counts.iter().map(|n| (n - average).powi(2)).sum::<f64>() / 20_000.0;
            assert!((average - mean).abs() < mean / 50.0, "{average}");
            assert!((variance - mean).abs() < mean / 10.0, "{variance}");
        }
    }

    #[test]
    fn a_scan_repeats_along_each_axis() {
        let shape = [25, 97, 130];
        let values = values(Volume::Mri, shape);
        let at = |z: usize, y: usize, x: usize| values[(z * shape[1] + y) * shape[2] + x];
        assert!(values.iter().any(|&value| value > 100));
        for (z, y, x) in [(0, 40, 64), (3, 50, 60), (12, 0, 1)] {
            assert_eq!(at(z, y, x), at((z + 24) % 24, y, x));
        }
        for n in 0..24 {
            assert_eq!(at(0, n, n), at(24, n, n));
            assert_eq!(at(n, 0, n), at(n, 96, n));
            assert_eq!(at(n, n, 1), at(n, n, 129));
        }
    }
}
