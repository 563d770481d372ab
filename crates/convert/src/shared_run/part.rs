//! The number of a part among those of its run.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use crate::failure::Failure;

/// One part of a run: `3/16` is the third of 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Counts from 0.
    number: u64,
    of: NonZeroU64,
}

impl Part {
    /// Returns part `number`, which counts from 1, of a run in `of` parts.
    ///
    /// # Errors
    /// There is no such part.
    pub fn new(number: u64, of: u64) -> Result<Self, Failure> {
        match (number.checked_sub(1), NonZeroU64::new(of)) {
            (Some(number), Some(parts)) if number < of => Ok(Self { number, of: parts }),
            _ => Err(Failure::usage(format!(
                "there is no part {number} of {of}: parts count from 1"
            ))),
        }
    }

    /// Returns the number of parts before this one.
    pub fn number(self) -> u64 {
        self.number
    }

    /// Returns the number of parts.
    pub fn of(self) -> NonZeroU64 {
        self.of
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number + 1, self.of)
    }
}

impl FromStr for Part {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let numbers = text.split_once('/');
        let numbers =
            numbers.and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        let (number, of) = numbers.ok_or_else(|| {
            Failure::usage(format!("{text} is no part: write 3/16 for the third of 16"))
        })?;
        Self::new(number, of)
    }
}
