//! Types of the values of arguments.

use std::collections::BTreeSet;
use std::fmt;
use std::num::{NonZeroU64, NonZeroUsize};
use std::str::FromStr;

/// A number above 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count(NonZeroUsize);

impl Count {
    pub(crate) fn get(self) -> usize {
        self.0.get()
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text
            .parse()
            .map_err(|_| "it is a whole number above 0".to_string())?;
        Ok(Self(number))
    }
}

/// A number of bytes: `1048576`, `1024KiB`, `1MiB`, `1.5GB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(u64);

impl Size {
    pub(crate) fn bytes(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const UNITS: [(&str, u64); 13] = [
            ("KiB", 1 << 10),
            ("MiB", 1 << 20),
            ("GiB", 1 << 30),
            ("TiB", 1 << 40),
            ("kB", 1_000),
            ("MB", 1_000_000),
            ("GB", 1_000_000_000),
            ("TB", 1_000_000_000_000),
            ("B", 1),
            // Schedulers and containers mean powers of 2 by these.
            ("K", 1 << 10),
            ("M", 1 << 20),
            ("G", 1 << 30),
            ("T", 1 << 40),
        ];
        let wrong =
            || "it is a number of bytes above 0, as 1048576, 512MiB, 1.5GiB or 2GB".to_string();
        let text = text.trim();
        let (number, unit) = UNITS
            .iter()
            .find_map(|&(name, unit)| Some((text.strip_suffix(name)?, unit)))
            .unwrap_or((text, 1));
        let number: f64 = number.trim().parse().map_err(|_| wrong())?;
        #[allow(
            clippy::cast_precision_loss,
            reason = "a unit is a power of 2 or of 10"
        )]
        let bytes = number * unit as f64;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "checked here"
        )]
        if (1.0..u64::MAX as f64).contains(&bytes) {
            Ok(Self(bytes as u64))
        } else {
            Err(wrong())
        }
    }
}

/// The numbers of GPUs, as `0,1`, or `all` of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Gpus {
    All,
    Numbers(Vec<usize>),
}

impl fmt::Display for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Numbers(numbers) => {
                let numbers: Vec<_> = numbers.iter().map(usize::to_string).collect();
                f.write_str(&numbers.join(","))
            }
        }
    }
}

impl FromStr for Gpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().eq_ignore_ascii_case("all") {
            return Ok(Self::All);
        }
        let wrong = || {
            "it is different numbers of GPUs with commas between them, as 0,1, or all".to_string()
        };
        let numbers: Result<Vec<usize>, _> = text.split(',').map(|n| n.trim().parse()).collect();
        let numbers = numbers.map_err(|_| wrong())?;
        let different: BTreeSet<_> = numbers.iter().collect();
        if different.len() < numbers.len() {
            return Err(wrong());
        }
        Ok(Self::Numbers(numbers))
    }
}

/// The extents of a box, as `64,64,64`. Empty text stands for the shape of an array without dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape(pub(crate) Vec<NonZeroU64>);

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let extents = text.split(',').filter(|_| !text.is_empty());
        let extents: Result<_, _> = extents.map(|extent| extent.trim().parse()).collect();
        extents.map(Self).map_err(|_| {
            "it is whole numbers above 0 with commas between them, as 64,64,64".to_string()
        })
    }
}

/// The indices of a shard in the grid of shards: `0,1,0`, `0/1/0` or `c/0/1/0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardIndices(pub(crate) Vec<u64>);

impl FromStr for ShardIndices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let indices = text.strip_prefix("c/").unwrap_or(text);
        let indices: Result<_, _> = indices
            .split([',', '/'])
            .map(|index| index.trim().parse())
            .collect();
        indices.map(Self).map_err(|_| {
            "it is the indices of a shard in the grid of shards, as 0,1,0 or 0/1/0".to_string()
        })
    }
}

/// The help text of `--codec`.
pub(crate) const CODECS: &str = "\
How subchunks are compressed:
none | crc32c | zstd:LEVEL | gzip:LEVEL | blosc-NAME:LEVEL:SHUFFLE, with NAME one of lz4, lz4hc, zstd, \
zlib, snappy, blosclz, and SHUFFLE one of shuffle, bitshuffle, noshuffle";

#[cfg(test)]
mod tests {
    use super::{Gpus, Shape, ShardIndices, Size};

    #[test]
    fn sizes_have_units() {
        let bytes = |text: &str| text.parse::<Size>().map(Size::bytes).ok();
        assert_eq!(bytes("10"), Some(10));
        assert_eq!(bytes("10 B"), Some(10));
        assert_eq!(bytes("2KiB"), Some(2048));
        assert_eq!(bytes("1.5 MiB"), Some(3 << 19));
        assert_eq!(bytes("2GB"), Some(2_000_000_000));
        assert_eq!(bytes("64M"), Some(64 << 20));
        for wrong in ["", "0", "-1", "KiB", "1 XB", "nan", "inf", "1e300"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn gpus_are_named_once() {
        for text in ["0", "1,0", "all"] {
            assert_eq!(text.parse::<Gpus>().unwrap().to_string(), text);
        }
        assert_eq!("ALL".parse(), Ok(Gpus::All));
        for wrong in ["", "0,", "0,0", "-1", "first"] {
            assert!(wrong.parse::<Gpus>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn shapes_have_no_zeros() {
        let extents = |text: &str| {
            let shape = text.parse::<Shape>().ok()?;
            Some(
                shape
                    .0
                    .iter()
                    .map(|extent| extent.get())
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(extents("1, 2,3"), Some(vec![1, 2, 3]));
        assert_eq!(extents(""), Some(vec![]));
        for wrong in ["0", "1,", "1;2", "-1"] {
            assert_eq!(extents(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn shards_are_named_by_indices() {
        for text in ["0,1,2", "0/1/2", "c/0/1/2"] {
            assert_eq!(text.parse(), Ok(ShardIndices(vec![0, 1, 2])), "{text}");
        }
        assert!("".parse::<ShardIndices>().is_err());
        assert!("c".parse::<ShardIndices>().is_err());
    }
}
