//! Copies slabs into subchunk slots and back. The kernels are in `scatter.cu` and `unscatter.cu`.

mod parameters;
mod plain;
mod tiles;

use std::fmt;

use super::spans::Launch;
use super::units::{WIDEST, gcd, number, period, widest_unit};
use crate::cuda::driver::{Access, Arg, DeviceSpan, Driver, DriverError, StreamId};
use crate::layout::Lift;
use parameters::{LiftParameters, TileParameters, bytes_of_lift, bytes_of_tile};
use plain::plain;
use tiles::tiled;

/// The number of threads per block, the same as in the kernels.
const BLOCK: u32 = 256;

/// The number of units that a block of the plain kernels moves, the same as in the kernels.
const UNITS_PER_BLOCK: usize = 1024;

/// The names of the plain kernels, scatter and unscatter, by the exponent of the size of a unit.
const PLAIN: [[&str; 2]; 5] = [
    ["scatter_1", "unscatter_1"],
    ["scatter_2", "unscatter_2"],
    ["scatter_4", "unscatter_4"],
    ["scatter_8", "unscatter_8"],
    ["scatter_16", "unscatter_16"],
];

const TILED: [[&str; 2]; 5] = [
    ["scatter_tile_1", "unscatter_tile_1"],
    ["scatter_tile_2", "unscatter_tile_2"],
    ["scatter_tile_4", "unscatter_tile_4"],
    ["scatter_tile_8", "unscatter_tile_8"],
    ["scatter_tile_16", "unscatter_tile_16"],
];

/// The kernels to launch, with their parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kernels {
    /// For runs of several units, or for runs of one unit that the tiled kernels cannot transpose.
    Plain(Box<LiftParameters>),
    /// For runs of one unit whose neighbours in the slot are no neighbours in the slab.
    Tiled(Box<TileParameters>),
}

/// A plan to scatter one slab into its slots, and to gather the slab from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlabScatter {
    kernels: Kernels,
    /// The size of a unit, in bytes.
    unit: usize,
    blocks: u32,
    /// The number of bytes of the fill pattern that the kernels read.
    pattern: usize,
    slab_len: usize,
    first_slot: usize,
    last_slot: usize,
    slot_stride: usize,
    /// The end of the last byte of a slot that the kernels access, from the begin of the slot.
    end: usize,
}

/// The reason why a slab cannot be scattered on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScatterError {
    /// The fill value does not have the size of an element.
    FillValue { got: usize, expected: usize },
    /// Groups of `swap` bytes, which are reversed, do not fit a whole number of times into a unit.
    Swap { swap: usize, unit: usize },
    /// The slab, or a subchunk, has more units than the kernels can count.
    TooLarge { bytes: usize, unit: usize },
}

impl fmt::Display for ScatterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FillValue { got, expected } => write!(
                f,
                "a fill value of {got} bytes is not an element of {expected} bytes"
            ),
            Self::Swap { swap, unit } => write!(
                f,
                "groups of {swap} bytes cannot be swapped in units of {unit} bytes"
            ),
            Self::TooLarge { bytes, unit } => write!(
                f,
                "{bytes} bytes are too many for a launch in units of {unit} bytes"
            ),
        }
    }
}

impl std::error::Error for ScatterError {}

impl SlabScatter {
    /// Plans the scatter of the slab of `lift`. Every group of `swap` bytes is reversed between slab and
    /// slots; 1 reverses nothing. `fill_value` has the byte order of the slab.
    pub fn new(lift: &Lift, swap: usize, fill_value: &[u8]) -> Result<Self, ScatterError> {
        let element_size = lift.element_size();
        if fill_value.len() != element_size {
            return Err(ScatterError::FillValue {
                got: fill_value.len(),
                expected: element_size,
            });
        }
        let unit = widest_unit(lift);
        if !swap.is_power_of_two() || swap > unit {
            return Err(ScatterError::Swap { swap, unit });
        }
        let slots = lift.last_slot() - lift.first_slot();
        let too_large = |bytes| ScatterError::TooLarge { bytes, unit };
        // Fast division needs numbers of units below 2³¹ in the slab. The kernels use the largest `u32` as
        // the number of no slot.
        if lift.slab_len() / unit >= 1 << 31 {
            return Err(too_large(lift.slab_len()));
        }
        if u32::try_from(lift.end() / unit).is_err() || slots >= u32::MAX as usize {
            return Err(too_large(lift.end().max(slots)));
        }
        let (kernels, blocks) = if let Some((parameters, blocks)) = tiled(lift, unit, swap) {
            (Kernels::Tiled(Box::new(parameters)), blocks)
        } else {
            let parameters = plain(lift, unit, swap)?;
            let blocks = (lift.slab_len() / unit).div_ceil(UNITS_PER_BLOCK);
            (
                Kernels::Plain(Box::new(parameters)),
                number(blocks).ok_or(too_large(lift.slab_len()))?,
            )
        };
        Ok(Self {
            kernels,
            unit,
            blocks,
            pattern: period(element_size, unit) * unit,
            slab_len: lift.slab_len(),
            first_slot: lift.first_slot(),
            last_slot: lift.last_slot(),
            slot_stride: lift.slot_stride(),
            end: lift.end(),
        })
    }

