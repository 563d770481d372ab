//! Copies boxes of subchunks from their slots to a strided array. The kernels are in `place.cu`.

use std::fmt;
use std::ops::Range;

use super::spans::{Launch, Slots, sub_span};
use super::units::{WIDEST, division, number, period};
use crate::cuda::driver::{Access, Arg, DeviceSpan, Driver, DriverError, StreamId};

/// The number of threads per block, the same as in the kernels.
const BLOCK: u32 = 256;
/// The number of units that a block copies, the same as in the kernels.
const UNITS_PER_BLOCK: usize = 1024;
/// The sizes of a part and of a digit in the table, in bytes, the same as in the kernels.
const PART: usize = 32;
const DIGIT: usize = 32;
/// The source of a part whose elements are the fill value, the same as in the kernels.
const ABSENT: u64 = u64::MAX;
/// The least number that a part's number of units, and a launch's number of blocks, do not reach.
const TOO_MANY: usize = 1 << 31;

/// The kernels, by the exponent of the size of a unit.
const KERNELS: [&str; 5] = ["place_1", "place_2", "place_4", "place_8", "place_16"];

/// The properties that all boxes of a call share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceLayout {
    pub element_size: usize,
    /// Every group of so many bytes is reversed between slot and array; 1 reverses nothing.
    pub swap: usize,
    /// The number of bytes from one slot to the next.
    pub slot_stride: usize,
    /// For each axis of the array, the number of bytes between neighbours in a slot.
    pub slot_strides: Vec<usize>,
    /// For each axis, the number of bytes between neighbours in the array.
    pub array_strides: Vec<usize>,
}

/// A box of one subchunk, and its place in the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedBox {
    /// The number of the subchunk's slot; `None` if the elements are the fill value.
    pub slot: Option<usize>,
    /// The first element of the box in the subchunk, along each axis.
    pub start: Vec<usize>,
    pub shape: Vec<usize>,
    /// The offset of the box's first element in the array, in bytes.
    pub target: usize,
}

/// The reason why boxes cannot be placed by the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceError {
    /// A box, or the layout, has another number of axes than the array.
    Rank,
    /// Groups of `swap` bytes, which are reversed, are not whole in units of `unit` bytes: the array's memory,
    /// or its strides, are not aligned to them.
    Swap { swap: usize, unit: usize },
    /// A number of bytes, units or blocks is more than the kernels can count.
    TooLarge,
}

impl fmt::Display for PlaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank => f.write_str("a box has another number of axes than the array"),
            Self::Swap { swap, unit } => write!(
                f,
                "groups of {swap} bytes are reversed, and the array's memory or its strides are only aligned to {unit} bytes"
            ),
            Self::TooLarge => f.write_str("the boxes have more bytes than a device can count"),
        }
    }
}

impl std::error::Error for PlaceError {}

/// An axis along which a box goes on, on both sides, or several such axes without a gap between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Digit {
    extent: usize,
    /// The number of bytes from one value to the next, in the slot and in the array.
    source: usize,
    target: usize,
}

/// A box as digits, the slowest first. The last digit counts bytes.
#[derive(Clone, Debug)]
struct Part {
    /// The offset of the first byte in the slots; `None` if the elements are the fill value.
    source: Option<usize>,
    target: usize,
    digits: Vec<Digit>,
    /// The size of the widest unit that divides all offsets, steps and rows.
    unit: usize,
}

impl Part {
    /// Describes `placed`, whose array begins at the device's address `address`. Returns `None` for a box without
    /// elements.
    fn new(
        layout: &PlaceLayout,
        placed: &PlacedBox,
        address: u64,
    ) -> Result<Option<Self>, PlaceError> {
        let rank = layout.array_strides.len();
        let lens = [
            placed.start.len(),
            placed.shape.len(),
            layout.slot_strides.len(),
        ];
        if lens != [rank; 3] {
            return Err(PlaceError::Rank);
        }
        if placed.shape.contains(&0) || layout.element_size == 0 {
            return Ok(None);
        }
        let mut axes: Vec<Digit> = (0..rank)
            .map(|axis| Digit {
                extent: placed.shape[axis],
                source: layout.slot_strides[axis],
                target: layout.array_strides[axis],
            })
            .filter(|digit| digit.extent > 1)
            .collect();
        // Writes should be as long as possible.
        axes.sort_by_key(|digit| std::cmp::Reverse(digit.target));
        axes.push(Digit {
            extent: layout.element_size,
            source: 1,
            target: 1,
        });
        let digits = axes.into_iter().try_fold(Vec::new(), merge);
        let digits = digits.ok_or(PlaceError::TooLarge)?;
        let start = |slot: usize| {
            let steps = std::iter::zip(&placed.start, &layout.slot_strides);
            let first = slot.checked_mul(layout.slot_stride);
            steps.fold(first, |sum, (start, stride)| {
                sum?.checked_add(start.checked_mul(*stride)?)
            })
        };
        let source = match placed.slot {
            Some(slot) => Some(start(slot).ok_or(PlaceError::TooLarge)?),
            None => None,
        };
        let steps = digits[..digits.len() - 1].iter();
        let bits = steps.fold(source.unwrap_or(0), |bits, digit| {
            bits | digit.source | digit.target
        });
        let run = digits[digits.len() - 1].extent;
        let bits = (bits | run | placed.target) as u64 | address;
        let unit = 1_usize << bits.trailing_zeros().min(WIDEST.trailing_zeros());
        // Fill values are not reversed.
        if source.is_some() && !unit.is_multiple_of(layout.swap) {
            let swap = layout.swap;
            return Err(PlaceError::Swap { swap, unit });
        }
        Ok(Some(Self {
            source,
            target: placed.target,
            digits,
            unit,
        }))
    }

