//! Streams, and their expected result: the host encodes one subchunk at a time.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::contract::stream::{
    BatchInput, BatchOutput, EncodedBatch, Encoder, FailedBatch, Returned, Room, StreamChain,
    StreamEngine, StreamJob,
};
use crate::contract::{Chain, Engine, EngineError, KnownChain, ShardJob, Stage};
use crate::fakes::Numbers;
use crate::host::HostEngine;
use crate::layout::{BatchGrid, StreamGrid, SubchunkGrid};

/// A stream, and the bytes of its slices.
#[derive(Clone, Debug)]
pub(in crate::cuda) struct Subject {
    pub(in crate::cuda) job: StreamJob,
    /// The number of epochs.
    pub(in crate::cuda) epochs: usize,
    pub(in crate::cuda) bytes: Vec<u8>,
}

/// An axis: its elements, the elements of a subchunk, and the subchunks of a shard.
pub(in crate::cuda) type Axis = (u64, u64, u64);

impl Subject {
    /// Returns a stream with these `axes`. The extent of the first axis is left out.
    pub(in crate::cuda) fn new(
        axes: &[Axis],
        element: usize,
        chain: KnownChain,
        (epochs, per_batch): (usize, usize),
    ) -> Self {
        let subchunk: Vec<u64> = axes.iter().map(|(_, subchunk, _)| *subchunk).collect();
        let shard: Vec<u64> = axes.iter().map(|(_, sub, per)| sub * per).collect();
        let inner: Vec<u64> = axes[1..].iter().map(|(extent, ..)| *extent).collect();
        let shard = SubchunkGrid::new(&shard, &subchunk, element).unwrap();
        let grid = StreamGrid::new(shard, &inner).unwrap();
        let fill_value: Vec<u8> = (0..element).map(|byte| 0xC0 | byte as u8).collect();
        let mut this = Self {
            job: StreamJob {
                chain: StreamChain::Known(chain),
                fill_value,
                store_empty: false,
                threads: NonZeroUsize::MIN,
                huge_pages: false,
                epochs: grid.whole_batch(per_batch),
                room: Room { head: 5, tail: 3 },
                inputs: 3,
                outputs: 2,
                lending: None,
                reduced_from: None,
                grid,
            },
            epochs,
            bytes: Vec::new(),
        };
        this.fill(3);
        this
    }

    /// Fills in the elements. One in `empty` subchunks is empty.
    pub(in crate::cuda) fn fill(&mut self, empty: usize) {
        let grid = &self.job.grid;
        let element = grid.shard().element_size();
        let shape = self.shape();
        let subchunk = grid.shard().subchunk();
        let mut numbers = Numbers::new(7);
        let all: usize = shape.iter().product();
        self.bytes.clear();
        for number in 0..all {
            let mut rest = number;
            let mut hash = 17;
            for axis in (0..shape.len()).rev() {
                hash = hash * 31 + rest % shape[axis] / subchunk[axis];
                rest /= shape[axis];
            }
            if hash % empty.max(1) == 1 {
                self.bytes.extend_from_slice(&self.job.fill_value);
            } else {
                let value = numbers.below(7) as u8;
                self.bytes
                    .extend((0..element).map(|byte| value + byte as u8));
            }
        }
    }

    /// Returns a random stream.
    pub(in crate::cuda) fn any(seed: u64, stages: Vec<Stage>) -> Self {
        let mut numbers = Numbers::new(seed);
        let rank = 1 + numbers.below(4);
        let axes: Vec<Axis> = (0..rank)
            .map(|_| {
                let (extent, subchunk) = (1 + numbers.below(9), 1 + numbers.below(4));
                (extent as u64, subchunk as u64, 1 + numbers.below(3) as u64)
            })
            .collect();
        let element = [1, 2, 4, 8, 3][numbers.below(5)];
        let mut order: Vec<usize> = (0..rank).collect();
        for axis in (1..rank).rev() {
            order.swap(axis, numbers.below(axis + 1));
        }
        let swap = if element == 3 {
            1
        } else {
            [1, element][numbers.below(2)]
        };
        let chain = KnownChain {
            order,
            swap,
            stages,
        };
        let batches = (1 + numbers.below(9), 1 + numbers.below(7));
        let mut this = Self::new(&axes, element, chain, batches);
        this.job.store_empty = numbers.below(4) == 0;
        this.job.room = Room {
            head: numbers.below(3) * 4,
            tail: numbers.below(2) * 7,
        };
        this.job.inputs = 1 + numbers.below(4);
        this.job.outputs = 1 + numbers.below(3);
        this.job.threads = NonZeroUsize::new(1 + numbers.below(3)).unwrap();
        let empty = [1, 2, 3, 1000][numbers.below(4)];
        this.fill(empty);
        this
    }

