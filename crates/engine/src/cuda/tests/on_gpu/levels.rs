//! Two streams, of which one is reduced from the other on the device.

use std::num::NonZeroUsize;
use std::sync::Arc;

use super::stream::{Run, Subject, Write};
use crate::contract::stream::{BatchInput, ReducedFrom, StreamEngine, Windows};
use crate::contract::{EngineError, KnownChain, Stage};
use crate::fakes::Numbers;
use crate::layout::BatchGrid;
use crate::reduce::oracle::KINDS;
use crate::reduce::{Elements, Reducer, Reduction};

/// A level, and the level below that its slices are reduced to.
#[derive(Clone, Debug)]
pub(in crate::cuda) struct Levels {
    pub(in crate::cuda) above: Subject,
    pub(in crate::cuda) below: Subject,
}

/// The sides that reduce windows: the device alone, or now and then also the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) enum Mix {
    DeviceAlone,
    /// Some windows are reduced by the host.
    Both,
}

/// The axes of two levels: an extent, the extents of subchunks, subchunks of shards, and a factor.
pub(in crate::cuda) type TwoAxes = (u64, [u64; 2], [u64; 2], usize);

impl Levels {
    /// The extent of the first axis is left out.
    pub(in crate::cuda) fn new(
        (reduction, elements): (Reduction, Elements),
        axes: &[TwoAxes],
        chain: &KnownChain,
        (epochs, per_batch): (usize, [usize; 2]),
    ) -> Self {
        let size = elements.size();
        let level = |number: usize, halve: bool, epochs| {
            let axes: Vec<_> = axes
                .iter()
                .map(|&(extent, subchunk, per, factor)| {
                    let factor = if halve { factor as u64 } else { 1 };
                    (extent.div_ceil(factor), subchunk[number], per[number])
                })
                .collect();
            Subject::new(&axes, size, chain.clone(), (epochs, per_batch[number]))
        };
        let above = level(0, false, epochs);
        let factors: Vec<usize> = axes[1..].iter().map(|axis| axis.3).collect();
        let reducer = Reducer::new(reduction, elements, above.job.grid.inner(), &factors).unwrap();
        let slices = (epochs * above.job.grid.epoch_slices()).div_ceil(axes[0].3);
        let first = usize::try_from(axes[0].1[1]).unwrap();
        let mut below = level(1, true, slices.div_ceil(first));
        below.job.reduced_from = Some(ReducedFrom {
            reducer,
            slices: axes[0].3,
            above: above.job.grid.clone(),
        });
        let mut this = Self { above, below };
        this.reduce();
        this
    }

    /// Sets the bytes of the level below to the host's reduction of the level above. Fill values
    /// complete the last epoch.
    pub(in crate::cuda) fn reduce(&mut self) {
        let from = self.below.job.reduced_from.as_ref().unwrap();
        let slice = self.above.job.grid.slice_bytes();
        let all = self.below.epochs * self.below.job.grid.epoch_bytes();
        let mut bytes = Vec::new();
        for window in self.above.bytes.chunks(from.slices * slice) {
            bytes.extend(on_host(from, window, slice));
        }
        let fill = &self.below.job.fill_value;
        let rest = fill.iter().cycle().take(all - bytes.len());
        bytes.extend(rest);
        self.below.bytes = bytes;
    }

    pub(in crate::cuda) fn any(seed: u64, stages: Vec<Stage>) -> Self {
        let mut numbers = Numbers::new(seed);
        let (reduction, elements) = loop {
            let elements = KINDS[numbers.below(KINDS.len())];
            let reduction = Reduction::ALL[numbers.below(Reduction::ALL.len())];
            if elements.can(reduction) {
                break (reduction, elements);
            }
        };
        let rank = 1 + numbers.below(4);
        let axes: Vec<TwoAxes> = (0..rank)
            .map(|_| {
                let mut small = |end| 1 + numbers.below(end) as u64;
                let (extent, subchunks) = (small(9), [small(4), small(4)]);
                let shards = [small(3), small(3)];
                (extent, subchunks, shards, 1 + numbers.below(2))
            })
            .collect();
        let swap = [1, elements.size()][numbers.below(2)];
        let chain = KnownChain {
            order: (0..rank).collect(),
            swap,
            stages,
        };
        let per_batch = [1 + numbers.below(5), 1 + numbers.below(3)];
        let epochs = 1 + numbers.below(9);
        let mut this = Self::new((reduction, elements), &axes, &chain, (epochs, per_batch));
        for subject in [&mut this.above, &mut this.below] {
            subject.job.inputs = 1 + numbers.below(4);
            subject.job.outputs = 1 + numbers.below(3);
        }
        if numbers.below(2) == 0 {
            let noise = (0..this.above.bytes.len()).map(|_| numbers.below(256) as u8);
            this.above.bytes = noise.collect();
            this.reduce();
        }
        this
    }
}

