//! Describes an axis of an image.

/// An axis of an image: its name, its type, its unit, and how lower levels divide it.
///
/// ```
/// use zarrs_cuda::writer::Axis;
///
/// let axes = [
///     Axis::time("t").with_unit("second").with_scale(0.5),
///     Axis::space("y").with_unit("micrometer").with_scale(0.325),
///     Axis::space("x").with_unit("micrometer").with_scale(0.325),
/// ];
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    pub(super) name: String,
    pub(super) kind: Option<String>,
    pub(super) unit: Option<String>,
    pub(super) scale: f64,
    pub(super) translation: f64,
    pub(super) factor: u64,
}

impl Axis {
    fn new(name: &str, kind: Option<&str>, factor: u64) -> Self {
        Self {
            name: name.to_owned(),
            kind: kind.map(str::to_owned),
            unit: None,
            scale: 1.0,
            translation: 0.0,
            factor,
        }
    }

    /// Returns an axis of space. Each level has half the extent of the level above.
    #[must_use]
    pub fn space(name: &str) -> Self {
        Self::new(name, Some("space"), 2)
    }

    /// Returns an axis of time. All levels have the same extent.
    #[must_use]
    pub fn time(name: &str) -> Self {
        Self::new(name, Some("time"), 1)
    }

    /// Returns an axis of channels. All levels have the same extent.
    #[must_use]
    pub fn channel(name: &str) -> Self {
        Self::new(name, Some("channel"), 1)
    }

    /// Returns an axis of another type, or without a type. All levels have the same extent.
    #[must_use]
    pub fn other(name: &str, kind: Option<&str>) -> Self {
        Self::new(name, kind, 1)
    }

    /// Returns the axis that usually has this name, in upper or lower case, such as `t`, `c`, `z`, `y` or
    /// `x`.
    pub(super) fn by_name(name: &str) -> Option<Self> {
        Some(match &*name.to_lowercase() {
            "t" | "time" | "timepoint" | "frame" | "frames" => Self::time(name),
            "c" | "channel" | "channels" => Self::channel(name),
            "z" | "y" | "x" => Self::space(name),
            _ => return None,
        })
    }

    /// Sets the unit, such as `micrometer` or `second`. Default: none.
    #[must_use]
    pub fn with_unit(mut self, unit: &str) -> Self {
        self.unit = Some(unit.to_owned());
        self
    }

    /// Sets the distance of two elements of level 0, in units. Default: 1.
    #[must_use]
    pub fn with_scale(mut self, scale: f64) -> Self {
        self.scale = scale;
        self
    }

    /// Sets the position of the first element of level 0, in units. Default: 0.
    #[must_use]
    pub fn with_translation(mut self, translation: f64) -> Self {
        self.translation = translation;
        self
    }

    /// Sets how many elements of a level along this axis become one element of the level below: 1 or 2.
    /// Default: 2 for axes of space, 1 for others.
    #[must_use]
    pub fn with_factor(mut self, factor: u64) -> Self {
        self.factor = factor;
        self
    }
}