    pub(in crate::cuda) fn chain(&self) -> &KnownChain {
        match &self.job.chain {
            StreamChain::Known(chain) => chain,
            StreamChain::Foreign(_) => panic!("there is none"),
        }
    }

    /// Returns the elements along each axis.
    fn shape(&self) -> Vec<usize> {
        let grid = &self.job.grid;
        let mut shape = vec![self.epochs * grid.epoch_slices()];
        shape.extend(grid.inner());
        shape
    }

    /// Returns the elements of a subchunk, in C order.
    fn elements(&self, at: &[usize]) -> Vec<u8> {
        let grid = self.job.grid.shard();
        let (shape, subchunk) = (self.shape(), grid.subchunk());
        let mut elements = Vec::new();
        for mut number in 0..subchunk.iter().product::<usize>() {
            let mut place = Some(0);
            let mut stride = 1;
            for axis in (0..shape.len()).rev() {
                let coordinate = at[axis] * subchunk[axis] + number % subchunk[axis];
                number /= subchunk[axis];
                place = place.filter(|_| coordinate < shape[axis]);
                place = place.map(|place: usize| place + coordinate * stride);
                stride *= shape[axis];
            }
            let size = grid.element_size();
            match place {
                Some(place) => {
                    elements.extend_from_slice(&self.bytes[place * size..(place + 1) * size]);
                }
                None => elements.extend_from_slice(&self.job.fill_value),
            }
        }
        elements
    }

    /// Checks that every subchunk is there and has the expected content.
    pub(in crate::cuda) fn check(&self, encoded: &Subchunks) {
        let grid = self.job.grid.shard().one_subchunk();
        let job = ShardJob {
            grid: &grid,
            chain: Chain::Known(self.chain()),
            fill_value: &self.job.fill_value,
            store_empty: self.job.store_empty,
            validate_checksums: true,
            threads: NonZeroUsize::MIN,
            huge_pages: false,
        };
        let mut counts = vec![self.epochs];
        counts.extend(self.job.grid.subchunks());
        assert_eq!(encoded.len(), counts.iter().product::<usize>());
        for (at, encoded) in encoded {
            let elements = self.elements(at);
            let on_host = HostEngine.encode(&job, &elements, 0, 0).unwrap();
            assert_eq!(encoded.is_some(), on_host.extents[0].is_some(), "{at:?}");
            let Some(encoded) = encoded else { continue };
            if self.chain().is_fixed_size() {
                assert!(*encoded == on_host.bytes, "{at:?} has other bytes");
            }
            let extent = Some(0..encoded.len());
            let decoded = HostEngine.decode(&job, encoded, &[extent]).unwrap();
            assert!(decoded == elements, "{at:?} has other elements");
        }
    }

    /// Returns the batches: the first epoch and the grid of each.
    pub(in crate::cuda) fn batches(&self) -> Vec<(usize, Arc<BatchGrid>)> {
        (0..self.epochs)
            .step_by(self.job.epochs)
            .map(|first| {
                let epochs = self.job.epochs.min(self.epochs - first);
                (first, Arc::new(self.job.grid.batch(epochs).unwrap()))
            })
            .collect()
    }
}

/// The encoded bytes of each subchunk by its coordinates; `None` if the subchunk is not stored.
pub(in crate::cuda) type Subchunks = BTreeMap<Vec<usize>, Option<Vec<u8>>>;