/// Reads from an input. Tries again, because a fault may be transient.
fn read(input: &mut dyn BatchInput, at: usize, bytes: &mut [u8]) -> Result<(), EngineError> {
    input.read(at, bytes).or_else(|_| input.read(at, bytes))
}

/// Returns a slice of the level below.
fn on_host(from: &ReducedFrom, window: &[u8], slice: usize) -> Vec<u8> {
    let slices: Vec<&[u8]> = window.chunks(slice).collect();
    let mut reduced = vec![0; from.reducer.reduced_bytes()];
    let threads = NonZeroUsize::MIN;
    from.reducer.reduce(&slices, &mut reduced, threads).unwrap();
    reduced
}

/// A batch that is being filled.
struct Filled {
    first: usize,
    batch: Arc<BatchGrid>,
    input: Box<dyn BatchInput>,
    /// The number of slices that the batch has so far.
    slices: usize,
}

/// Encodes both levels as a writer would, on one thread.
pub(in crate::cuda) struct Both<'a> {
    levels: &'a Levels,
    below: Arc<dyn StreamEngine>,
    runs: [Run<'a>; 2],
    numbers: Numbers,
    mix: Mix,
    /// Whether a slice is kept on the device.
    kept: bool,
    /// A slice that the host keeps instead.
    kept_here: Option<Vec<u8>>,
    /// The batch of the level below.
    filled: Option<Filled>,
    batches: std::vec::IntoIter<(usize, Arc<BatchGrid>)>,
    /// Windows that the device has reduced.
    pub(in crate::cuda) on_device: usize,
    /// Whether a slice was kept at some time.
    pub(in crate::cuda) has_kept: bool,
}

impl<'a> Both<'a> {
    pub(in crate::cuda) fn new(
        levels: &'a Levels,
        [above, below]: [Arc<dyn StreamEngine>; 2],
        (seed, mix, tries): (u64, Mix, usize),
    ) -> Result<Self, EngineError> {
        let mut runs = [
            Run::new(&levels.above, above, seed)?,
            Run::new(&levels.below, below.clone(), seed + 1)?,
        ];
        for run in &mut runs {
            run.tries = tries;
        }
        Ok(Self {
            levels,
            below,
            runs,
            numbers: Numbers::new(seed + 2),
            mix,
            kept: false,
            kept_here: None,
            filled: None,
            batches: levels.below.batches().into_iter(),
            on_device: 0,
            has_kept: false,
        })
    }

    /// Encodes all batches, and checks them. Returns how many windows the device has reduced, and
    /// whether slices were kept there.
    pub(in crate::cuda) fn all(mut self, write: Write<'_>) -> Result<(usize, bool), EngineError> {
        let levels = self.levels;
        let slice = levels.above.job.grid.slice_bytes();
        let epoch_slices = levels.above.job.grid.epoch_slices();
        let batches = levels.above.batches();
        let last = batches.len() - 1;
        for (number, (first, batch)) in batches.into_iter().enumerate() {
            let mut input = self.runs[0].input()?;
            let slices = batch.epochs() * epoch_slices;
            let start = first * epoch_slices;
            let mut written = 0;
            let mut reduced = 0;
            // Reductions follow as soon as slices are whole, or later.
            while written < slices {
                let count = 1 + self.numbers.below(slices - written);
                let bytes = &levels.above.bytes[(start + written) * slice..][..count * slice];
                self.pieces(&mut *input, written * slice, bytes, write)?;
                written += count;
                if self.numbers.below(2) == 0 && written < slices {
                    reduced = self.reduce(&mut input, reduced..written, false)?;
                }
            }
            let reduced = self.reduce(&mut input, reduced..slices, number == last)?;
            assert_eq!(reduced, slices);
            self.runs[0].submit(first, batch, input)?;
        }
        self.end()?;
        let [above, below] = self.runs;
        levels.above.check(&above.finish()?);
        levels.below.check(&below.finish()?);
        Ok((self.on_device, self.has_kept))
    }

    fn pieces(
        &mut self,
        input: &mut dyn BatchInput,
        at: usize,
        bytes: &[u8],
        write: Write<'_>,
    ) -> Result<(), EngineError> {
        let mut done = 0;
        while done < bytes.len() {
            let most = [40, 4000, usize::MAX][self.numbers.below(3)];
            let len = (1 + self.numbers.below(bytes.len() - done)).min(most);
            write(input, at + done, &bytes[done..done + len])?;
            done += len;
        }
        Ok(())
    }