    /// Returns the fill value in the form that the kernels read: repeated to a multiple of the widest unit.
    /// The result serves all slabs with this fill value, and is at most 16 times as long as the fill value.
    pub fn fill_pattern(fill_value: &[u8]) -> Vec<u8> {
        fill_value.repeat(WIDEST / gcd(fill_value.len(), WIDEST))
    }

    /// Enqueues a scatter of `slab` into `slots`, whose first byte is that of slot 0 of the batch. `flags`,
    /// if any, begins with the `u32` flag of slot 0. `fill` begins with the [pattern](Self::fill_pattern). If
    /// a slot gets an element that is not the fill value, the slot's flag is set to 1. Other flags are
    /// unchanged.
    ///
    /// Reads `slab` and `fill`. Updates the flags of the slots that the slab touches, and writes
    /// those slots. Bytes of the slots for which the slab has no element are unchanged.
    ///
    /// # Errors
    /// A span is too short or misaligned, or the driver fails.
    ///
    /// # Safety
    /// The caller keeps the rules that the module `driver` lists.
    pub unsafe fn enqueue_scatter(
        &self,
        driver: &dyn Driver,
        stream: StreamId,
        slab: DeviceSpan,
        slots: DeviceSpan,
        flags: Option<DeviceSpan>,
        fill: DeviceSpan,
    ) -> Result<(), DriverError> {
        let access = [Access::Read, Access::Write, Access::Update];
        // SAFETY: this function has the same requirements, which its caller keeps.
        unsafe { self.launch(0, driver, stream, (slab, slots, flags, fill), access) }
    }

    /// Enqueues the inverse of a scatter: gathers `slab` from `slots`. If `present` is given, subchunks whose
    /// flag is 0 yield the fill value.
    ///
    /// Reads the slots that the slab touches, their flags and `fill`, and writes `slab`.
    ///
    /// # Errors
    /// The errors are those of [`enqueue_scatter`](Self::enqueue_scatter).
    ///
    /// # Safety
    /// The caller keeps the rules that the module `driver` lists.
    pub unsafe fn enqueue_unscatter(
        &self,
        driver: &dyn Driver,
        stream: StreamId,
        slots: DeviceSpan,
        slab: DeviceSpan,
        present: Option<DeviceSpan>,
        fill: DeviceSpan,
    ) -> Result<(), DriverError> {
        let access = [Access::Write, Access::Read, Access::Read];
        // SAFETY: this function has the same requirements, which its caller keeps.
        unsafe { self.launch(1, driver, stream, (slab, slots, present, fill), access) }
    }

    /// # Safety
    /// The caller keeps the rules that the module `driver` lists.
    unsafe fn launch(
        &self,
        direction: usize,
        driver: &dyn Driver,
        stream: StreamId,
        (slab, slots, flags, fill): (DeviceSpan, DeviceSpan, Option<DeviceSpan>, DeviceSpan),
        [slab_access, slots_access, flags_access]: [Access; 3],
    ) -> Result<(), DriverError> {
        let exponent = self.unit.trailing_zeros() as usize;
        let (names, parameters) = match &self.kernels {
            Kernels::Plain(parameters) => (&PLAIN, bytes_of_lift(parameters)),
            Kernels::Tiled(parameters) => (&TILED, bytes_of_tile(parameters)),
        };
        let launch = Launch {
            driver,
            stream,
            kernel: names[exponent][direction],
        };
        let slab = launch.elements("the slab", slab, self.slab_len, 1, self.unit)?;
        // `Lift` guarantees that these products do not overflow: they are within the batch.
        let begin = self.first_slot * self.slot_stride;
        let end = self.last_slot * self.slot_stride + self.end;
        let slots = launch.elements("the slots", slots, end, 1, self.unit)?;
        let (flags, fill) = match flags {
            Some(flags) => {
                let flags = launch.elements("the flags", flags, self.last_slot + 1, 4, 4)?;
                let fill = launch.elements("the fill value", fill, self.pattern, 1, self.unit)?;
                (
                    Arg::Span(after(flags, self.first_slot * 4), flags_access),
                    Arg::Span(fill, Access::Read),
                )
            }
            None => (Arg::Null, Arg::Null),
        };
        let args = [
            Arg::Struct(parameters),
            Arg::Span(slab, slab_access),
            Arg::Span(after(slots, begin), slots_access),
            flags,
            fill,
        ];
        // SAFETY: the caller keeps the rules of the driver. The digits count each unit of the slab
        // once, and `slab` has as many units. The digits' steps add up to at most the last slot,
        // and to the end of the slab in that slot. `slots` reaches up to there. There is a flag for
        // each slot up to the last one, and `fill` holds a period of units. All addresses are
        // aligned to the unit: the steps and the spans' offsets are multiples of the unit.
        unsafe { launch.run(self.blocks, BLOCK, &args) }
    }
}

fn after(span: DeviceSpan, bytes: usize) -> DeviceSpan {
    DeviceSpan {
        memory: span.memory,
        offset: span.offset + bytes,
        len: span.len - bytes,
    }
}

#[cfg(test)]
pub(crate) mod tests;