    /// Returns the number of units; `None` if a kernel cannot count them.
    fn units(&self) -> Option<usize> {
        let mut extents = self.digits.iter().map(|digit| digit.extent);
        let bytes = extents.try_fold(1_usize, usize::checked_mul);
        bytes
            .map(|bytes| bytes / self.unit)
            .filter(|&units| units < TOO_MANY)
    }

    /// Returns the end of the last byte, in the slots and in the array.
    fn ends(&self) -> Option<(usize, usize)> {
        let mut ends = (self.source.unwrap_or(0), self.target);
        for digit in &self.digits {
            let last = digit.extent - 1;
            ends.0 = ends.0.checked_add(last.checked_mul(digit.source)?)?;
            ends.1 = ends.1.checked_add(last.checked_mul(digit.target)?)?;
        }
        let slots = match self.source {
            Some(_) => ends.0.checked_add(1)?,
            None => 0,
        };
        Some((slots, ends.1.checked_add(1)?))
    }

    /// Returns the digits that count units. None but an only one has a single value, by which the kernels do not
    /// divide.
    fn in_units(&self) -> Vec<Digit> {
        let mut digits = self.digits.clone();
        if let Some(mut bytes) = digits.pop() {
            bytes.extent /= self.unit;
            (bytes.source, bytes.target) = (self.unit, self.unit);
            if bytes.extent > 1 || digits.is_empty() {
                digits.push(bytes);
            }
        }
        digits
    }

    /// Appends the part's record, of `len` bytes, to `table`.
    fn write(&self, table: &mut Vec<u8>, units: usize, len: usize) -> Result<(), PlaceError> {
        let end = table.len() + len;
        let number = |n: usize| number(n).ok_or(PlaceError::TooLarge);
        let digits = self.in_units();
        let source = self.source.map_or(ABSENT, |source| source as u64);
        table.extend(source.to_le_bytes());
        table.extend((self.target as u64).to_le_bytes());
        table.extend(number(units)?.to_le_bytes());
        table.extend(number(digits.len())?.to_le_bytes());
        table.extend([0; 8]);
        for digit in digits {
            let (magic, shift) = division(digit.extent);
            for word in [number(digit.extent)?, magic, shift, 0] {
                table.extend(word.to_le_bytes());
            }
            for step in [digit.source, digit.target] {
                table.extend((step as u64).to_le_bytes());
            }
        }
        table.resize(end, 0);
        Ok(())
    }
}

/// Appends `inner` to the digits `outer`, or makes it one digit with the last of them. `None` if the number of
/// values overflows.
fn merge(mut outer: Vec<Digit>, inner: Digit) -> Option<Vec<Digit>> {
    if let Some(last) = outer.last_mut()
        && inner.source.checked_mul(inner.extent) == Some(last.source)
        && inner.target.checked_mul(inner.extent) == Some(last.target)
    {
        let extent = last.extent.checked_mul(inner.extent)?;
        *last = Digit { extent, ..inner };
    } else {
        outer.push(inner);
    }
    Some(outer)
}

/// One launch of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PlaceLaunch {
    /// The size of a unit, in bytes.
    unit: usize,
    /// The bytes of its records in the table.
    table: Range<usize>,
    record: usize,
    parts: usize,
    /// The number of blocks for each part.
    blocks: usize,
}

/// The launches that place boxes, and the table that they read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacePlan {
    /// The table, to be copied to the device.
    pub table: Vec<u8>,
    launches: Vec<PlaceLaunch>,
    element_size: usize,
    swap: usize,
    /// The end of the last byte that is read from the slots, and that is written to the array.
    ends: (usize, usize),
}

