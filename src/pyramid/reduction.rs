//! Names the ways in which a window of elements becomes one element.

use zarrs_cuda_engine::reduce;

/// The way in which a window of elements becomes one element of the level below.
///
/// ```
/// use zarrs_cuda::writer::Reduction;
///
/// // Labels must not be mixed; intensities may.
/// let reduction = |are_labels| if are_labels { Reduction::Mode } else { Reduction::Mean };
/// assert_eq!(reduction(true).name(), "mode");
///
/// // By the name in a configuration.
/// let named = Reduction::ALL.into_iter().find(|reduction| reduction.name() == "maximum");
/// assert_eq!(named, Some(Reduction::Maximum));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reduction {
    /// The mean of the elements.
    #[default]
    Mean,
    /// The smallest element.
    Minimum,
    /// The largest element.
    Maximum,
    /// The middle element in order, or the mean of the two middle elements.
    Median,
    /// The most frequent element, for labels.
    Mode,
    /// The first element of the window.
    Decimate,
}

impl Reduction {
    /// All reductions.
    pub const ALL: [Self; 6] = [
        Self::Mean,
        Self::Minimum,
        Self::Maximum,
        Self::Median,
        Self::Mode,
        Self::Decimate,
    ];

    /// Returns the name of the reduction, in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.of_engine().name()
    }

    /// Returns the engine's value for this reduction.
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
