//! How windows of elements become one.

use zarrs_cuda_engine::reduce;

/// How a window becomes one element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reduction {
    /// The mean.
    #[default]
    Mean,
    /// The smallest element.
    Minimum,
    /// The largest element.
    Maximum,
    /// The middle element, or the mean of the two in the middle.
    Median,
    /// The element that is there most often, for labels.
    Mode,
    /// The first element.
    Decimate,
}

impl Reduction {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Mean,
        Self::Minimum,
        Self::Maximum,
        Self::Median,
        Self::Mode,
        Self::Decimate,
    ];

    /// The name, in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.of_engine().name()
    }

    /// The reduction as the engine takes it.
    pub(super) fn of_engine(self) -> reduce::Reduction {
        match self {
            Self::Mean => reduce::Reduction::Mean,
            Self::Minimum => reduce::Reduction::Minimum,
            Self::Maximum => reduce::Reduction::Maximum,
            Self::Median => reduce::Reduction::Median,
            Self::Mode => reduce::Reduction::Mode,
            Self::Decimate => reduce::Reduction::Decimate,
        }
    }
}