    /// Reduces `slices` of the batch above, or keeps the last one of them. Returns where they end.
    fn reduce(
        &mut self,
        input: &mut Box<dyn BatchInput>,
        slices: std::ops::Range<usize>,
        is_last: bool,
    ) -> Result<usize, EngineError> {
        let per_window = self.levels.below.job.reduced_from.as_ref().unwrap().slices;
        let mut at = slices.start;
        loop {
            let kept = usize::from(self.kept || self.kept_here.is_some());
            let available = kept + slices.end - at;
            if available == 0 {
                return Ok(at);
            }
            let is_short = is_last && self.numbers.below(2) == 0;
            let windows = if is_short {
                available.div_ceil(per_window)
            } else {
                available / per_window
            };
            if windows == 0 {
                if at < slices.end {
                    self.keep(&mut **input, at)?;
                    at += 1;
                }
                return Ok(at);
            }
            let (room, below_at) = self.below_input()?;
            let windows = 1 + self.numbers.below(windows.min(room));
            let end = (at + windows * per_window - kept).min(slices.end);
            self.windows(Some((&mut **input, at..end)), windows, below_at)?;
            at = end;
            self.submit_if_full()?;
        }
    }

    /// Returns the slices for which the batch below has room, and how many it has.
    fn below_input(&mut self) -> Result<(usize, usize), EngineError> {
        if self.filled.is_none() {
            let input = self.runs[1].input()?;
            let (first, batch) = self.batches.next().unwrap();
            self.filled = Some(Filled {
                first,
                batch,
                input,
                slices: 0,
            });
        }
        let filled = self.filled.as_ref().unwrap();
        let all = filled.batch.epochs() * self.levels.below.job.grid.epoch_slices();
        Ok((all - filled.slices, filled.slices))
    }

    fn submit_if_full(&mut self) -> Result<(), EngineError> {
        if self.below_input()?.0 == 0
            && let Some(filled) = self.filled.take()
        {
            self.runs[1].submit(filled.first, filled.batch, filled.input)?;
        }
        Ok(())
    }

    fn keep(&mut self, input: &mut dyn BatchInput, slice: usize) -> Result<(), EngineError> {
        let is_here = self.mix == Mix::Both && self.numbers.below(4) == 0;
        if !is_here && self.below.keep(input, slice).is_ok() {
            self.kept = true;
            self.has_kept = true;
            return Ok(());
        }
        let mut bytes = vec![0; self.levels.above.job.grid.slice_bytes()];
        read(input, slice * bytes.len(), &mut bytes)?;
        self.kept_here = Some(bytes);
        Ok(())
    }

    /// Makes `count` slices behind the first `made` ones of the batch below.
    fn windows(
        &mut self,
        mut above: Option<(&mut (dyn BatchInput + 'static), std::ops::Range<usize>)>,
        count: usize,
        made: usize,
    ) -> Result<(), EngineError> {
        let from = self.levels.below.job.reduced_from.as_ref().unwrap();
        let slice = self.levels.above.job.grid.slice_bytes();
        let below_slice = self.levels.below.job.grid.slice_bytes();
        let Filled { input, slices, .. } = self.filled.as_mut().unwrap();
        *slices += count;
        let is_here = self.mix == Mix::Both && self.numbers.below(4) == 0;
        if self.kept_here.is_none() && !is_here {
            let windows = Windows {
                kept: self.kept,
                above: above
                    .as_mut()
                    .map(|(input, slices)| (&mut **input, slices.clone())),
            };
            if self
                .below
                .reduce(windows, &mut **input, made * below_slice)
                .is_ok()
            {
                self.on_device += count;
                self.kept = false;
                return Ok(());
            }
        }
        let mut bytes = self.kept_here.take().unwrap_or_default();
        if self.kept {
            bytes.resize(slice, 0);
            // A fault may be transient.
            (self.below.take_kept(&mut bytes)).or_else(|_| self.below.take_kept(&mut bytes))?;
            self.kept = false;
        }
        if let Some((input, slices)) = above {
            let kept = bytes.len();
            bytes.resize(kept + slices.len() * slice, 0);
            read(input, slices.start * slice, &mut bytes[kept..])?;
        }
        let windows = bytes.chunks(from.slices * slice);
        for (number, window) in windows.enumerate() {
            let reduced = on_host(from, window, slice);
            input.write((made + number) * below_slice, &reduced)?;
        }
        Ok(())
    }

    /// The window of a slice that is still kept, and the fill value behind the last slice.
    fn end(&mut self) -> Result<(), EngineError> {
        if self.kept || self.kept_here.is_some() {
            let (_, made) = self.below_input()?;
            self.windows(None, 1, made)?;
            self.submit_if_full()?;
        }
        if let Some(filled) = self.filled.take() {
            let Filled {
                first,
                batch,
                mut input,
                slices,
            } = filled;
            let grid = &self.levels.below.job.grid;
            let at = slices * grid.slice_bytes();
            let all = batch.epochs() * grid.epoch_bytes();
            let begin = first * grid.epoch_bytes();
            input.write(at, &self.levels.below.bytes[begin + at..begin + all])?;
            self.runs[1].submit(first, batch, input)?;
        }
        Ok(())
    }
}
