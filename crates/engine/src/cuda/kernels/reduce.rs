//! Reduces windows of slices to one element each. The kernels are in `reduce.cu`.

use std::fmt;

use super::fast_division::FastDivision;
use super::spans::{Launch, sub_span};
use crate::cuda::driver::{Access, Arg, DeviceSpan, Driver, DriverError, StreamId};
use crate::reduce::{Elements, Reducer, Reduction};

/// The number of threads per block, the same as in the kernels.
const BLOCK: u32 = 256;
/// The most elements of a launch: fast division needs numbers below 2³¹.
const MOST: usize = (1 << 31) - 1;
/// The number of digits that the parameters have room for. Each digit of a slice has at least 2 values, and
/// the product of the extents is below 2³¹. One more digit counts the windows along the first axis.
const MAX_DIGITS: usize = 32;
/// The most axes along which a window has two elements, including the first axis.
const MAX_AXES: usize = 8;

/// The kernels for the mean, by the exponent of the size of an element: 2⁰ to 2³ bytes.
const MEAN: [&str; 4] = [
    "reduce_mean_1",
    "reduce_mean_2",
    "reduce_mean_4",
    "reduce_mean_8",
];
const ORDER: [&str; 4] = [
    "reduce_order_1",
    "reduce_order_2",
    "reduce_order_4",
    "reduce_order_8",
];
const BITS: [&str; 5] = [
    "reduce_bits_1",
    "reduce_bits_2",
    "reduce_bits_4",
    "reduce_bits_8",
    "reduce_bits_16",
];

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Digit {
    from: u64,
    to: u64,
    extent: u32,
    magic: u32,
    shift: u32,
    short_index: u32,
    axis: u32,
    zero: u32,
}

#[repr(C)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Parameters {
    steps: [u64; MAX_AXES],
    nan: u64,
    infinity: u64,
    count: u32,
    digit_count: u32,
    axes: u32,
    pairs: u32,
    kind: u32,
    operation: u32,
    digits: [Digit; MAX_DIGITS],
}

const _: () =
    assert!(size_of::<Parameters>() == 104 + MAX_DIGITS * 40 && align_of::<Parameters>() == 8);

impl Parameters {
    /// Sets the steps of the windows' axes, and all digits but the first. Returns `None` if the axes need
    /// more steps or digits than the kernels have.
    fn step(&mut self, axes: &[Axis]) -> Option<()> {
        let halved = axes.iter().rev().filter(|axis| axis.is_halved());
        let mut left = halved.clone().count();
        if left >= MAX_AXES {
            return None;
        }
        self.axes = number(left);
        for (step, axis) in self.steps.iter_mut().zip(halved) {
            *step = axis.above as u64;
        }
        let mut digits = 1;
        for axis in axes {
            let mut bit = 0;
            if axis.is_halved() {
                left -= 1;
                bit = 1 << left;
            }
            if axis.reduced() < 2 {
                continue;
            }
            let by = FastDivision::new(axis.reduced())?;
            let is_short = axis.is_halved() && !axis.extent.is_multiple_of(2);
            *self.digits.get_mut(digits)? = Digit {
                from: (axis.above * axis.factor) as u64,
                to: axis.below as u64,
                extent: number(axis.reduced()),
                magic: by.magic,
                shift: by.shift,
                short_index: if is_short {
                    number(axis.reduced() - 1)
                } else {
                    u32::MAX
                },
                axis: bit,
                zero: 0,
            };
            digits += 1;
        }
        self.digit_count = number(digits);
        Some(())
    }
}

/// A plan to reduce slices of one level to slices of the next level. Slices of both levels are padded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reduce {
    kernel: &'static str,
    /// The parameters of the kernel. Their first digit, the number of windows along the first axis, is not
    /// set yet.
    parameters: Box<Parameters>,
    /// The number of bytes of an element, for the kernels.
    size: usize,
    /// The number of bytes of a padded slice: of the level that is read, and of the level that is made.
    above: usize,
    below: usize,
    /// The number of elements that are made for a slice.
    per_slice: usize,
    /// Whether pairs of elements are aligned in a slice that begins at a multiple of a pair's size.
    pairs: bool,
}

/// The reason why slices cannot be reduced on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReduceError {
    /// The padded slices have other axes than the slices that they hold, or are smaller.
    Padding,
    /// The slices have more elements than the kernels can count.
    TooLarge { elements: usize },
}

impl fmt::Display for ReduceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Padding => {
                f.write_str("the padded slices of two levels are not of the slices that they hold")
            }
            Self::TooLarge { elements } => write!(
                f,
                "slices of {elements} elements are too many for a launch, which makes {MOST} at most"
            ),
        }
    }
}

impl std::error::Error for ReduceError {}

/// Windows along the first axis. Each window has one slice, or two slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReduceWindows {
    /// The span from the first slice of the first window on.
    pub(crate) first: DeviceSpan,
    /// The span from the second slice of the first window on; `None` if each window has one slice.
    pub(crate) second: Option<DeviceSpan>,
    /// The number of slices from the begin of one window to the begin of the next.
    pub(crate) slices: usize,
    pub(crate) count: usize,
}