/// A function that writes bytes to an input.
pub(in crate::cuda) type Write<'a> =
    &'a mut dyn FnMut(&mut dyn BatchInput, usize, &[u8]) -> Result<(), EngineError>;

/// Writes from the host.
pub(in crate::cuda) fn from_host(
    input: &mut dyn BatchInput,
    at: usize,
    bytes: &[u8],
) -> Result<(), EngineError> {
    input.write(at, bytes)
}

/// Encodes a subject as a writer would, on one thread.
#[derive(Debug)]
pub(in crate::cuda) struct Run<'a> {
    subject: &'a Subject,
    engine: Arc<dyn StreamEngine>,
    encoder: Box<dyn Encoder>,
    numbers: Numbers,
    /// How often a failed batch is retried.
    pub(in crate::cuda) tries: usize,
    under_way: VecDeque<(usize, Arc<BatchGrid>)>,
    /// The outputs that are held for a while, as a store holds them.
    held: VecDeque<Box<dyn BatchOutput>>,
    encoded: Subchunks,
}

impl<'a> Run<'a> {
    pub(in crate::cuda) fn new(
        subject: &'a Subject,
        engine: Arc<dyn StreamEngine>,
        seed: u64,
    ) -> Result<Self, EngineError> {
        engine.settle();
        Ok(Self {
            subject,
            encoder: engine.encoder()?,
            engine,
            numbers: Numbers::new(seed),
            tries: 0,
            under_way: VecDeque::new(),
            held: VecDeque::new(),
            encoded: Subchunks::new(),
        })
    }

    /// Encodes all batches.
    pub(in crate::cuda) fn all(mut self, write: Write<'_>) -> Result<Subchunks, EngineError> {
        for (first, batch) in self.subject.batches() {
            let mut input = self.input()?;
            let epoch = self.subject.job.grid.epoch_bytes();
            let bytes = &self.subject.bytes[first * epoch..(first + batch.epochs()) * epoch];
            self.write(&mut *input, bytes, write)?;
            if self.numbers.below(8) == 0 {
                let mut read = vec![0; bytes.len()];
                if input.read(0, &mut read).is_ok() {
                    assert!(read == bytes, "what was put there is not there");
                }
            }
            self.submit(first, batch, input)?;
        }
        self.finish()
    }

    /// Takes an input. Completes batches until one is free.
    pub(in crate::cuda) fn input(&mut self) -> Result<Box<dyn BatchInput>, EngineError> {
        loop {
            match self.engine.input(true)? {
                Some(input) => return Ok(input),
                None => self.complete()?,
            }
        }
    }

    /// Submits a batch, and maybe completes one.
    pub(in crate::cuda) fn submit(
        &mut self,
        first: usize,
        batch: Arc<BatchGrid>,
        input: Box<dyn BatchInput>,
    ) -> Result<(), EngineError> {
        while self.under_way.len() == self.encoder.depth() {
            self.complete()?;
        }
        self.encoder.submit(input, batch.clone());
        self.under_way.push_back((first, batch));
        if self.numbers.below(3) == 0 {
            self.complete()?;
        }
        Ok(())
    }

    /// Completes all batches that were submitted.
    pub(in crate::cuda) fn finish(mut self) -> Result<Subchunks, EngineError> {
        while !self.under_way.is_empty() {
            self.complete()?;
        }
        Ok(self.encoded)
    }

    /// Writes in pieces. Sometimes other bytes are written first, and then overwritten.
    fn write(
        &mut self,
        input: &mut dyn BatchInput,
        bytes: &[u8],
        write: Write<'_>,
    ) -> Result<(), EngineError> {
        let mut at = 0;
        while at < bytes.len() {
            let most = [3, 40, 4000, usize::MAX][self.numbers.below(4)];
            let len = (1 + self.numbers.below(bytes.len() - at)).min(most);
            if self.numbers.below(5) == 0 {
                let other = vec![0x5A; len];
                write(input, at, &other)?;
            }
            write(input, at, &bytes[at..at + len])?;
            at += len;
        }
        Ok(())
    }