/// Returns the most bytes of the table of `boxes` boxes of arrays with `rank` axes.
pub fn table_bytes(boxes: usize, rank: usize) -> Option<usize> {
    let digits = rank.checked_add(1)?.checked_mul(DIGIT)?;
    boxes.checked_mul(digits.checked_add(PART)?)
}

impl PlacePlan {
    /// Plans how `boxes` are placed in an array that begins at the device's address `address`.
    ///
    /// # Errors
    /// The boxes cannot be placed by the kernels.
    pub fn new(
        layout: &PlaceLayout,
        boxes: &[PlacedBox],
        address: u64,
    ) -> Result<Self, PlaceError> {
        let mut plan = Self {
            element_size: layout.element_size,
            swap: layout.swap,
            ..Self::default()
        };
        let mut parts = Vec::with_capacity(boxes.len());
        for placed in boxes {
            if let Some(part) = Part::new(layout, placed, address)? {
                let (source, target) = part.ends().ok_or(PlaceError::TooLarge)?;
                plan.ends = (plan.ends.0.max(source), plan.ends.1.max(target));
                let units = part.units().ok_or(PlaceError::TooLarge)?;
                parts.push((part, units));
            }
        }
        parts.sort_by_key(|(part, _)| part.unit);
        for of_unit in parts.chunk_by(|(a, _), (b, _)| a.unit == b.unit) {
            let most = of_unit.iter().map(|(_, units)| *units).max().unwrap_or(1);
            let blocks = most.div_ceil(UNITS_PER_BLOCK);
            let digits = of_unit.iter().map(|(part, _)| part.digits.len()).max();
            let record = PART + digits.unwrap_or(1) * DIGIT;
            for of_launch in of_unit.chunks((TOO_MANY - 1) / blocks) {
                let first = plan.table.len();
                for (part, units) in of_launch {
                    part.write(&mut plan.table, *units, record)?;
                }
                plan.launches.push(PlaceLaunch {
                    unit: of_launch[0].0.unit,
                    table: first..plan.table.len(),
                    record,
                    parts: of_launch.len(),
                    blocks,
                });
            }
        }
        Ok(plan)
    }

    /// Enqueues the launches. `table` begins with the table of the plan, and `fill` with the
    /// [pattern](super::scatter::SlabScatter::fill_pattern) of the fill value, as it is in the array. `array` begins
    /// with the first byte of the array. Reads the slots of the boxes, and writes the elements of the boxes alone.
    ///
    /// # Errors
    /// A span is too short or misaligned, or the driver fails.
    ///
    /// # Safety
    /// The caller keeps the rules that the module `driver` lists.
    pub unsafe fn enqueue(
        &self,
        driver: &dyn Driver,
        stream: StreamId,
        (table, slots): (DeviceSpan, Slots),
        fill: DeviceSpan,
        array: DeviceSpan,
    ) -> Result<(), DriverError> {
        for of_unit in &self.launches {
            let exponent = of_unit.unit.trailing_zeros() as usize;
            let launch = Launch {
                driver,
                stream,
                kernel: KERNELS[exponent.min(4)],
            };
            let table = launch.elements("the table", table, of_unit.table.end, 1, 16)?;
            let table = sub_span(table, of_unit.table.clone());
            let all = launch.slots("the slots", slots)?;
            launch.require(self.ends.0 <= all.len, || {
                let (end, len) = (self.ends.0, all.len);
                format!("boxes end at byte {end} of slots of {len} bytes")
            })?;
            let array = launch.elements("the array", array, self.ends.1, 1, 1)?;
            let period = period(self.element_size, of_unit.unit);
            let fill = launch.elements("the fill value", fill, period, of_unit.unit, 16)?;
            let mut parameters = Vec::with_capacity(24);
            parameters.extend((of_unit.record as u64).to_ne_bytes());
            for n in [of_unit.blocks, self.swap, period, 0] {
                parameters.extend(number(n).unwrap_or(u32::MAX).to_ne_bytes());
            }
            let args = [
                Arg::Struct(&parameters),
                Arg::Span(table, Access::Read),
                Arg::Span(all, Access::Read),
                Arg::Span(fill, Access::Read),
                Arg::Span(array, Access::Write),
            ];
            let grid = number(of_unit.parts * of_unit.blocks).unwrap_or(u32::MAX);
            // SAFETY: the caller keeps the rules of the driver. The digits of a part count its units, and their
            // steps end at `ends`, up to which the slots and the array reach. `fill` holds a period of units. All
            // offsets and steps, and the address of the array, are multiples of the unit.
            unsafe { launch.run(grid, BLOCK, &args)? };
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests;