/// An axis of a slice.
#[derive(Clone, Copy, Debug)]
struct Axis {
    extent: usize,
    factor: usize,
    /// The number of bytes from one element to the next: on the level that is read, and on the level that is
    /// made.
    above: usize,
    below: usize,
}

impl Axis {
    fn reduced(&self) -> usize {
        self.extent.div_ceil(self.factor)
    }

    /// Returns whether windows have two elements along this axis, except for the last window of an odd
    /// extent.
    fn is_halved(&self) -> bool {
        self.factor == 2 && self.extent > 1
    }
}

impl Reduce {
    /// Plans the reduction by `reducer` of slices whose axes are padded to `above` elements, to slices whose
    /// axes are padded to `below` elements.
    pub(crate) fn new(
        reducer: &Reducer,
        above: &[usize],
        below: &[usize],
    ) -> Result<Self, ReduceError> {
        let (reduction, elements) = (reducer.reduction(), reducer.elements());
        let (family, operation): (&[&'static str], _) = match reduction {
            Reduction::Mean => (&MEAN, 0),
            Reduction::Minimum => (&ORDER, 0),
            Reduction::Maximum => (&ORDER, 1),
            Reduction::Median => (&ORDER, 2),
            Reduction::Decimate => (&BITS, 0),
            Reduction::Mode => (&BITS, 1),
        };
        let Kind {
            size,
            parts,
            kind,
            nan,
            infinity,
        } = Kind::of(elements, reduction);
        let exponent = size.trailing_zeros() as usize;
        let kernel = *family.get(exponent).ok_or(ReduceError::Padding)?;
        let axes = axes(reducer, above, below, (size, parts))?;
        let slice = |padded: &[usize]| {
            let elements = padded
                .iter()
                .try_fold(parts, |n: usize, e| n.checked_mul(*e));
            elements.and_then(|n| n.checked_mul(size))
        };
        let (Some(above), Some(below)) = (slice(above), slice(below)) else {
            return Err(ReduceError::Padding);
        };
        let per_slice: usize = axes.iter().map(Axis::reduced).product();
        if per_slice > MOST {
            return Err(ReduceError::TooLarge {
                elements: per_slice,
            });
        }
        let mut parameters = Parameters {
            nan,
            infinity,
            kind,
            operation,
            ..Parameters::default()
        };
        parameters.step(&axes).ok_or(ReduceError::Padding)?;
        let pair = 2 * size as u64;
        let (fastest, others) = parameters.steps.split_at(1);
        let digit_steps = parameters.digits.iter().map(|digit| digit.from);
        let pairs = size <= 8
            && fastest[0] == size as u64
            && above.is_multiple_of(2 * size)
            && (others.iter().copied().chain(digit_steps)).all(|step| step.is_multiple_of(pair));
        Ok(Self {
            kernel,
            parameters: Box::new(parameters),
            size,
            above,
            below,
            per_slice,
            pairs,
        })
    }

    /// Enqueues the reduction of `windows` to as many slices, which begin at the begin of `reduced`. The
    /// padding of the new slices is left unchanged.
    ///
    /// Reads the slices of the windows, and writes the new slices.
    ///
    /// # Errors
    /// A span is too short or misaligned, or the driver fails.
    ///
    /// # Safety
    /// The caller keeps the rules that the module `driver` lists.
    pub(crate) unsafe fn enqueue(
        &self,
        driver: &dyn Driver,
        stream: StreamId,
        windows: ReduceWindows,
        reduced: DeviceSpan,
    ) -> Result<(), DriverError> {
        if self.per_slice == 0 {
            return Ok(());
        }
        let each = (MOST / self.per_slice).max(1);
        for begin in (0..windows.count).step_by(each) {
            let count = each.min(windows.count - begin);
            // SAFETY: this function has the same requirements, which its caller keeps.
            unsafe { self.launch(driver, stream, windows, reduced, begin, count)? };
        }
        Ok(())
    }

    /// Launches the kernel for `count` windows, beginning with the window `begin`.
    ///
    /// # Safety
    /// The caller keeps the rules that the module `driver` lists.
    unsafe fn launch(
        &self,
        driver: &dyn Driver,
        stream: StreamId,
        windows: ReduceWindows,
        reduced: DeviceSpan,
        begin: usize,
        count: usize,
    ) -> Result<(), DriverError> {
        let launch = Launch {
            driver,
            stream,
            kernel: self.kernel,
        };
        let stride = windows.slices.saturating_mul(self.above);
        let slices = |what, span: DeviceSpan| {
            let end = (windows.count - 1)
                .checked_mul(windows.slices)
                .and_then(|slices| slices.checked_add(1))
                .unwrap_or(usize::MAX);
            let all = launch.elements(what, span, end, self.above, self.size)?;
            let from = begin * stride;
            let len = (count - 1) * stride + self.above;
            Ok::<_, DriverError>(sub_span(all, from..from + len))
        };
        let first = slices("the first slices of windows", windows.first)?;
        let second = (windows.second)
            .map(|span| slices("the second slices of windows", span))
            .transpose()?;
        let to = launch.elements(
            "the reduced slices",
            reduced,
            windows.count,
            self.below,
            self.size,
        )?;
        let to = sub_span(to, begin * self.below..(begin + count) * self.below);
        let mut parameters = self.parameters.clone();
        let threads = count * self.per_slice;
        parameters.count = number(threads);
        parameters.digits[0] = Digit {
            from: stride as u64,
            to: self.below as u64,
            extent: number(count),
            short_index: u32::MAX,
            ..Digit::default()
        };
        let is_aligned = |span: DeviceSpan| span.offset.is_multiple_of(2 * self.size);
        let pairs = self.pairs && is_aligned(first) && second.is_none_or(is_aligned);
        parameters.pairs = u32::from(pairs);
        let args = [
            Arg::Struct(bytes_of(&parameters)),
            Arg::Span(first, Access::Read),
            second.map_or(Arg::Null, |span| Arg::Span(span, Access::Read)),
            Arg::Span(to, Access::Write),
        ];
        let grid = number(threads.div_ceil(BLOCK as usize));
        // SAFETY: the caller keeps the rules of the driver. The digits count each element of the reduced
        // slices once. Their steps stay in the padded slices of both levels, as does the second element of a
        // window, which the kernel reads only where the window has one. Pairs are aligned, and slices have a
        // multiple of a pair's bytes: if the first element of a pair is in a slice, the second is, too.
        unsafe { launch.run(grid, BLOCK, &args) }
    }
}

/// Returns the axes of slices of elements of `size` bytes. Each element has `parts` parts that follow one
/// another.
fn axes(
    reducer: &Reducer,
    above: &[usize],
    below: &[usize],
    (size, parts): (usize, usize),
) -> Result<Vec<Axis>, ReduceError> {
    let given: Vec<(usize, usize)> = reducer.axes().collect();
    // A slice without axes has one element.
    let given = if above.is_empty() { &[][..] } else { &given };
    if given.len() != above.len() || given.len() != below.len() {
        return Err(ReduceError::Padding);
    }
    let part = Axis {
        extent: parts,
        factor: 1,
        above: size,
        below: size,
    };
    let mut axes = vec![part];
    let (mut step_above, mut step_below) = (size * parts, size * parts);
    for ((&(extent, factor), &above), &below) in given.iter().zip(above).zip(below).rev() {
        let axis = Axis {
            extent,
            factor,
            above: step_above,
            below: step_below,
        };
        if above < extent || below < axis.reduced() {
            return Err(ReduceError::Padding);
        }
        let next = |step: usize, padded| step.checked_mul(padded).ok_or(ReduceError::Padding);
        (step_above, step_below) = (next(step_above, above)?, next(step_below, below)?);
        axes.push(axis);
    }
    axes.reverse();
    Ok(axes)
}

/// The type of elements, in the kernels' numbers.
struct Kind {
    size: usize,
    /// The number of parts of an element. Each part is reduced separately.
    parts: usize,
    kind: u32,
    nan: u64,
    infinity: u64,
}

impl Kind {
    fn of(elements: Elements, reduction: Reduction) -> Self {
        let plain = |kind| Self {
            size: elements.size(),
            parts: 1,
            kind,
            nan: 0,
            infinity: 0,
        };
        let float = |nan, infinity| Self {
            nan,
            infinity,
            ..plain(2)
        };
        let single = float(0x7FC0_0000, 0x7F80_0000);
        let double = float(0x7FF8 << 48, 0x7FF0 << 48);
        match elements {
            _ if matches!(reduction, Reduction::Mode | Reduction::Decimate) => plain(0),
            Elements::Int8 | Elements::Int16 | Elements::Int32 | Elements::Int64 => plain(1),
            Elements::Float16 => float(0x7E00, 0x7C00),
            Elements::BFloat16 => Self {
                kind: 3,
                ..float(0x7FC0, 0x7F80)
            },
            Elements::Float32 => single,
            Elements::Float64 => double,
            Elements::Complex64 => Self {
                size: 4,
                parts: 2,
                ..single
            },
            Elements::Complex128 => Self {
                size: 8,
                parts: 2,
                ..double
            },
            _ => plain(0),
        }
    }
}

/// Converts `n`, which is below 2³².
fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn bytes_of(parameters: &Parameters) -> &[u8] {
    let len = size_of::<Parameters>();
    // SAFETY: the structure is ten `u64`s, six `u32`s, and digits of two `u64`s and six `u32`s each.
    // As asserted above, these are all of its bytes, so that there is no padding.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(parameters).cast(), len) }
}

#[cfg(test)]
pub(crate) mod tests;