    fn complete(&mut self) -> Result<(), EngineError> {
        let Some((first, batch)) = self.under_way.pop_front() else {
            return Err(EngineError::Internal("no input, and nothing under way"));
        };
        while self.held.len() >= self.subject.job.outputs {
            self.held.pop_front();
        }
        match self.encoder.complete() {
            Some(Ok(encoded)) => {
                self.take(first, &batch, encoded);
                Ok(())
            }
            Some(Err(failed)) => self.again(first, batch, failed),
            None => Err(EngineError::Internal("a batch was forgotten")),
        }
    }

    /// Retries a failed batch and all batches after it.
    fn again(
        &mut self,
        first: usize,
        batch: Arc<BatchGrid>,
        failed: FailedBatch,
    ) -> Result<(), EngineError> {
        let FailedBatch { error, input } = failed;
        self.tries = self.tries.checked_sub(1).ok_or(error)?;
        let mut failed = vec![(first, batch, input)];
        while let Some((first, batch)) = self.under_way.pop_front() {
            match self.encoder.complete() {
                Some(Err(behind)) => failed.push((first, batch, behind.input)),
                other => panic!("behind a batch that failed: {other:?}"),
            }
        }
        for (first, batch, mut input) in failed {
            let epoch = self.subject.job.grid.epoch_bytes();
            let expected = &self.subject.bytes[first * epoch..(first + batch.epochs()) * epoch];
            let mut bytes = vec![0; expected.len()];
            if input.read(0, &mut bytes).is_ok() {
                assert!(
                    bytes == expected,
                    "what was put there is not there any more"
                );
            }
            self.encoder.submit(input, batch.clone());
            self.under_way.push_back((first, batch));
        }
        Ok(())
    }

    fn take(&mut self, first: usize, batch: &BatchGrid, encoded: EncodedBatch) {
        let EncodedBatch { mut output, parts } = encoded;
        let (room, per_shard) = (
            self.subject.job.room,
            self.subject.job.grid.shard().counts(),
        );
        assert_eq!(parts.len(), batch.parts().len());
        let mut end = 0;
        for encoded in &parts {
            assert_eq!(encoded.pieces.len(), 1);
            let piece = encoded.pieces[0].clone();
            assert_eq!(piece.start, end + room.head);
            end = piece.end + room.tail;
            // The writer puts an index there.
            let bytes = (*output).as_mut();
            bytes[piece.start - room.head..piece.start].fill(0xEE);
            bytes[piece.end..end].fill(0xEE);
        }
        for (part, encoded) in std::iter::zip(batch.parts(), parts) {
            assert_eq!(encoded.sizes.len(), part.len());
            let piece = &encoded.pieces[0];
            let mut at = piece.start;
            for (number, size) in encoded.sizes.iter().enumerate() {
                let mut rest = number;
                let mut coordinates = vec![0; per_shard.len()];
                for axis in (0..per_shard.len()).rev() {
                    coordinates[axis] =
                        part.shard[axis] * per_shard[axis] + rest % part.counts[axis];
                    rest /= part.counts[axis];
                }
                coordinates[0] += first;
                let bytes = size.map(|size| {
                    at += size;
                    (*output).as_ref()[at - size..at].to_vec()
                });
                assert_eq!(self.encoded.insert(coordinates, bytes), None);
            }
            assert_eq!(at, piece.end);
        }
        if self.numbers.below(2) == 0 {
            self.held.push_back(output);
        } else {
            // Drops the output on another thread, as a store does.
            std::thread::spawn(move || drop(output)).join().unwrap();
        }
    }
}

/// Encodes a subject from the host, and checks the result.
pub(in crate::cuda) fn encode(
    subject: &Subject,
    engine: Arc<dyn StreamEngine>,
    seed: u64,
) -> Result<(), EngineError> {
    let encoded = Run::new(subject, engine, seed)?.all(&mut from_host)?;
    subject.check(&encoded);
    Ok(())
}

/// Returns the notification of returned buffers that a stream needs.
pub(in crate::cuda) fn returned() -> Arc<Returned> {
    Arc::default()
}
